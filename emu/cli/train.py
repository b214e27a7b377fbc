"""`emu train`: train a model on emulated GPUs, and tell where each step goes."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emu.cli.dry import MOST_RANKS, record, speed, timed
from emu.cli.options import cluster_options, drop_if_empty, folder_for, make_cluster, profile_option, ranks_options
from emu.cli.plan_options import plan_options, read_plan, with_algorithm
from emu.cli.provenance import provenance
from emu.cli.wall_options import read_pace, wall_options
from emu.errors import ConfigError

if TYPE_CHECKING:
    from emu.cluster import Cluster
    from emu.comm.mpi_world import MpiWorld
    from emu.parallel.training import Outcome, Plan
    from emu.trace import Trace
    from emu.wall.lateness import Told
    from emu.wall.run import Pace, Wall


DRY_STEPS = 2  # of a small model on many GPUs: the first, and one with the buckets that all others have
MOST_COMPARED = 256  # ranks of a run that is timed on other links without being asked


@dataclass(frozen=True)
class Options:
    """What the command line asks for beyond the plan."""

    cluster: str | None
    link: str | None
    settings: tuple[str, ...]
    profile: str
    device: str
    as_json: bool
    output: str | None
    what_if: bool | None  # None: where it takes seconds
    one_rank: bool
    pace: Pace | None = None  # of the wall clock; None: the virtual clock
    steps_asked: bool = True


@click.command()
@ranks_options
@click.option("--dry", is_flag=True, help="Run without bytes, for the time: -n ranks, or all GPUs of the cluster.")
@cluster_options
@plan_options
@profile_option
@click.option("--device", default="numpy", show_default=True, metavar="numpy|cupy", help="Where buffers really live.")
@wall_options
@click.option("--what-if/--no-what-if", default=None, help="Time the same run on other links [up to 256 GPUs].")
@click.option("--one-rank/--no-one-rank", default=True, help="Compare with the same training on one rank.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--output", metavar="DIR", help="Where the trace, summary and timeline go [emu-runs/train-N].")
def train(
    ranks: int | None, hostfile: str | None, local: int | None, dry: bool,
    cluster: str | None, link: str | None, settings: tuple[str, ...],
    profile: str, device: str, clock: str, dilation: str | None, compute: str | None, speedup: float | None,
    what_if: bool | None, one_rank: bool, as_json: bool, output: str | None, **asked: Any,
) -> None:  # fmt: skip
    """Train a model on emulated GPUs: real gradients, emulated time.

    Start it with mpirun (`mpirun -n 4 emu train`), let it start mpirun (`emu train -n 4`), or run all ranks in this
    process (`emu train --local 4`).
    """
    from emu.comm.mpi_start import start_mpirun, started_by_mpirun

    steps_asked = asked["steps"] is not None
    plan = read_plan(asked)
    pace = read_pace(clock, dilation, compute, speedup)
    options = Options(cluster, link, settings, profile, device, as_json, output, what_if, one_rank, pace, steps_asked)
    if pace is not None and (dry or local is not None):
        raise ConfigError("--clock wall: ranks that are processes are expected, got --local or --dry; use mpirun or -n")
    if ranks is not None and local is not None:
        raise ConfigError(f"ranks: one of -n and --local is expected, got -n {ranks} and --local {local}")
    if started_by_mpirun():
        if dry or ranks is not None or local is not None:
            raise ConfigError("ranks: under mpirun its own -n counts; leave -n, --local and --dry out")
        _train_mpi(plan, options)
    elif dry:
        _train_here(plan, options, ranks or local, dry=True)
    elif ranks is not None:
        _check(plan, options, ranks, dry=False)
        start_mpirun(ranks, [sys.executable, "-m", "emu", *_without_ranks(sys.argv[1:])], hostfile)
    elif local is None:
        raise ConfigError("ranks: at least 2 are expected, got 1; mpirun -n 4 emu train, or emu train --local 4")
    else:
        _train_here(plan, options, local, dry=False)


def _without_ranks(argv: list[str]) -> list[str]:
    """Return the arguments without -n and --hostfile, which mpirun gets."""
    kept, skip = [], False
    for word in argv:
        if skip:
            skip = False
        elif word in ("-n", "--hostfile"):
            skip = True
        elif not (word.startswith("--hostfile=") or (word.startswith("-n") and word[2:].isdigit())):
            kept.append(word)
    return kept


def _check(plan: Plan, options: Options, ranks: int | None, dry: bool) -> tuple[Plan, Cluster]:
    """Check everything that can be checked before any work; return the plan without open questions, and the cluster."""
    from emu.engine.profiles import find_profile
    from emu.parallel.training import check

    find_profile(options.profile)
    cluster = make_cluster(options.cluster, options.link, options.settings, ranks)
    ranks = ranks or cluster.size
    if ranks < 2:
        raise ConfigError(f"ranks: at least 2 are expected, got {ranks}; mpirun -n 4 emu train")
    plan = with_algorithm(plan, cluster, ranks)
    check(plan, ranks, dry)
    if plan.checkpoint is not None:
        folder_for(plan.checkpoint, "checkpoint", "--checkpoint")
    return plan, cluster


def _train_here(plan: Plan, options: Options, ranks: int | None, dry: bool) -> None:
    from dataclasses import replace

    from emu.parallel.training import train as program
    from emu.program import run_here

    began = time.perf_counter()
    plan, cluster = _check(plan, options, ranks, dry)
    ranks = ranks or cluster.size
    folder = folder_for(options.output, "train")
    if dry and ranks > MOST_RANKS and not options.steps_asked:
        plan = replace(plan, steps=min(plan.steps, DRY_STEPS))
    if dry:
        outcome, trace = record(plan, cluster, ranks, options.profile, _program(plan))
        _report(plan, options, cluster, folder, outcome, trace, began, dry=True)
        return
    told = _Progress(plan)
    outcomes, trace, _ = run_here(
        lambda gpu: program(gpu, plan, told if gpu.rank == 0 else None),
        cluster, ranks, device=options.device, profile=options.profile, program=_program(plan),
    )  # fmt: skip
    _report(plan, options, cluster, folder, outcomes[0], trace, began)


def _train_mpi(plan: Plan, options: Options) -> None:
    """Train as one rank of an MPI job; rank 0 tells."""
    from emu.comm.mpi_world import MpiWorld
    from emu.parallel.training import train as program
    from emu.program import end_job, mpi_gpu, mpi_trace, watch

    began = time.perf_counter()
    world, folder = MpiWorld(), Path()
    try:
        plan, cluster = _check(plan, options, world.size, dry=False)
        if world.rank == 0:
            folder = folder_for(options.output, "train")
        wall = _begin_wall(world, cluster, options)
        gpu = wall.gpu if wall else mpi_gpu(world, cluster, options.device, options.profile)
        watch(world, gpu.comm.log)
        outcome = program(gpu, plan, _Progress(plan, wall) if world.rank == 0 else None)
        lateness = wall.end() if wall else None
        trace = mpi_trace(world, gpu, cluster, _program(plan))
        if trace is not None:
            _report(plan, options, cluster, folder, outcome, trace, began, lateness)
        world.tell(None)
    except BaseException as error:
        drop_if_empty(folder)
        end_job(world, error)
        raise
    finally:
        world.watch.stop()


def _begin_wall(world: MpiWorld, cluster: Cluster, options: Options) -> Wall | None:
    """Seat this rank at the wall clock's table, if that is the clock."""
    if options.pace is None:
        return None
    from emu.program import wall_gpu

    return wall_gpu(world, cluster, options.pace, options.device, options.profile)


