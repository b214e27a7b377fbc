"""`emu calibrate`: measure the real links here, and write a cluster file of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emu.errors import ConfigError

if TYPE_CHECKING:
    from emu.calibration.describe import Model
    from emu.cluster import Cluster
    from emu.comm.communicator import Comm

CHECKED = (1 << 18, 1 << 20, 1 << 22, 1 << 24)  # bytes of the all-reduces that the file is tried on


@click.command()
@click.argument("output", type=click.Path(), default="calibrated.toml")
@click.option("-n", "ranks", type=click.IntRange(min=2), help="Start mpirun with so many ranks.")
@click.option("--hostfile", type=click.Path(), help="Hosts for mpirun, with -n.")
@click.option("--nccl-log", type=click.Path(), help="Take the times from a log of nccl-tests; nothing is measured.")
@click.option("--collective", help="With --nccl-log: what it measured, where the log does not say.")
@click.option("--gpus", type=click.IntRange(min=2), help="With --nccl-log: on how many, where the log does not say.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def calibrate(
    output: str, ranks: int | None, hostfile: str | None, nccl_log: str | None, collective: str | None,
    gpus: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Measure latency and bandwidth between the ranks, fit a link model, and write the cluster file OUTPUT.

    `mpirun -n 2 emu calibrate here.toml`, then `emu train --cluster here.toml`. With --nccl-log no rank is needed.
    """
    from emu.comm.mpi_start import start_mpirun, started_by_mpirun

    if not output.endswith(".toml"):
        raise ConfigError(f"output: a name that ends in .toml is expected, got {output!r}")
    if nccl_log is not None:
        _from_log(output, nccl_log, collective, gpus, as_json)
        return
    if collective is not None or gpus is not None:
        raise ConfigError("--collective, --gpus: go with --nccl-log; ranks are measured as mpirun starts them")
    if started_by_mpirun():
        _measure(output, as_json)
    elif ranks is None:
        raise ConfigError("ranks: at least 2 are expected, got 1; mpirun -n 2 emu calibrate, or -n 2")
    else:
        start_mpirun(ranks, [sys.executable, "-m", "emu", *_without_ranks(sys.argv[1:])], hostfile)


def _from_log(output: str, path: str, collective: str | None, gpus: int | None, as_json: bool) -> None:
    from dataclasses import asdict

    from emu.calibration.describe import log_cluster_file
    from emu.calibration.nccl_log import read_log

    log = read_log(path, collective, gpus)
    fitted = log.fit()
    _write(output, log_cluster_file(log, f"fitted to {Path(path).name}: {log.collective} on {log.gpus} GPUs"))
    if as_json:
        found = {"output": output, "collective": log.collective, "gpus": log.gpus, **asdict(fitted)}
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(_told("link", fitted))
    click.echo(f"{output}: emu train --cluster {output}")


def _measure(output: str, as_json: bool) -> None:
    """Measure as one rank of a job; rank 0 writes and tells."""
    from emu.calibration.describe import cluster_file, fit
    from emu.calibration.measure import least, measure
    from emu.cluster import load_cluster
    from emu.comm.communicator import Comm
    from emu.comm.mpi_world import MpiWorld
    from emu.comm.recording import Log
    from emu.program import end_job
    from emu.wall.hosts import place

    world = MpiWorld()
    try:
        comm = Comm(world.wire, Log(world.rank), range(world.size))
        comm.checks = False
        measured = measure(comm, world.wire.exchange(place()))
        model = fit(measured)
        if world.rank == 0:
            hosts = ", ".join(f"{len(host)} ranks" for host in measured.hosts)
            _write(output, cluster_file(model, f"measured between {world.size} ranks on hosts of {hosts}"))
        world.wire.exchange(None)
        cluster = load_cluster(output, {}, world.size) if world.rank == 0 else None
        took_s = least(comm.wire, lambda: [_ring_s(comm, size) for size in CHECKED])
        rows = [] if cluster is None else [
            _beside(cluster, comm.size, *each) for each in zip(CHECKED, took_s.tolist(), strict=True)
        ]  # fmt: skip
        if world.rank == 0:
            _tell(output, model, rows, as_json)
    except BaseException as error:
        end_job(world, error)
        raise


def _ring_s(comm: Comm, nbytes: int) -> float:
    """Return what a ring all-reduce really takes."""
    import numpy as np

    from emu.calibration.measure import time_s
    from emu.collectives import find

    ring = find("all_reduce", "ring")
    x = np.ones(nbytes // 4, np.float32)  # as what was measured: memory that is not yet written to is faster read
    return max(comm.wire.exchange(time_s(comm, lambda: ring(comm, x))))


def _beside(cluster: Cluster, ranks: int, nbytes: int, took_s: float) -> dict[str, Any]:
    """Return what a ring all-reduce took, and what the calibrated cluster makes of it."""
    import numpy as np

    from emu.collectives import find
    from emu.comm.local import run_dry
    from emu.engine import resolve

    ring = find("all_reduce", "ring")
    _, trace = run_dry(lambda dry: ring(dry, dry.empty(nbytes // 4, np.dtype(np.float32))), ranks)
    emulated_s = resolve(trace, cluster, profile="mpi").end_s
    error_pct = 100 * (emulated_s - took_s) / took_s
    return {"bytes": nbytes, "measured_s": took_s, "emulated_s": emulated_s, "error_pct": error_pct}


def _tell(output: str, model: Model, rows: list[dict[str, Any]], as_json: bool) -> None:
    from dataclasses import asdict

    from emu.report.tables import grid, render
    from emu.units import format_bytes, format_time

    if as_json:
        click.echo(json.dumps({"output": output, **asdict(model), "all_reduce": rows}, indent=1))
        return
    for where, fitted in (("within a host", model.inside), ("between hosts", model.between)):
        if fitted is not None:
            click.echo(_told(where, fitted))
    click.echo(render(grid(
        "ring all-reduce, really and on the calibrated cluster (--profile mpi)",
        ("bytes", "measured", "emulated", "error"),
        [(format_bytes(r["bytes"]), format_time(r["measured_s"]), format_time(r["emulated_s"]),
          f"{r['error_pct']:+.1f} %") for r in rows],
    )))  # fmt: skip
    click.echo(f"{output}: emu train --cluster {output} --profile mpi")


def _told(where: str, fitted: Any) -> str:
    from emu.units import format_bandwidth, format_time

    return (
        f"{where}: {format_time(fitted.latency_s)} + n / ({format_bandwidth(fitted.bandwidth_bytes_per_s)}), "
        f"off by {fitted.median_error_pct:.1f} % (median), {fitted.worst_error_pct:.0f} % (worst)"
    )


def _write(path: str, text: str) -> None:
    from emu.trace import write_whole

    write_whole(Path(path), text.encode())


def _without_ranks(argv: list[str]) -> list[str]:
    from emu.cli.train import _without_ranks as without

    return without(argv)
