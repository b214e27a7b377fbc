"""What a training step computes, and how fast that is: FLOPs of the model, not of what is computed again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from emu.nn.describe import describe
from emu.parallel.plan import Plan
from emu.parallel.tasks import Build, find_task


@dataclass(frozen=True)
class Throughput:
    """FLOPs of the model in a step, and per GPU and second; examples a second."""

    model_flops: float
    flops_per_gpu_per_s: float
    examples_per_s: float
    peak_share: float


def throughput(plan: Plan, step_s: float, gpus: int, peak_flops: float) -> Throughput:
    """Return what a step of `step_s` seconds achieves; `peak_flops` is a GPU's in the plan's precision."""
    flops = _flops(plan.model, plan.length, plan.storage) * plan.batch
    rate = flops / step_s / gpus
    return Throughput(flops, rate, plan.batch / step_s, rate / peak_flops)


@lru_cache(maxsize=8)
def _flops(name: str, length: int | None, storage: str) -> float:
    """Return FLOPs forward and backward for one example, nothing recomputed, whole on one GPU."""
    task = find_task(name, dry=True).with_length(length)
    dataset = task.load(storage) if task.load else None
    model = task.make(dataset, Build(storage))
    example, _, dtype = task.example(dataset)
    layers = describe(model, (1, *example), dtype if dtype == "int32" else storage)
    return sum(layer.forward_flops + layer.backward_flops for layer in layers)
