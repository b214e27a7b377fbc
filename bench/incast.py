"""Incast beside what DCTCP's authors measured: when queries begin to time out.

Source: Alizadeh et al., Data Center TCP, SIGCOMM 2010, Figures 18 to 20: n servers send 1 MB / n each to one client
over 1 Gb/s, again and again on the same connections; retransmission timeout 300 ms at least.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from emu.cluster import Cluster, load_cluster
from emu.comm import Comm, run_dry
from emu.engine import resolve
from emu.trace import Op, Trace

QUERY_BYTES, QUERIES, RTO_S = 1_000_000, 20, 0.3
SPREAD_RUNS = 3
STATIC, DYNAMIC = "150 kB", "700 kB"  # 100 packets of a port's own; what one port takes of a shared buffer


def incast_rows() -> Iterator[dict[str, Any]]:
    """Yield the rows: measured, emulated, and the range that counts as right."""
    yield _row("TCP, 100 packets a port: senders from which on queries time out", 11, (6, 16), _first, "tcp", STATIC)
    yield _row("DCTCP, 100 packets a port: senders from which on queries time out", 36, (31, 41),
               _first, "dctcp", STATIC)  # fmt: skip
    yield _row("DCTCP, 700 kB a port: senders from which on queries time out (41: none to 40)", 41, (41, 41),
               _first, "dctcp", DYNAMIC)  # fmt: skip
    yield _row("all to all of 25 kB, TCP: % of queries that time out", 55, (55, 100), _all_to_all, "tcp")
    yield _row("all to all of 25 kB, DCTCP: % of queries that time out", 0, (0, 0), _all_to_all, "dctcp")
    yield _row("TCP, 40 senders, 1 ms timeout: median query in ms (8 at least)", 9, (8, 30), _median_ms, "tcp", "1 ms")


def _row(
    name: str, measured: float, right: tuple[float, float], ask: Callable[..., float], *terms: str
) -> dict[str, Any]:
    emulated = ask(*terms)
    runs = [emulated, *(ask(*terms, seed=seed, perturbation=1e-9) for seed in range(SPREAD_RUNS))]
    error = 100 * (emulated / measured - 1) if measured else 100.0 * (emulated != 0)
    spread = (max(runs) - min(runs)) / emulated if emulated else float(max(runs) > 0)
    return {
        "table": "F10", "row": name, "measured": measured, "emulated": emulated, "error_pct": error,
        "spread_pct": 100 * spread, "aim": f"{right[0]:g} to {right[1]:g}",
        "within": right[0] <= emulated <= right[1], "series": "all", "note": "",
    }  # fmt: skip


def _first(congestion: str, buffer: str, **noise: Any) -> int:
    """Return the number of senders from which on, up to 40, queries time out; 41 if they don't at 40."""
    for n in range(40, 0, -1):
        if not (_query_s(n, _cluster(n + 1, congestion, buffer), **noise) > 0.9 * RTO_S).any():
            return n + 1
    return 1


def _median_ms(congestion: str, rto: str, **noise: Any) -> float:
    return float(np.median(_query_s(40, _cluster(41, congestion, STATIC, rto), **noise))) * 1e3


def _cluster(hosts: int, congestion: str, buffer: str, rto: str = "300 ms") -> Cluster:
    settings = {"transport": congestion, "tcp.rto_min": rto, "switch.buffer": buffer}
    return load_cluster("tcp-1g", settings, hosts)


def _query_s(n: int, cluster: Cluster, **noise: Any) -> np.ndarray:
    """Return how long each query takes but the first, which finds cold windows."""
    spans = resolve(_queries(n), cluster, profile="mpi", **noise).spans
    waits = spans[(spans["rank"] == 0) & (spans["op"] == Op.WAIT)]
    return (waits["end_s"] - waits["start_s"])[1:]


@lru_cache
def _queries(n: int) -> Trace:
    def main(comm: Comm) -> None:
        part, ask = comm.empty(QUERY_BYTES // n, "uint8"), comm.empty(100, "uint8")
        for _ in range(QUERIES):
            if comm.rank == 0:
                asked = [comm.isend(ask, w) for w in range(1, n + 1)]
                comm.waitall([*asked, *(comm.irecv(part, w) for w in range(1, n + 1))])
            else:
                comm.recv(ask, 0)
                comm.send(part, 0)

    return run_dry(main, n + 1)[1]


def _all_to_all(congestion: str, hosts: int = 41, part: int = 25_000, **noise: Any) -> float:
    """Return the percentage of queries that time out when every host asks every other one at once."""

    def main(comm: Comm) -> None:
        x = comm.empty(part, "uint8")
        others = [(comm.rank + i) % hosts for i in range(1, hosts)]
        for _ in range(4):
            comm.waitall([comm.irecv(x, w) for w in others] + [comm.isend(x, w) for w in others])

    spans = resolve(run_dry(main, hosts)[1], _cluster(hosts, congestion, DYNAMIC), profile="mpi", **noise).spans
    waits = spans[spans["op"] == Op.WAIT]
    return float(100 * (waits["end_s"] - waits["start_s"] > 0.9 * RTO_S).mean())
