"""How near is emu to published measurements?   python -m bench.fidelity [--tables E1,E4,elsewhere] --json

Every row: `measured`, `emulated`, `error_pct`, and `spread_pct`: how far apart a few runs are whose messages differ by
a billionth (null where that was not measured; `note` says why). `within` says whether it meets its `aim`; rows without
an aim only count in the means.

Calibration and judgement are apart. Constants are NCCL's own (its tuning model: latencies, protocols, channels), the
links' and the transports'. One is calibrated, what launching a collective takes, by a table that is not judged:
`calibration` names it, `calibration_rows` show it.
"""

from collections.abc import Iterator

import numpy as np

from bench.incast import incast_rows
from bench.published import E1_NVLINK, E1_PCIE, E4, E6, E6_GPUS, E10, MIB, SMALL, rows_of
from bench.published_elsewhere import RUNS, Published
from bench.published_training import buckets, megatron
from bench.runner import Option, Result, run
from emu.cluster import Cluster, load_cluster
from emu.collectives import find
from emu.comm import Comm, run_dry
from emu.engine import resolve
from emu.engine.nccl import choice
from emu.engine.nccl_graph import graph_of
from emu.engine.profiles import NCCL_LAUNCH_S

SPREAD_RUNS = 3
CALIBRATION = "SMALL: 2 x 8 A100, HDR, all-reduces of 1 to 16 KiB"


def measure(tables: str) -> Result:
    """Time every row of the tables asked for; `checks` say what holds of the aims."""
    known = {
        "E1": _e1, "E4": _e4, "E6": _e6, "E6 by GPUs": _e6_gpus, "E10": _e10, "F2": _f2, "F8": _f8, "F10": incast_rows,
        "elsewhere": _elsewhere,
    }  # fmt: skip
    chosen = [name for name in known if tables == "all" or name.split()[0] in tables.split(",")]
    rows = [row for name in chosen for row in known[name]()]
    by_table = {name: [row for row in rows if row["table"] == name] for name in chosen}
    means = [_mean(name, of) for name, of in by_table.items()]
    checks = {}
    for mean in means:
        table, order, within, judged = mean["table"], mean["rank_correlation"], mean["within"], mean["judged"]
        if judged:
            checks[f"{table}: {within} of {judged} rows within their aim"] = within == judged
        if table == "F8":
            checks["F8: the best bucket is neither the smallest nor the largest"] = _interior(by_table[table])
        elif table != "elsewhere":
            checks[f"{table}: rank correlation {order:.3f} is at least 0.95"] = order >= 0.95
    launch = {"calibration": CALIBRATION, "launch_us": NCCL_LAUNCH_S * 1e6, "calibration_rows": _calibration()}
    return {**launch, "rows": rows, "means": means, "checks": checks}


def _calibration() -> list[Result]:
    """Return what the rows of the calibrating table take beyond NCCL's own estimate; the launch is their median."""
    cluster = load_cluster("dgx-a100:2")
    graph = graph_of(cluster, range(16))
    rows = []
    for each in rows_of(SMALL):
        size, measured_us = int(each["size"]), float(each["time"])
        estimate_us = choice(graph, "all_reduce", size)[2]
        rows.append({"size": size, "measured_us": measured_us, "nccl_estimate_us": estimate_us,
                     "beyond_us": measured_us - estimate_us})  # fmt: skip
    return rows


def _mean(table: str, rows: list[Result]) -> Result:
    judged = [row for row in rows if row["within"] is not None]
    series: dict[str, list[Result]] = {}
    for row in rows:
        series.setdefault(row["series"], []).append(row)
    return {
        "table": table,
        "rows": len(rows),
        "mean_abs_error_pct": float(np.mean([abs(row["error_pct"]) for row in rows])),
        "mean_abs_error_of_judged_pct": float(np.mean([abs(row["error_pct"]) for row in judged])) if judged else None,
        "judged": len(judged),
        "within": sum(row["within"] for row in judged),
        "rank_correlation": min(
            _rank_correlation([row["measured"] for row in of], [row["emulated"] for row in of])
            for name, of in series.items() if name
        ),
    }  # fmt: skip


