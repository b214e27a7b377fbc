"""What to change in a plan that does not fit, and what that would save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from emu.errors import DeviceOutOfMemory
from emu.gpu import Gpu
from emu.parallel.plan import Plan
from emu.units import format_bytes


@contextmanager
def advised(gpu: Gpu, plan: Plan) -> Iterator[None]:
    """Let a DeviceOutOfMemory inside say what to change in the plan."""
    try:
        yield
    except DeviceOutOfMemory as error:
        if str(error).startswith("host memory"):
            raise
        advice = savings(plan, plan.data_parallel(gpu.size), gpu.memory.live)
        advice = advice or ["take more GPUs, so that each keeps less, or GPUs with more memory"]
        raise DeviceOutOfMemory(f"{str(error).rsplit(': ', 1)[0]}; {'; or '.join(advice)}") from None


def savings(plan: Plan, replicas: int, live: Mapping[str, int]) -> list[str]:
    """Return changes of the plan with the bytes that each would save of what is live now, the largest first.

    >>> savings(Plan(strategy="ddp"), 4, {"optimizer state": 8000, "gradients": 4000, "weights": 4000})
    ['--strategy zero3 saves 12 kB', '--strategy zero2 saves 9 kB', '--strategy zero1 saves 6 kB']
    """
    saved: list[tuple[float, str]] = []
    stage = int(plan.strategy[-1]) if plan.strategy.startswith("zero") else 0
    share = 1 - 1 / replicas
    total = 0.0
    for level, purpose in enumerate(("optimizer state", "gradients", "weights"), start=1):
        if level > stage:
            total += share * live.get(purpose, 0)
            saved.append((total, f"--strategy zero{level}"))
    activations = live.get("activations", 0)
    if activations:
        if not plan.recompute:
            saved.append((0.8 * activations, "--recompute"))
        if plan.pp == 1:
            saved.append((activations / 2, f"--micro-batches {2 * plan.micro_batches}"))
    if stage and not plan.offload:
        saved.append((float(live.get("optimizer state", 0)), "--offload"))
    if live.get("gathered parameters", 0):
        saved.append((live["gathered parameters"] / 2, "a lower --stage3-max-live-parameters"))
    kept = sorted(((n, what) for n, what in saved if n >= 1), reverse=True)
    about = "about " if activations else ""
    return [f"{what} saves {about}{format_bytes(round(n))}" for n, what in kept[:4]]
