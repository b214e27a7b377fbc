"""`emu run`: run a script that was written for mpi4py, under emulation."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emu.cli.options import cluster_options, folder_for, make_cluster, profile_option, ranks_options
from emu.cli.provenance import provenance
from emu.cli.wall_options import read_pace
from emu.errors import ConfigError, EmuError

if TYPE_CHECKING:
    from emu.face.launch import Ended, Plan
    from emu.wall.lateness import Told
    from emu.wall.run import Pace

DEADLINE_S = {True: 30.0, False: 600.0}  # interactive: somebody sits there and waits


@dataclass(frozen=True)
class Options:
    """What the command line asks for beyond the script."""

    as_json: bool
    output: str | None
    summary: bool
    deadline_s: float
    began: float
    pace: Pace | None = None  # of the wall clock; None: the virtual clock


@click.command(context_settings={"allow_interspersed_args": False})
@ranks_options
@cluster_options
@click.option("--compute", default="none", show_default=True, type=click.Choice(["none", "measured"]),
              help="Cost the script's computation by its processor time between MPI calls, or leave it out.")
@click.option("--speedup", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True,
              help="With --compute measured: how many times faster the emulated GPU computes.")
@click.option("--clock", default="virtual", show_default=True, metavar="virtual|wall",
              help="Emulated time, or live: every message really held back.")
@click.option("--dilation", metavar="N|auto", help="Seconds of the wall clock for one emulated second [1].")
@profile_option
@click.option("--deadline", help="Give up a wait after this time [30 s in a terminal, 600 s in jobs].")
@click.option("--summary/--no-summary", default=True, help="Tell at the end where the time went.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; the script prints to standard error.")
@click.option("--output", metavar="DIR", help="Where the trace, summary and timeline go [emu-runs/run-N].")
@click.argument("script", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    ranks: int | None, hostfile: str | None, local: int | None,
    cluster: str | None, link: str | None, settings: tuple[str, ...], compute: str, speedup: float, clock: str,
    dilation: str | None, profile: str, deadline: str | None, summary: bool, as_json: bool,
    output: str | None, script: str, arguments: tuple[str, ...],
) -> None:  # fmt: skip
    """Run an mpi4py SCRIPT with its ARGUMENTS on emulated GPUs: real messages, emulated time.

    Start it with mpirun (`mpirun -n 4 emu run script.py`), let it start mpirun (`emu run -n 4 script.py`), or run all
    ranks in this process (`emu run --local 4 script.py`).
    """
    from emu.comm.mpi_start import start_mpirun, started_by_mpirun
    from emu.face.launch import Plan
    from emu.face.script import read_script
    from emu.units import parse_time

    began = time.perf_counter()
    if ranks is not None and local is not None:
        raise ConfigError(f"ranks: one of -n and --local is expected, got -n {ranks} and --local {local}")
    code = read_script(script, arguments)
    deadline_s = DEADLINE_S[sys.stderr.isatty()]
    if deadline is not None:
        deadline_s = parse_time(deadline, "--deadline", such_as="30 s")
    pace = read_pace(clock, dilation, None, None)
    options = Options(as_json, output, summary, deadline_s, began, pace)

    def plan(size: int) -> Plan:
        emulated = make_cluster(cluster, link, settings, size)
        return Plan(code, emulated, profile, speedup if compute == "measured" else None)

    if started_by_mpirun():
        if ranks is not None or local is not None:
            raise ConfigError("ranks: under mpirun its own -n counts; leave -n and --local out")
        _run_mpi(plan, options)
    elif ranks is not None:
        plan(ranks)
        start_mpirun(ranks, [sys.executable, "-m", "emu", *_without_ranks(sys.argv[1:], script)], hostfile)
    elif local is None:
        raise ConfigError(
            f"ranks: how many is expected, got none; mpirun -n 4 emu run {script}, or emu run --local 4 {script}"
        )
    else:
        if pace is not None:
            raise ConfigError("--clock wall: ranks that are processes are expected, got --local; use mpirun or -n")
        _run_here(plan(local), local, options)


def _without_ranks(argv: list[str], script: str) -> list[str]:
    """Return the arguments without -n and --hostfile, which mpirun gets; what follows the script stays."""
    from emu.cli.train import _without_ranks as without

    end = argv.index(script)
    return [*without(argv[:end]), *argv[end:]]


def _run_here(plan: Plan, ranks: int, options: Options) -> None:
    from emu.face.launch import run_here
    from emu.face.script import end_of
    from emu.face.session import JobAborted

    folder = _folder(options)
    try:
        with _script_output(options):
            ended = run_here(plan, ranks)
    except EmuError:
        raise
    except JobAborted as aborted:
        sys.exit(aborted.status)
    except Exception as error:
        sys.stdout.flush()
        sys.stderr.write(end_of(plan.script, error))
        sys.exit(1)
    _report(plan, options, folder, ended)


def _run_mpi(make_plan: Any, options: Options) -> None:
    """Run as one rank of an MPI job; rank 0 tells."""
    from emu.comm.mpi_world import MpiWorld
    from emu.comm.watch import Watch
    from emu.face.launch import run_as_rank
    from emu.face.session import JobAborted
    from emu.program import end_job, watch

    world = MpiWorld(Watch(options.deadline_s))
    status = 0
    plan = None
    try:
        plan = make_plan(world.size)
        folder = _folder(options) if world.rank == 0 else None
        lateness = None
        with _script_output(options):
            if options.pace is None:
                ended = run_as_rank(plan, world, lambda log: watch(world, log))
            else:
                ended, lateness = _run_live(plan, world, options.pace)
        if ended.trace is not None:
            _report(plan, options, folder, ended, leave=False, lateness=lateness)
        status = world.tell(ended.status)
    except JobAborted as aborted:
        sys.stdout.flush()
        world.abort(aborted.status)
    except BaseException as error:
        sys.stdout.flush()
        if plan is not None and not isinstance(error, EmuError):
            _tell_script_error(world, plan, error)
        end_job(world, error)
        raise
    finally:
        world.watch.stop()
    sys.exit(status)


def _run_live(plan: Plan, world: Any, pace: Pace) -> tuple[Ended, Told]:
    from emu.program import end_job, watch
    from emu.wall.script import run_live

    return run_live(plan, world, lambda log: watch(world, log), pace, lambda error: end_job(world, error))


def _tell_script_error(world: Any, plan: Plan, error: BaseException) -> None:
    from emu.face.script import end_of

    if world.size == 1:
        sys.stderr.write(end_of(plan.script, error))
        sys.exit(1)
    print(f"emu: rank {world.rank} raised:\n{end_of(plan.script, error)}", file=sys.stderr, flush=True)
    world.abort(1)


@contextmanager
def _script_output(options: Options) -> Iterator[None]:
    """Let the script print to standard error where standard output is for JSON."""
    if options.as_json:
        with redirect_stdout(sys.stderr):
            yield
    else:
        yield
    sys.stdout.flush()


def _folder(options: Options) -> Path | None:
    return folder_for(options.output, "run") if options.summary or options.output or options.as_json else None


def _report(
    plan: Plan, options: Options, folder: Path | None, ended: Ended, leave: bool = True, lateness: Told | None = None
) -> None:
    """Time the trace, write the files, print the summary; exit with the script's status."""
    from emu.program import replay
    from emu.report import script as told

    if folder is not None and ended.trace is not None:
        timeline = replay(ended.trace, plan.cluster, profile=plan.profile)
        found = told.summary(plan, ended, timeline, folder)
        found |= {"wall_s": time.perf_counter() - options.began, **provenance()}
        if lateness is not None:
            found["wall_clock"] = lateness.json()
        told.write(found, timeline, ended.trace, folder)
        text = told.text(found, timeline) if lateness is None else lateness.beside(told.text(found, timeline))
        print(json.dumps(found, indent=1) if options.as_json else f"\n{text}", flush=True)
    if leave:
        sys.exit(ended.status)
