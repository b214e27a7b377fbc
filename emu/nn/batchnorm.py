"""Batch normalisation of images, by the statistics of the batch that a rank is given.

Forward reads x twice and writes y, about 10 FLOPs an element; backward reads x and dy twice and writes dx,
about 14. The statistics are those of a rank's own part of the batch, as in PyTorch without SyncBatchNorm: with
several ranks training follows another path than one rank's.
Source: Ioffe and Szegedy, "Batch Normalization", ICML 2015.
"""

from __future__ import annotations

from typing import Any

from .kernel import Array, Cost, Device, dtype_name, launch, stats_dtype
from .norm import Backward, backward
from .parameter import Parameter, ones, zeros

FORWARD_FLOPS, BACKWARD_FLOPS, SCALE_FLOPS = 10, 10, 4
_ALL_BUT_CHANNELS = (0, 2, 3)


class BatchNorm2d:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift, each channel of (batch, channel, height, width)."""

    def __init__(self, name: str, channels: int, *, epsilon: float = 1e-5, dtype: str = "float32") -> None:
        self.name = name
        self.epsilon = epsilon
        self.scale = Parameter(f"{name}.scale", (channels,), ones, dtype)
        self.shift = Parameter(f"{name}.shift", (channels,), zeros, dtype)

    def parameters(self) -> list[Parameter]:
        return [self.scale, self.shift]

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Any]:
        y = gpu.empty(x.shape, x.dtype, purpose="activations")
        stats = gpu.empty((2, x.shape[1]), stats_dtype(x), purpose="activations")
        moved = 3 * x.nbytes + stats.nbytes + self.scale.nbytes + self.shift.nbytes
        cost = Cost(FORWARD_FLOPS * x.size, moved, dtype_name(x))
        arrays = x, self.scale.data, self.shift.data, y, stats
        launch(gpu, _forward, *arrays, writes=2, epsilon=self.epsilon, cost=cost, name=f"{self.name} forward")
        return y, (x, stats)

    def backward(self, gpu: Device, saved: Any, dy: Array) -> Array:
        return backward(gpu, self, _BACKWARD, saved, dy)


def _channels(values: Array) -> Array:
    return values[:, None, None]


def _forward(xp: Any, x: Array, scale: Array, shift: Array, y: Array, stats: Array, epsilon: float) -> None:
    count = x.size // x.shape[1]
    xp.mean(x, axis=_ALL_BUT_CHANNELS, out=stats[0])
    xp.subtract(x, _channels(stats[0]), out=y)
    stats[1] = 1 / xp.sqrt(xp.einsum("bchw,bchw->c", y, y) / count + epsilon)
    xp.multiply(y, _channels(stats[1] * scale), out=y)
    xp.add(y, _channels(shift), out=y)


def _scale_gradient(xp: Any, x: Array, stats: Array, dy: Array, grad: Array) -> None:
    along = xp.einsum("bchw,bchw->c", x, dy) - stats[0] * xp.sum(dy, axis=_ALL_BUT_CHANNELS)
    xp.multiply(along, stats[1], out=grad)


def _shift_gradient(xp: Any, dy: Array, grad: Array) -> None:
    xp.sum(dy, axis=_ALL_BUT_CHANNELS, out=grad)


def _input_gradient(xp: Any, x: Array, stats: Array, scale: Array, dy: Array, dx: Array) -> None:
    count = x.size // x.shape[1]
    mean_dy = xp.sum(dy, axis=_ALL_BUT_CHANNELS) / count
    along = (xp.einsum("bchw,bchw->c", x, dy) / count - stats[0] * mean_dy) * stats[1] * stats[1]
    xp.subtract(x, _channels(stats[0]), out=dx)
    xp.multiply(dx, _channels(-along), out=dx)
    xp.add(dx, dy, out=dx)
    xp.subtract(dx, _channels(mean_dy), out=dx)
    xp.multiply(dx, _channels(stats[1] * scale), out=dx)


_BACKWARD = Backward(_scale_gradient, _shift_gradient, _input_gradient, SCALE_FLOPS, BACKWARD_FLOPS, passes=2)
