"""`emu train --dry` at real sizes: a step's time, FLOP/s a GPU, exposed communication and memory, with progress."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emu.cluster import Cluster
    from emu.parallel.plan import Plan
    from emu.parallel.training import Outcome
    from emu.timeline import Timeline
    from emu.trace import Trace

MOST_RANKS = 64  # up to so many, every message is logged and all files are written
LINE_EVERY_S = 15.0  # without a terminal


def record(plan: Plan, cluster: Cluster, ranks: int, profile: str, program: dict[str, Any]) -> tuple[Outcome, Trace]:
    """Run without bytes, with a progress bar."""
    from emu.parallel.training import train
    from emu.program import run_here

    done = [0]

    def step_done(step: int, loss: float) -> None:
        done[0] += 1

    with _bar(f"recording {ranks} GPUs", plan.steps + 1, lambda: done[0]):
        outcomes, trace, _ = run_here(
            lambda gpu: train(gpu, plan, step_done if gpu.rank == 0 else None),
            cluster, ranks, dry=True, profile=profile, program=program,
        )  # fmt: skip
    return outcomes[0], trace


def timed(trace: Trace, cluster: Cluster, profile: str) -> Timeline:
    """Give the trace its times; of thousands of GPUs messages are not logged one by one."""
    from emu.program import replay
    from emu.timeline.volumes import message_count

    detail = "flows" if trace.world_size <= MOST_RANKS else "spans"
    messages = message_count(trace)
    engines: list[Any] = []
    with _bar(f"timing {messages:,} messages", messages, lambda: engines[0].messages if engines else 0):
        timeline = replay(trace, cluster, profile=profile, detail=detail, watch=engines.append)
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
def _bar(title: str, total: int, done: Callable[[], int]) -> Iterator[None]:
    """Show how far something is while it runs, by what `done` tells: a bar on a terminal, else a line now and then."""
    ended = threading.Event()
    show = _show_bar if sys.stderr.isatty() else _show_lines
    thread = threading.Thread(target=show, args=(title, total, done, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _show_bar(title: str, total: int, done: Callable[[], int], ended: threading.Event) -> None:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)
        while not ended.wait(0.2):
            progress.update(task, completed=done())
        progress.update(task, completed=total)


def _show_lines(title: str, total: int, done: Callable[[], int], ended: threading.Event) -> None:
    began = time.perf_counter()
    while not ended.wait(LINE_EVERY_S):
        print(f"{title}: {100 * done() / max(1, total):.0f} %", file=sys.stderr, flush=True)
    print(f"{title}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
