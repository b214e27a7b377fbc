"""Softmax cross-entropy: the loss, how many predictions are right, and the gradient of the logits.

About 6 FLOPs a logit forward (one read, one write), 2 backward (in place: one read, one write).
"""

from __future__ import annotations

from typing import Any

from .kernel import Array, Cost, Device, dtype_name, launch, rows

FORWARD_FLOPS, BACKWARD_FLOPS = 6, 2


class SoftmaxCrossEntropy:
    """The mean over `total` rows of -log softmax(logits)[target].

    `total` is the number of rows of the *global* batch: then the gradients, and the losses, of all ranks
    sum to those of one rank that sees the whole batch. Without it the mean is over the rows given.
    """

    name = "cross-entropy"

    def forward(self, gpu: Device, logits: Array, targets: Array, total: int | None = None) -> tuple[Array, Any]:
        """Return a device array of two float64, this rank's part of the mean loss and its number of right
        predictions, and what backward needs.

        `logits` has shape (..., classes), `targets` holds class numbers in the same shape without it.
        """
        count = logits.size // logits.shape[-1]
        total = total or max(1, count)
        stats = gpu.empty((2,), "float64", purpose="activations")
        weights = gpu.empty(logits.shape, logits.dtype, purpose="activations")
        cost = Cost(FORWARD_FLOPS * logits.size, 2 * logits.nbytes + targets.nbytes, dtype_name(logits))
        arrays = logits, targets, weights, stats
        launch(gpu, _forward, *arrays, writes=2, total=total, cost=cost, name=f"{self.name} forward")
        return stats, (weights, targets, total)

    def backward(self, gpu: Device, saved: Any, scale: float = 1.0) -> Array:
        """Return `scale` times the gradient of the logits, in place of what forward kept."""
        weights, targets, total = saved
        cost = Cost(BACKWARD_FLOPS * weights.size, 2 * weights.nbytes + targets.nbytes, dtype_name(weights))
        name = f"{self.name} backward"
        launch(gpu, _backward, targets, weights, factor=scale / total, cost=cost, name=name)
        return weights


def _forward(xp: Any, logits: Array, targets: Array, weights: Array, stats: Array, total: int) -> None:
    logits, weights, targets = rows(logits), rows(weights), targets.reshape(-1)
    here = xp.arange(targets.shape[0])
    xp.subtract(logits, xp.max(logits, axis=1, keepdims=True), out=weights)
    right = weights[here, targets].astype(xp.float64)
    xp.exp(weights, out=weights)
    # The largest term is exactly 1; a float64 sum keeps the rest, so that a small loss keeps its digits.
    sums = xp.sum(weights, axis=1, dtype=xp.float64)
    xp.divide(weights, sums[:, None].astype(weights.dtype), out=weights)
    stats[0] = xp.sum(xp.log(sums) - right) / total
    stats[1] = xp.sum(xp.argmax(logits, axis=1) == targets)


def _backward(xp: Any, targets: Array, weights: Array, factor: float) -> None:
    weights, targets = rows(weights), targets.reshape(-1)
    here = xp.arange(targets.shape[0])
    weights[here, targets] = weights[here, targets] - 1
    xp.multiply(weights, factor, out=weights)
