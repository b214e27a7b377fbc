"""Softmax cross-entropy over logits whose classes are split over ranks: three numbers a row travel, never logits.

FLOPs and bytes are those of the loss in one piece, over a part's classes.
Source: Shoeybi et al., "Megatron-LM", 2019, section 3 (the cross-entropy fused with the split output embedding).
"""

from __future__ import annotations

from typing import Any

from emu.errors import ConfigError

from .data import share
from .kernel import Array, Cost, Device, dtype_name, launch, rows, stats_dtype
from .loss import BACKWARD_FLOPS, FORWARD_FLOPS
from .split import Split


class SplitCrossEntropy:
    """What SoftmaxCrossEntropy tells, on every part, from the logits of each part's classes."""

    name = "cross-entropy"

    def __init__(self, classes: int, split: Split) -> None:
        if classes < split.parts:
            raise ConfigError(f"loss: at least one class a part is expected, got {classes} for {split.parts} parts")
        self.split = split
        self.first = share(classes, split.part, split.parts).start

    def forward(self, gpu: Device, logits: Array, targets: Array, total: int | None = None) -> tuple[Array, Any]:
        """Return the mean loss over `total` rows and the number of right predictions (the same on every part), and
        what backward needs. `logits` has shape (..., a part's classes)."""
        count = logits.size // logits.shape[-1]
        total = total or max(1, count)
        name, dtype, row_dtype = f"{self.name} forward", dtype_name(logits), stats_dtype(logits)
        top = gpu.empty((count,), row_dtype, purpose="activations")
        cost = Cost(logits.size, logits.nbytes + top.nbytes, dtype)
        launch(gpu, _row_maximum, logits, top, cost=cost, name=name)
        self.split.reduce(gpu, top, "max")
        weights = gpu.empty(logits.shape, logits.dtype, purpose="activations")
        sums = gpu.empty((3 * count,), row_dtype, purpose="activations")
        cost = Cost((FORWARD_FLOPS - 2) * logits.size, 2 * logits.nbytes + targets.nbytes + sums.nbytes, dtype)
        arrays = logits, targets, top, weights, sums
        launch(gpu, _row_sums, *arrays, writes=2, first=self.first, cost=cost, name=name)
        self.split.reduce(gpu, sums, "sum")
        told = gpu.empty((2,), "float64", purpose="activations")
        cost = Cost(logits.size, 2 * logits.nbytes + sums.nbytes, dtype)
        launch(gpu, _finish, sums, weights, told, writes=2, total=total, cost=cost, name=name)
        return told, (weights, targets, total)

    def backward(self, gpu: Device, saved: Any, scale: float = 1.0) -> Array:
        """Return `scale` times the gradient of this part's logits, in place of what forward kept."""
        weights, targets, total = saved
        cost = Cost(BACKWARD_FLOPS * weights.size, 2 * weights.nbytes + targets.nbytes, dtype_name(weights))
        constants = {"factor": scale / total, "first": self.first}
        launch(gpu, _backward, targets, weights, cost=cost, name=f"{self.name} backward", **constants)  # type: ignore[arg-type]
        return weights


def _row_maximum(xp: Any, logits: Array, top: Array) -> None:
    xp.max(rows(logits), axis=1, out=top)


def _mine(xp: Any, targets: Array, first: int, count: int) -> tuple[Array, Array]:
    """Return which targets are classes of this part, and their columns (0 where they are not)."""
    column = targets.reshape(-1) - first
    inside = (column >= 0) & (column < count)
    return inside, xp.where(inside, column, 0)


def _row_sums(xp: Any, logits: Array, targets: Array, top: Array, weights: Array, sums: Array, first: int) -> None:
    logits, weights = rows(logits), rows(weights)
    total, right, hits = (sums.reshape((3, -1))[i] for i in range(3))
    inside, column = _mine(xp, targets, first, logits.shape[1])
    here = xp.arange(inside.shape[0])
    xp.subtract(logits, top[:, None], out=weights)
    best = xp.argmax(weights, axis=1)
    right[...] = xp.where(inside, weights[here, column], 0)
    hits[...] = inside & (best == column) & (weights[here, best] == 0)
    xp.exp(weights, out=weights)
    xp.sum(weights, axis=1, out=total)


def _finish(xp: Any, sums: Array, weights: Array, told: Array, total: int) -> None:
    exponentials, right, hits = (sums.reshape((3, -1))[i] for i in range(3))
    weights = rows(weights)
    xp.divide(weights, exponentials[:, None], out=weights)
    told[0] = xp.sum(xp.log(exponentials.astype(xp.float64)) - right) / total
    told[1] = xp.sum(hits)


def _backward(xp: Any, targets: Array, weights: Array, factor: float, first: int) -> None:
    weights = rows(weights)
    inside, column = _mine(xp, targets, first, weights.shape[1])
    here = xp.arange(inside.shape[0])
    weights[here, column] = weights[here, column] - inside
    xp.multiply(weights, factor, out=weights)
