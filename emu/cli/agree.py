"""`emu agree`: run a program under both clocks and compare each operation."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emu.cli.options import cluster_options, make_cluster, profile_option
from emu.errors import ConfigError

if TYPE_CHECKING:
    from emu.cluster import Cluster
    from emu.wall.agreement import Agreement
    from emu.wall.run import Pace


@click.command()
@click.argument("program", type=click.Path())
@click.option("-n", "ranks", type=click.IntRange(min=1), help="Start mpirun with so many ranks.")
@click.option("--hostfile", type=click.Path(), help="Hosts for mpirun, with -n.")
@cluster_options
@click.option("--dilation", default="auto", show_default=True, metavar="N|auto", help="As of --clock wall.")
@profile_option
@click.option("--plot", metavar="FILE", help="Draw each operation's end under both clocks (.png, .svg, .pdf).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def agree(
    program: str, ranks: int | None, hostfile: str | None, cluster: str | None, link: str | None,
    settings: tuple[str, ...], dilation: str, profile: str, plot: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Run PROGRAM, a Python file with `main(gpu)`, live, and compare it with the virtual clock.

    Start it with mpirun (`mpirun -n 4 emu agree program.py`), or let it start mpirun (`emu agree -n 4 program.py`).
    """
    from emu.comm.mpi_start import start_mpirun, started_by_mpirun
    from emu.report.plots import plot_format
    from emu.wall.run import read_pace

    pace = read_pace(dilation)
    main = load_program(program)
    if plot is not None:
        plot_format(plot)
    if not started_by_mpirun():
        if ranks is None:
            raise ConfigError("ranks: live ranks are processes; start with mpirun -n 4, or give -n 4")
        make_cluster(cluster, link, settings, ranks)
        start_mpirun(ranks, [sys.executable, "-m", "emu", *_without_ranks(sys.argv[1:])], hostfile)
    found = _agree(main, lambda size: make_cluster(cluster, link, settings, size), pace, profile)
    if found is None:
        return
    agreement, lateness = found
    if plot is not None:
        _plot(agreement, plot)
    if as_json:
        click.echo(json.dumps({"program": program, **agreement.json(), "wall_clock": lateness.json()}, indent=1))
    else:
        click.echo(f"{_text(agreement)}\n{lateness.text()}")


def load_program(path: str) -> Callable[[Any], Any]:
    """Return the function main(gpu) of a Python file. Raise ConfigError where there is none."""
    if not Path(path).is_file():
        raise ConfigError(f"program: a Python file is expected, got {path}, which is not there")
    main = runpy.run_path(path).get("main")
    if not callable(main):
        raise ConfigError(f"program: {path} must define main(gpu), got none; see the README's first example")
    return main


def _agree(main: Callable[[Any], Any], make: Callable[[int], Cluster], pace: Pace, profile: str) -> Any:
    """Run as one rank; return the agreement and the lateness on rank 0, None elsewhere."""
    from emu.comm.mpi_world import MpiWorld
    from emu.program import end_job, mpi_trace, wall_gpu, watch
    from emu.wall.agreement import compare

    world = MpiWorld()
    try:
        cluster = make(world.size)
        wall = wall_gpu(world, cluster, pace, profile=profile)
        watch(world, wall.gpu.comm.log)
        main(wall.gpu)
        lateness = wall.end()
        trace, ended = mpi_trace(world, wall.gpu, cluster), world.gather(wall.ended())
        result = None
        if trace is not None and ended is not None:
            result = compare(trace, cluster, profile, ended), lateness
        world.tell(None)
        return result
    except BaseException as error:
        end_job(world, error)
        raise
    finally:
        world.watch.stop()


def _text(agreement: Agreement) -> str:
    from emu.report.tables import grid, render
    from emu.units import format_time

    rows = [
        (line.operation, f"{line.count:,}", format_time(line.mean_s), _signed(line.median_difference_s),
         _signed(line.worst_difference_s))
        for line in agreement.lines
    ]  # fmt: skip
    table = render(grid(
        "operations under both clocks: when they ended, wall minus virtual (emulated time)",
        ("operation", "count", "takes", "median difference", "worst"), rows,
    ))  # fmt: skip
    total = (
        f"all: virtual {format_time(agreement.virtual_s)}, wall {format_time(agreement.wall_s)} "
        f"({agreement.error_pct:+.2f} %); {agreement.early} operations early"
    )
    if agreement.amplifies:
        total += (
            f"\nthis program amplifies tiny differences (by {agreement.spread_pct:.2g} % of the run): one by one its "
            f"operations have no right answer; by distribution they differ by {agreement.distribution_error_pct:.2g} %"
        )
    return f"{table}\n{total}"


def _signed(seconds: float) -> str:
    from emu.units import format_time

    return ("-" if seconds < 0 else "+") + format_time(abs(seconds))


def _plot(agreement: Agreement, path: str) -> None:
    from emu.report.plots import write_line_plot

    ends = sorted(pair for pair in agreement.ends if min(pair) > 0)
    virtual, wall = [v for v, _ in ends], [w for _, w in ends]
    write_line_plot(
        {"virtual clock": (virtual, virtual), "wall clock": (virtual, wall)}, path,
        "end of an operation under the virtual clock", "its end under each clock",
    )  # fmt: skip


def _without_ranks(argv: list[str]) -> list[str]:
    from emu.cli.train import _without_ranks as without

    return without(argv)