def _interior(rows: list[Result]) -> bool:
    """Whether in each sweep of four buckets, smallest first, the best is one between."""
    sweeps = [rows[i : i + 4] for i in range(0, len(rows), 4)]
    return all(np.argmin([row["emulated"] for row in sweep]) in (1, 2) for sweep in sweeps)


def _row(
    table: str, name: str, measured: float, emulated: float, spread: float | None, aim_pct: float | None = None,
    series: str = "all", note: str = "",
) -> Result:
    """Make a row. The trend of each `series` of a table is judged by itself; "" is in none."""
    error_pct = 100 * (emulated / measured - 1)
    aim, within = ("", None) if aim_pct is None else (f"{aim_pct:g} %", abs(error_pct) <= aim_pct)
    return {
        "table": table, "row": name, "measured": measured, "emulated": emulated, "error_pct": error_pct,
        "spread_pct": None if spread is None else 100 * spread, "aim": aim, "within": within,
        "series": series, "note": note,
    }  # fmt: skip


def _e1() -> Iterator[Result]:
    """Bus bandwidths in GB/s, and from 128 MiB on how many times NVLink carries what PCIe does in an all-reduce."""
    clusters = {name: load_cluster(name, gpus=8) for name in ("dgx-1-p100", "dgx-1-p100-pcie")}
    for nvlink, pcie in zip(rows_of(E1_NVLINK), rows_of(E1_PCIE), strict=True):
        size, sums = int(nvlink["size"]), []
        for fabric, row, cluster in zip(("nvlink", "pcie"), (nvlink, pcie), clusters.values(), strict=True):
            for collective in [column for column in row if column != "size"]:
                runs = SPREAD_RUNS if collective == "all_reduce" else 1
                seconds, spread = collective_s(cluster, 8, collective, size, runs=runs)
                busbw = size / seconds * bus_factor(collective, 8) / 1e9
                sums += [(busbw, spread)] if collective == "all_reduce" else []
                name = f"8 P100, {fabric}, {collective}, {size} B, GB/s"
                yield _row("E1", name, float(row[collective]), busbw, spread, series=f"{fabric}, {collective}")
        if size >= 128 * MIB:
            measured = float(nvlink["all_reduce"]) / float(pcie["all_reduce"])
            (fast, spread), (slow, other) = sums
            yield _row("E1", f"8 P100, NVLink over PCIe, {size} B", measured, fast / slow, max(spread, other), 25, "")


def _e4() -> Iterator[Result]:
    for each in rows_of(E4):
        mib = int(each.pop("size"))
        for n, measured in each.items():
            seconds, spread = all_reduce_s("dgx-a100", int(n), mib * MIB)
            name = f"{n} A100, {mib} MiB, us"
            yield _row("E4", name, float(measured), seconds * 1e6, spread, 10 if mib >= 64 else None, f"n={n}")


def _e6() -> Iterator[Result]:
    for each in rows_of(E6):
        size = int(each["size"])
        seconds, spread = all_reduce_s("hgx-h200", 8, size)
        busbw = size / seconds * 2 * 7 / 8 / 1e9
        aim = 10 if size >= 64 * MIB else None
        yield _row("E6", f"8 H200, {size} B, GB/s", float(each["busbw"]), busbw, spread, aim)


def _e6_gpus() -> Iterator[Result]:
    size = 8 << 30
    for each in rows_of(E6_GPUS):
        n = int(each["gpus"])
        for column, algorithm in (("chosen", "auto"), ("without", "ring")):
            seconds, spread = all_reduce_s(each["gpu"], n, size, algorithm)
            busbw = size / seconds * 2 * (n - 1) / n / 1e9
            name = f"{n} {each['gpu']}, 8 GiB, {column if algorithm == 'auto' else 'no in-switch sums'}, GB/s"
            yield _row("E6 by GPUs", name, float(each[column]), busbw, spread, 10)


