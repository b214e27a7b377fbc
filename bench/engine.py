"""How many messages a second does the engine time, and in how much memory?

    python -m bench.engine [--json] [--case NAME]

Each case is timed in a process of its own. `messages_per_s` counts CPU time of one core from the trace to the
times, without compilation; `wall_s` is by the clock on the wall, `compile_s` what the first use of the engine
took in that process, `peak_rss_bytes` the most memory that it ever had, the trace itself included.
"""

import multiprocessing
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.runner import Option, Result, run
from emu.trace import COLLECTIVE, ROW, Op, Template, Trace


@dataclass(frozen=True)
class Wire:
    """A link of the benchmark's cluster."""

    name: str
    bandwidth_bytes_per_s: float
    kind: str = "nic"
    latency_s: float = 0.0
    buffer_bytes: float = float("inf")
    ecn_threshold_bytes: float = float("inf")


@dataclass(frozen=True)
class Path:
    """A route of the benchmark's cluster."""

    links: tuple[int, ...]
    latency_s: float = 5e-6
    transport: str = "rdma"
    cap_bytes_per_s: float = float("inf")


@dataclass(frozen=True)
class Machine:
    """A GPU, a transport and a cluster in one: as little as the engine asks for."""

    links: tuple[Wire, ...]
    size: int
    path: Callable[[int, int], Path]
    name: str = "bench"
    kind: str = "rdma"
    send_overhead_s: float = 0.0
    receive_overhead_s: float = 0.0
    eager_bytes: int = 1 << 14
    memory_bytes_per_s: float = 2e12
    memory_efficiency: float = 1.0
    flops_efficiency: float = 1.0
    launch_overhead_s: float = 0.0
    by_size: tuple = ()
    memory_by_size: tuple = ()

    def route(self, src: int, dst: int) -> Path:
        return self.path(src, dst)

    def transport(self, name: str) -> "Machine":
        return self

    def gpu(self, rank: int) -> "Machine":
        return self

    def speed(self, rank: int) -> float:
        return 1.0

    def peak(self, dtype: str) -> float:
        return 1e14


def own_nics(p: int) -> Machine:
    """Each rank has its NIC, in and out, on one switch."""
    links = tuple(Wire(f"nic{k}", 12.5e9) for k in range(2 * p))
    return Machine(links, p, lambda a, b: Path((2 * a, 2 * b + 1)))


