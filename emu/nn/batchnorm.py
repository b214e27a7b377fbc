"""Batch normalisation of images, by the statistics of the batch that a rank is given.

Forward reads x twice and writes y, about 10 FLOPs an element; backward reads x and dy twice and writes dx,
about 14. The statistics are those of a rank's own part of the batch, as in PyTorch without SyncBatchNorm: with
several ranks training follows another path than one rank's.
Source: Ioffe and Szegedy, "Batch Normalization", ICML 2015.
"""

from __future__ import annotations

from typing import Any

from .kernel import Array, Cost, Device, dtype_name, launch, stats_dtype
from .parameter import Parameter, add_gradient, ones, zeros

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
        x, stats = saved
        name, dtype = f"{self.name} backward", dtype_name(dy)
        reads = x.nbytes + dy.nbytes + stats.nbytes + self.scale.nbytes
        cost = Cost(SCALE_FLOPS * dy.size, reads, dtype)
        add_gradient(gpu, self.scale, _scale_gradient, x, stats, dy, cost=cost, name=name)
        cost = Cost(dy.size, dy.nbytes + self.shift.nbytes, dtype)
        add_gradient(gpu, self.shift, _shift_gradient, dy, cost=cost, name=name)
        dx = gpu.empty(x.shape, x.dtype, purpose="activations")
        cost = Cost(BACKWARD_FLOPS * dy.size, reads + x.nbytes + dx.nbytes, dtype)
        launch(gpu, _input_gradient, x, stats, self.scale.data, dy, dx, cost=cost, name=name)
        return dx


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