def _e10() -> Iterator[Result]:
    for each in rows_of(E10):
        size = int(each["size"])
        seconds, spread = all_reduce_s("a3-mega:2", 16, size)
        aim = 15 if size >= 256 * MIB else None
        yield _row("E10", f"2 x 8 H100, {size} B, us", float(each["time"]), seconds * 1e6, spread, aim)


def _f2() -> Iterator[Result]:
    for name, measured, emulated in megatron():
        series = "" if name.endswith(", ms") else "all"
        yield _row("F2", name, measured, emulated, None, series=series, note="spread not measured: computation decides")


def _f8() -> Iterator[Result]:
    for name, measured, emulated in buckets():
        yield _row("F8", name, measured, emulated, None, note="spread not measured: computation decides")


def _elsewhere() -> Iterator[Result]:
    for each in RUNS:
        cluster, series = _cluster_of(each), f"{each.system}, {each.collective}"
        note = f"source: {each.source}" + (f"; in sight when changed: {each.seen}" if each.seen else "")
        for size, measured in each.times_us:
            seconds, spread = collective_s(cluster, each.ranks, each.collective, size, profile=each.profile)
            name = f"{series}, {size} B, us"
            yield _row("elsewhere", name, measured, seconds * 1e6, spread, series=series, note=note)


def _cluster_of(each: Published) -> Cluster:
    fixed = ":" in each.cluster or each.cluster.endswith(".toml")
    return load_cluster(each.cluster, dict(each.settings), None if fixed else each.ranks)


def bus_factor(collective: str, p: int) -> float:
    """Return what turns size over time into bus bandwidth, as nccl-tests count it."""
    return {"all_reduce": 2 * (p - 1) / p, "broadcast": 1.0, "reduce": 1.0}.get(collective, (p - 1) / p)


def all_reduce_s(name: str, p: int, nbytes: int, algorithm: str = "auto") -> tuple[float, float]:
    """Return the time of an all-reduce under NCCL's profile, and its relative spread."""
    cluster = load_cluster(name) if ":" in name else load_cluster(name, gpus=p)
    return collective_s(cluster, p, "all_reduce", nbytes, algorithm)


def collective_s(
    cluster: Cluster, p: int, collective: str, nbytes: int, algorithm: str = "auto", profile: str = "nccl",
    runs: int = SPREAD_RUNS,
) -> tuple[float, float]:
    """Return the time of a collective on nbytes in all, as nccl-tests count them, and its relative spread.

    "sendrecv": every rank sends to the next one and receives from the one before.
    """  # fmt: skip

    def main(comm: Comm) -> None:
        comm.cluster, comm.profile = cluster, profile
        x = comm.empty(nbytes // 4, "float32")
        if collective == "sendrecv":
            comm.sendrecv(x, (comm.rank + 1) % p, comm.empty_like(x), (comm.rank - 1) % p)
        elif collective in ("all_reduce", "broadcast", "reduce"):
            find(collective, algorithm)(comm, x)
        else:
            whole = comm.empty(nbytes // 4 // p * p, "float32")
            part = whole if collective == "all_to_all" else comm.empty(nbytes // 4 // p, "float32")
            ends = (whole, part) if collective == "reduce_scatter" else (part, whole)
            find(collective, algorithm)(comm, *ends)

    trace = run_dry(main, p)[1]
    end_s = resolve(trace, cluster, profile=profile, detail="totals").end_s
    ends = [end_s] + [
        resolve(trace, cluster, profile=profile, detail="totals", seed=seed, perturbation=1e-9).end_s
        for seed in range(runs)
    ]
    return end_s, (max(ends) - min(ends)) / end_s


def _rank_correlation(a: list[float], b: list[float]) -> float:
    """Return Spearman's coefficient; ties share their mean rank."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1]) if len(a) > 2 else 1.0


def _ranks(values: list[float]) -> np.ndarray:
    x = np.asarray(values, float)
    return np.array([(x < v).sum() + (x == v).sum() / 2 for v in x])


if __name__ == "__main__":
    run(__doc__.splitlines()[0].split("   ")[0], measure, tables=Option("all", "which, such as E4,E10"))