def leaf_spine(p: int, a_nic: int, a_leaf: int, uplinks: int) -> Machine:
    """`a_nic` ranks share a NIC, `a_leaf` NICs a leaf; one of `uplinks` spines is chosen by a hash of the pair."""
    nics = p // a_nic
    leaves = nics // a_leaf
    links = [Wire(f"nic{k}", 12.5e9) for k in range(2 * nics)]
    up = len(links)
    links += [Wire(f"spine{k}", 12.5e9) for k in range(2 * leaves * uplinks)]
    inside = len(links)
    links += [Wire(f"nvlink{k}", 150e9) for k in range(2 * p)]

    def path(a: int, b: int) -> Path:
        x, y = a // a_nic, b // a_nic
        if x == y:
            return Path((inside + 2 * a, inside + 2 * b + 1), 2e-6)
        if x // a_leaf == y // a_leaf:
            return Path((2 * x, 2 * y + 1))
        spine = (a * 2654435761 ^ b * 40503) % 4294967291 % uplinks
        return Path((2 * x, up + 2 * (x // a_leaf * uplinks + spine), up + 2 * (y // a_leaf * uplinks + spine) + 1,
                     2 * y + 1))

    return Machine(tuple(links), p, path)


def _rows(entries: Iterable[tuple[int, int, int, int]]) -> np.ndarray:
    out = np.zeros(len(list(entries := list(entries))), ROW)
    for k, (op, a, b, n) in enumerate(entries):
        out[k] = (op, 0, COLLECTIVE, a, b, 0, n, 0.0)
    return out


def _templated(name: str, p: int, part: np.ndarray, n: int, calls: int = 1) -> Trace:
    call = np.zeros(calls, ROW)
    call["op"], call["n"] = Op.CALL, n
    header = {"version": 1, "world_size": p, "streams": ("default",)}
    return Trace(header, (), (call,) * p, (Template(name, p, part),), (tuple(range(p)),))


def ring(p: int, n: int = 100_000_000, calls: int = 1) -> Trace:
    """Ring all-reduces of n bytes, one after the other."""
    step = [(Op.RECV, p - 1, 0, n // p), (Op.SEND, 1, 0, n // p), (Op.WAIT, 2, 2, 0)]
    return _templated("ring_all_reduce", p, _rows(step * (2 * (p - 1))), n, calls)


def pairwise(p: int, n: int = 1 << 20) -> Trace:
    """All-to-all of n bytes a pair, one peer after the other."""
    part = _rows(row for k in range(1, p) for row in
                 ((Op.RECV, p - k, 0, n), (Op.SEND, k, 0, n), (Op.WAIT, 2, 2, 0)))
    return _templated("pairwise_all_to_all", p, part, n)


def all_at_once(p: int, n: int = 1 << 20) -> Trace:
    """All-to-all of n bytes a pair, everything posted at once."""
    posts = [row for k in range(1, p) for row in ((Op.RECV, p - k, 0, n), (Op.SEND, k, 0, n))]
    return _templated("all_to_all", p, _rows([*posts, (Op.WAIT, len(posts), len(posts), 0)]), n)


def skewed_server(workers: int, rounds: int = 200, n: int = 1 << 20) -> Trace:
    """Workers of unequal pace push to one server and pull from it."""
    rng = np.random.default_rng(1)
    pace = rng.uniform(0.5, 1.5, workers) * 1e-3
    logs = [_rows([row for _ in range(rounds) for row in
                   [(Op.RECV, w, 0, n) for w in range(1, workers + 1)] + [(Op.WAIT, workers, workers, 0)]
                   + [(Op.SEND, w, 0, n) for w in range(1, workers + 1)] + [(Op.WAIT, workers, workers, 0)]])]
    for w in range(workers):
        log = _rows([(Op.ELAPSED, 0, 0, 0), (Op.SEND, 0, 0, n), (Op.RECV, 0, 0, n), (Op.WAIT, 2, 2, 0)] * rounds)
        log["x"][log["op"] == Op.ELAPSED] = pace[w] * rng.uniform(0.8, 1.2, rounds)
        logs.append(log)
    header = {"version": 1, "world_size": workers + 1, "streams": ("default",)}
    return Trace(header, ("work",), tuple(logs))


@dataclass(frozen=True)
class Case:
    """One line of the benchmark; `aim` is the least messages a second, `within_s` and `within_bytes` the most."""

    ranks: int
    trace: Callable[[], Trace]
    machine: Callable[[], Machine]
    options: dict[str, Any]
    aim: float = 0.0
    within_s: float = 0.0
    within_bytes: float = 0.0


CASES = {
    "ring": Case(1024, lambda: ring(1024), lambda: own_nics(1024), {}, aim=6e6, within_bytes=600e6),
    "ring-jitter": Case(1024, lambda: ring(1024), lambda: own_nics(1024), {"network_jitter": 0.1}, aim=3e6),
    "ring-8-a-nic-ecmp": Case(1024, lambda: ring(1024), lambda: leaf_spine(1024, 8, 16, 16), {}, aim=3e6),
    "ring-64": Case(64, lambda: ring(64, calls=260), lambda: own_nics(64), {}),
    "ring-256": Case(256, lambda: ring(256, calls=16), lambda: own_nics(256), {}),
    "ring-4096": Case(4096, lambda: ring(4096), lambda: own_nics(4096), {}),
    "all-to-all-pairwise": Case(512, lambda: pairwise(512), lambda: leaf_spine(512, 1, 16, 4), {}, within_s=3.0),
    "all-to-all-at-once": Case(512, lambda: all_at_once(512), lambda: leaf_spine(512, 1, 16, 4), {}, within_s=10.0),
    "skewed-server": Case(257, lambda: skewed_server(256), lambda: own_nics(257), {}, aim=0.5e6),
}


def measure(name: str) -> dict[str, Any]:
    """Time one case in this process."""
    from emu.engine.resolve import resolve

    case = CASES[name]
    begun = time.perf_counter()
    resolve(ring(2, 1000), own_nics(2))
    compiled = time.perf_counter() - begun
    trace, machine = case.trace(), case.machine()
    wall, cpu = time.perf_counter(), time.process_time()
    raw = resolve(trace, machine, detail="spans", **case.options)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    messages = raw.counters["messages"]
    row = {
        "case": name, "ranks": case.ranks, "messages": messages, "messages_per_s": messages / cpu, "cpu_s": cpu,
        "wall_s": wall, "compile_s": compiled, "time_s": raw.end_s,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    if case.aim:
        row["aim_messages_per_s"] = case.aim
    if case.within_s:
        row["aim_s"] = case.within_s
    if case.within_bytes:
        row["aim_bytes"] = case.within_bytes
    return row


SWEEP = ("ring-64", "ring-256", "ring", "ring-4096")  # whose time shall be linear in their messages
START = "from emu.engine.core import run; from emu.engine.resolve import resolve"
START_WITHIN_S = 2.0


def start_s() -> float:
    """Return how long a second process takes, from its start to compiled code that is ready."""
    subprocess.run([sys.executable, "-c", START], check=True)
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", START], check=True)
    return time.perf_counter() - began


def measure_all(case: str) -> Result:
    """Time one case, or all, each in a process of its own."""
    if case != "all" and case not in CASES:
        raise SystemExit(f"--case: one of {', '.join(CASES)} or all is expected, got {case!r}")
    started = start_s()
    rows, checks = [], {f"a second process starts within {START_WITHIN_S:g} s": started <= START_WITHIN_S}
    for name in CASES if case == "all" else [case]:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row = pool.apply(measure, (name,))
        rows.append(row)
        if "aim_messages_per_s" in row:
            aim = row["aim_messages_per_s"]
            checks[f"{name}: at least {aim / 1e6:g} million messages a second"] = row["messages_per_s"] >= aim
        if "aim_s" in row:
            checks[f"{name}: within {row['aim_s']:g} s"] = row["cpu_s"] <= row["aim_s"]
        if "aim_bytes" in row:
            checks[f"{name}: within {row['aim_bytes'] / 1e6:g} MB"] = row["peak_rss_bytes"] <= row["aim_bytes"]
    rates = [row["messages_per_s"] for row in rows if row["case"] in SWEEP]
    if len(rates) == len(SWEEP):
        checks["linear from 64 to 4,096 ranks: rates within a factor of 2"] = max(rates) <= 2 * min(rates)
    return {"start_s": started, "rows": rows, "checks": checks}


if __name__ == "__main__":
    run(__doc__.partition("\n")[0], measure_all, case=Option("all", f"one of {', '.join(CASES)}, or all"))
