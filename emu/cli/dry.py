"""`emu train --dry` at real sizes: a step's time, FLOP/s a GPU, exposed communication and memory, with progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emu.cluster import Cluster
    from emu.parallel.plan import Plan
    from emu.parallel.training import Outcome
    from emu.timeline import Timeline
    from emu.trace import Trace

MOST_RANKS = 64  # up to so many, every message is logged and all files are written


def record(plan: Plan, cluster: Cluster, ranks: int, profile: str, program: dict[str, Any]) -> tuple[Outcome, Trace]:
    """Run without bytes, with a progress bar."""
    from emu.parallel.training import train
    from emu.program import run_here

    with _bar(f"recording {ranks} GPUs", plan.steps + 1) as advance:
        outcomes, trace, _ = run_here(
            lambda gpu: train(gpu, plan, (lambda step, loss: advance()) if gpu.rank == 0 else None),
            cluster, ranks, dry=True, profile=profile, program=program,
        )  # fmt: skip
        advance()
    return outcomes[0], trace


def timed(trace: Trace, cluster: Cluster, profile: str) -> Timeline:
    """Give the trace its times; of thousands of GPUs messages are not logged one by one."""
    from emu.program import replay

    detail = "flows" if trace.world_size <= MOST_RANKS else "spans"
    rows = sum(len(each) for each in trace.ranks)
    with _bar(f"timing {rows:,} operations", None):
        timeline = replay(trace, cluster, profile=profile, detail=detail)
        timeline.step  # noqa: B018  computed here, under the bar
    return timeline


def speed(plan: Plan, cluster: Cluster, timeline: Timeline) -> dict[str, Any]:
    """Return FLOP/s and examples a second of the last step."""
    from emu.plan.throughput import throughput

    gpu = cluster.gpu(0)
    peak = gpu.peak(plan.dtype)
    step_s = timeline.steps()[-1]["time_s"]
    made = throughput(plan, step_s, timeline.world_size, peak)
    return {
        "model_flops_per_step": made.model_flops,
        "flops_per_gpu_per_s": made.flops_per_gpu_per_s,
        "share_of_peak": made.peak_share,
        "examples_per_s": made.examples_per_s,
        "last_step_s": step_s,
    }


@contextmanager
def _bar(title: str, total: int | None) -> Iterator[Any]:
    """Show a progress bar on a terminal; one line and the seconds where there is none."""
    if not sys.stderr.isatty():
        began = time.perf_counter()
        yield lambda: None
        print(f"{title}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=False) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)
        if total is None:
            progress.update(task, total=1, completed=1)