class _Progress:
    """Shows the steps on the terminal's standard error, about ten times a run; live, also how long the rest takes."""

    def __init__(self, plan: Plan, wall: Wall | None = None) -> None:
        self.steps, self.wall = plan.steps, wall
        self.every = max(1, plan.steps // 10)

    def __call__(self, step: int, loss: float) -> None:
        if (step + 1) % self.every == 0 or step + 1 == self.steps:
            told = "" if math.isnan(loss) else f"  loss {loss:.4f} on rank 0's part of the batch"
            print(f"step {step + 1}/{self.steps}{told}{self._left(step + 1)}", file=sys.stderr, flush=True)

    def _left(self, done: int) -> str:
        if self.wall is None or done == self.steps:
            return ""
        left_s = self.wall.run_wall_s * (self.steps - done) / done
        return f"  dilation {self.wall.dilation:g}, about {left_s:.0f} s to go"


def _program(plan: Plan) -> dict[str, Any]:
    from dataclasses import asdict

    return {"name": "train", **asdict(plan)}


def _report(
    plan: Plan, options: Options, cluster: Cluster, folder: Path, outcome: Outcome, trace: Trace, began: float,
    lateness: Told | None = None, dry: bool = False,
) -> None:
    """Time the trace, compare, write the files, and print."""
    from emu.program import replay
    from emu.report import training as told
    from emu.report.perfetto import write_perfetto
    from emu.report.summary import write_json

    timeline = (timed if dry else replay)(trace, cluster, profile=options.profile)
    small = trace.world_size <= MOST_RANKS
    alone = _one_rank(plan, options, cluster) if options.one_rank and outcome.losses else None
    links = _links(plan, trace, cluster, outcome) if _compares(plan, options, trace) else []
    if small or options.output is not None:
        trace.save(folder / "trace.emu")
    if small:
        write_perfetto(timeline, folder / "timeline.json")
    found = told.summary(plan, outcome, alone, timeline, links, {
        "cluster": _cluster_told(cluster, options),
        "output": str(folder),
        "trace": str(folder / "trace.emu"),
        "wall_s": time.perf_counter() - began,
        **provenance(),
        **({"speed": speed(plan, cluster, timeline)} if dry else {}),
        **({"wall_clock": lateness.json()} if lateness else {}),
    })  # fmt: skip
    write_json(found, folder / "summary.json")
    text = told.text(found, timeline)
    if lateness is not None:
        text = lateness.beside(text)
    print(json.dumps(found, indent=1) if options.as_json else f"\n{text}")


def _cluster_told(cluster: Cluster, options: Options) -> dict[str, Any]:
    from emu.units import format_bandwidth, format_time

    link = cluster.closed_form(0, 1)
    rate, delay = format_bandwidth(link.bandwidth_bytes_per_s), format_time(link.alpha_s)
    return {
        "name": cluster.name,
        "gpu": cluster.gpu(0).name,
        "gpus": cluster.size,
        "sha256": cluster.sha256,
        "profile": options.profile,
        "link": f"{cluster.route(0, 1).transport}, {rate} and {delay} one way",
        "settings": list(options.settings),
    }


def _one_rank(plan: Plan, options: Options, cluster: Cluster) -> Outcome:
    """Train the same batches on one rank of this process."""
    from dataclasses import replace

    from emu.parallel.training import train as program
    from emu.program import run_here

    alone = replace(
        plan, strategy="ddp", algorithm="ring", server="shared", tp=1, pp=1, micro_batches=1, hook="none",
        deterministic=False, checkpoint=None, resume=False, offload=False, recompute=False,
    )  # fmt: skip
    return run_here(lambda gpu: program(gpu, alone), cluster, 1, device=options.device)[0][0]


def _compares(plan: Plan, options: Options, trace: Trace) -> bool:
    """Say whether the run is compared on other links: its plan can be, and it is asked for or small enough."""
    wanted = options.what_if
    if wanted is None:
        wanted = trace.world_size <= MOST_COMPARED
    plain = plan.tp * plan.pp * plan.micro_batches == 1 and plan.hook == "none"
    return wanted and plain and plan.strategy in ("ddp", "ps")


def _links(plan: Plan, trace: Trace, cluster: Cluster, outcome: Outcome) -> list[dict[str, Any]]:
    """Time both strategies on other links; the one that was not trained is recorded dry."""
    from dataclasses import replace

    from emu.parallel.training import train as program
    from emu.plan.links import compare_links
    from emu.program import run_here

    other = replace(plan, strategy="ps" if plan.strategy == "ddp" else "ddp", algorithm="ring", server="shared")
    _, recorded, _ = run_here(lambda gpu: program(gpu, other), cluster, trace.world_size, dry=True)
    traces = {plan.strategy: trace, other.strategy: recorded}
    return compare_links(
        {name: traces[name] for name in ("ddp", "ps")}, outcome.parameters, plan.dtype, cluster.gpu(0).name
    )


