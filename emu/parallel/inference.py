"""Inference: forward passes of one replica on one GPU, nothing kept for backward."""

from __future__ import annotations

from typing import Any

from emu.gpu import DryArray, Gpu
from emu.parallel.plan import Plan
from emu.parallel.tasks import Build, find_task


def infer(gpu: Gpu, plan: Plan, batch: int) -> dict[str, Any]:
    """Run one batch forward, without bytes; return the GPU's memory by purpose."""
    task = find_task(plan.model, dry=True).with_length(plan.length)
    dataset = task.load(plan.storage) if task.load else None
    model = task.make(dataset, Build(plan.storage, plan.math))
    example, _, dtype = task.example(dataset)
    model.allocate(gpu)
    x = gpu.array(DryArray.of((batch, *example), dtype if dtype == "int32" else plan.storage), name="batch to device")
    with gpu.step(0):
        model.forward(gpu, x, keep=False)
    return {"peak_bytes": gpu.memory.peak_bytes, "at_peak": dict(gpu.memory.at_peak)}
