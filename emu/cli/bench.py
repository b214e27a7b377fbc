"""emu bench: a collective over sizes, with nccl-tests' flags and columns; emulated time and measured time apart."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emu.cli.options import cluster_options, make_cluster, profile_option
from emu.errors import ConfigError

if TYPE_CHECKING:
    from emu.comm.communicator import Comm
    from emu.comm.mpi_world import MpiWorld
    from emu.verify.bandwidth import Measured, Row
    from emu.verify.measure import Job

COLLECTIVES = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "scatter", "gather", "all_to_all")
TYPES = {
    "int8": "int8", "char": "int8", "uint8": "uint8", "int32": "int32", "int": "int32", "uint32": "uint32",
    "int64": "int64", "uint64": "uint64", "int16": "int16", "half": "float16", "float16": "float16",
    "bfloat16": "bfloat16", "float": "float32", "float32": "float32", "double": "float64", "float64": "float64",
}  # fmt: skip
ALL_TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16")
OPS = ("sum", "prod", "max", "min", "avg")


@click.command()
@click.argument("collective", type=click.Choice(COLLECTIVES))
@click.option("-b", "--minbytes", default="32M", show_default=True, help="First size.")
@click.option("-e", "--maxbytes", default="32M", show_default=True, help="Last size.")
@click.option("-i", "--stepbytes", default="1M", show_default=True, help="Step between sizes.")
@click.option("-f", "--stepfactor", type=int, help="Factor between sizes, instead of a step.")
@click.option("-n", "--iters", default=20, show_default=True, type=click.IntRange(min=1), help="Measured iterations.")
@click.option("-w", "--warmup_iters", default=1, show_default=True, type=click.IntRange(min=0), help="Not measured.")
@click.option("-m", "--agg_iters", default=1, show_default=True, type=click.IntRange(min=1), help="Calls an iteration.")
@click.option("-c", "--check", default=1, show_default=True, type=click.IntRange(0, 1), help="Check the results.")
@click.option("-a", "--average", default=1, show_default=True, type=click.IntRange(0, 3),
              help="Wall time over ranks: 0 rank 0, 1 mean, 2 least, 3 most.")
@click.option("-o", "--op", default="sum", show_default=True, help=f"{', '.join(OPS)}, or all.")
@click.option("-d", "--datatype", default="float", show_default=True, help=f"{', '.join(ALL_TYPES)}, or all.")
@click.option("-r", "--root", default=0, show_default=True, type=int, help="Root; -1: every rank in turn.")
@click.option("-T", "--timeout", type=float, help="End the job when it takes longer, in seconds.")
@click.option("-J", "--output_file", type=click.Path(dir_okay=False), help="Write the result as JSON too.")
@click.option("-A", "--algorithm", default="auto", show_default=True, help="Algorithm, or auto.")
@click.option("-g", "--ngpus", "--local", type=click.IntRange(min=1), help="Ranks in this process [4]; mpirun has -n.")
@click.option("--dry", is_flag=True, help="Emulated time only: no bytes, any number of GPUs.")
@cluster_options
@profile_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", type=click.Path(dir_okay=False), help="Draw bandwidth over size into this file.")
def bench(
    collective: str, minbytes: str, maxbytes: str, stepbytes: str, stepfactor: int | None, iters: int,
    warmup_iters: int, agg_iters: int, check: int, average: int, op: str, datatype: str, root: int,
    timeout: float | None, output_file: str | None, algorithm: str, ngpus: int | None, dry: bool,
    cluster: str | None, link: str | None, settings: tuple[str, ...], profile: str, as_json: bool, plot: str | None,
) -> int:  # fmt: skip
    """Measure COLLECTIVE over sizes.

    time, algbw and busbw are emulated, on the cluster; wall is measured, on this host. Sizes are those of
    nccl-tests: the whole buffer. Under mpirun every process is a rank.
    """
    from emu.collectives import find
    from emu.verify.bandwidth import parse_size, sizes
    from emu.verify.measure import Job, measure_size

    world = _mpi_world(ngpus, dry, timeout)
    comm = _comm_of(world) if world is not None else None
    p = world.size if world is not None else ngpus or 4
    first, last, step = parse_size("-b", minbytes), parse_size("-e", maxbytes), parse_size("-i", stepbytes)
    swept = list(sizes(first, last, step, stepfactor))
    find(collective, algorithm)
    roots = range(p) if root == -1 else [root]
    if not -1 <= root < p:
        raise ConfigError(f"-r: a rank from 0 to {p - 1}, or -1 for all, is expected, got {root}")
    types, ops = _chosen("-d", datatype, TYPES, ALL_TYPES), _chosen("-o", op, {o: o for o in OPS}, OPS)
    machine = make_cluster(cluster, link, settings, p)
    job = Job(collective, algorithm, machine, p, profile, iters, warmup_iters, agg_iters, bool(check), dry, average)
    measured = [
        measure_size(job, size, _dtype(each_type), each_op, each_root, comm)
        for each_type in types
        for each_op in (ops if job.contract.reduces else ["sum"])
        for each_root in (roots if job.contract.rooted else [0])
        for size in swept
    ]
    wrong = sum(told or 0 for each in measured for told, _ in each.told)
    if world is None or world.rank == 0:  # emulated time is the same for all
        _tell(job, [each.row() for each in measured], wrong, as_json, output_file, plot)
    if world is not None:
        world.tell(None)  # the others sleep until then
    return 1 if wrong else 0


def _mpi_world(ngpus: int | None, dry: bool, timeout: float | None) -> MpiWorld | None:
    from emu.comm.mpi_start import started_by_mpirun

    if timeout is not None:
        _end_after(timeout)
    if not started_by_mpirun():
        return None
    if ngpus is not None or dry:
        raise ConfigError("-g: under mpirun every process is a rank, got -g or --dry; leave mpirun or them out")
    from emu.comm.mpi_world import MpiWorld

    return MpiWorld()


def _comm_of(world: MpiWorld) -> Comm:
    from emu.comm.communicator import Comm
    from emu.comm.recording import Log

    return Comm(world.wire, Log(world.rank), range(world.size))


def _end_after(seconds: float) -> None:
    import faulthandler

    faulthandler.dump_traceback_later(seconds, exit=True)


def _chosen(flag: str, word: str, known: dict[str, str], every: tuple[str, ...]) -> list[str]:
    if word != "all" and word not in known:
        raise ConfigError(f"{flag}: one of {', '.join(every)}, or all, is expected, got {word!r}")
    return [known[name] for name in every] if word == "all" else [known[word]]


def _dtype(name: str) -> Any:
    import ml_dtypes
    import numpy as np

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _tell(job: Job, rows: list[Row], wrong: int, as_json: bool, path: str | None, plot: str | None) -> None:
    mean = sum(w.busbw_bytes_per_s for row in rows for w in _ways(row)) / sum(len(_ways(row)) for row in rows)
    result = {
        "collective": job.collective, "algorithm": job.algorithm, "cluster": job.cluster.name,
        "cluster_sha256": job.cluster.sha256, "profile": job.profile, "ranks": job.p,
        "rows": [asdict(row) for row in rows], "wrong": wrong, "mean_busbw_bytes_per_s": mean,
    }  # fmt: skip
    if path is not None:
        _write(path, json.dumps(result, indent=1))
    if plot is not None:
        _draw(job, rows, plot)
    print(json.dumps(result) if as_json else _table(job, rows, wrong, mean))
    sys.stdout.flush()


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as error:
        raise ConfigError(f"-J: a file that can be written is expected, got {path}: {error.strerror}") from None


def _ways(row: Row) -> list[Measured]:
    return [way for way in (row.out_of_place, row.in_place) if way is not None]


def _table(job: Job, rows: list[Row], wrong: int, mean: float) -> str:
    way = "    time   algbw   busbw #wrong      wall"
    unit = "    (us)  (GB/s)  (GB/s)             (us)"
    lines = [
        f"# {job.algorithm} {job.collective} on {job.p} GPUs of {job.cluster.name}, profile {job.profile}",
        "# time, algbw and busbw are emulated; wall is measured on this host",
        f"#{'':>49}{'out-of-place':^41} {'in-place':^41}".rstrip(),
        f"#{'size':>12} {'count':>12} {'type':>9} {'redop':>6} {'root':>5} {way} {way}",
        f"#{'(B)':>12} {'(elements)':>12} {'':>9} {'':>6} {'':>5} {unit} {unit}",
    ]
    for row in rows:
        head = f" {row.size_bytes:>12} {row.count:>12} {row.type:>9} {row.redop:>6} {row.root:>5}"
        lines.append(f"{head} {_cells(row.out_of_place)} {_cells(row.in_place)}")
    verdict = f"{wrong} OK" if not wrong else f"{wrong} FAILED"
    return "\n".join([*lines, f"# Out of bounds values : {verdict}", f"# Avg bus bandwidth    : {mean / 1e9:.6g}"])


def _cells(way: Measured | None) -> str:
    if way is None:
        return f"{'N/A':>8} {'N/A':>7} {'N/A':>7} {'N/A':>6} {'N/A':>9}"
    wrong = "N/A" if way.wrong is None else str(way.wrong)
    wall = "N/A" if way.wall_s is None else f"{way.wall_s * 1e6:.1f}"
    bandwidths = f"{way.algbw_bytes_per_s / 1e9:>7.2f} {way.busbw_bytes_per_s / 1e9:>7.2f}"
    return f"{way.time_s * 1e6:>8.2f} {bandwidths} {wrong:>6} {wall:>9}"


def _draw(job: Job, rows: list[Row], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for kind in dict.fromkeys((row.type, row.redop, row.root) for row in rows):
        mine = [row for row in rows if (row.type, row.redop, row.root) == kind]
        label = " ".join(str(word) for word in kind if word not in ("none", -1))
        axes.plot(
            [row.size_bytes for row in mine], [_ways(row)[-1].busbw_bytes_per_s / 1e9 for row in mine],
            marker="o", markersize=3, label=label,
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xlabel("size (bytes)")
    axes.set_ylabel("bus bandwidth (GB/s), emulated")
    axes.set_title(f"{job.algorithm} {job.collective}, {job.p} GPUs of {job.cluster.name}")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot: a picture file that can be written is expected, got {path}: {error}") from None
