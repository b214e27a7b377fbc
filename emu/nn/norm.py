"""Layer normalisation over the last dimension, and the backward pass that all normalisations share.

About 8 FLOPs an element forward and 14 backward; forward reads x and writes y, backward reads x and dy
and writes dx, and once more reads x and dy for the scale's gradient. Mean and deviation of each row are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .kernel import Array, Cost, Device, Kernel, blocks, dtype_name, launch, rows, stats_dtype
from .linear import sum_rows
from .parameter import Parameter, add_gradient, ones, zeros

FORWARD_FLOPS, BACKWARD_FLOPS, SCALE_FLOPS = 8, 10, 4


@dataclass(frozen=True)
class Backward:
    """The kernels of a normalisation's backward pass: (x, stats, dy, grad), (dy, grad), (x, stats, scale, dy, dx)."""

    scale: Kernel
    shift: Kernel
    input: Kernel
    scale_flops: int  # an element
    input_flops: int
    passes: int = 1  # times that the input's gradient reads x


def backward(gpu: Device, layer: Any, kernels: Backward, saved: tuple[Array, Array], dy: Array) -> Array:
    """Run a normalisation's backward pass, for a layer with a `scale` and a `shift` (or None)."""
    (x, stats), name, dtype = saved, f"{layer.name} backward", dtype_name(dy)
    reads = x.nbytes + dy.nbytes + stats.nbytes + layer.scale.nbytes
    cost = Cost(kernels.scale_flops * dy.size, reads, dtype)
    add_gradient(gpu, layer.scale, kernels.scale, x, stats, dy, cost=cost, name=name)
    if layer.shift is not None:
        cost = Cost(dy.size, dy.nbytes + layer.shift.nbytes, dtype)
        add_gradient(gpu, layer.shift, kernels.shift, dy, cost=cost, name=name)
    dx = gpu.empty(x.shape, x.dtype, purpose="activations")
    moved = reads + (kernels.passes - 1) * x.nbytes + dx.nbytes
    cost = Cost(kernels.input_flops * dy.size, moved, dtype)
    launch(gpu, kernels.input, x, stats, layer.scale.data, dy, dx, cost=cost, name=name)
    return dx


class LayerNorm:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift, each row of the last dimension by itself."""

    def __init__(self, name: str, width: int, *, epsilon: float = 1e-5, dtype: str = "float32") -> None:
        self.name = name
        self.width = width
        self.epsilon = epsilon
        self.scale = Parameter(f"{name}.scale", (width,), ones, dtype)
        self.shift = Parameter(f"{name}.shift", (width,), zeros, dtype)

    def parameters(self) -> list[Parameter]:
        return [self.scale, self.shift]

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Any]:
        y = gpu.empty(x.shape, x.dtype, purpose="activations")
        stats = gpu.empty((2, x.size // self.width), stats_dtype(x), purpose="activations")
        cost = Cost(FORWARD_FLOPS * x.size, 2 * x.nbytes + stats.nbytes + 2 * self.scale.nbytes, dtype_name(x))
        arrays = x, self.scale.data, self.shift.data, y, stats
        launch(gpu, _forward, *arrays, writes=2, epsilon=self.epsilon, cost=cost, name=f"{self.name} forward")
        return y, (x, stats)

    def backward(self, gpu: Device, saved: Any, dy: Array) -> Array:
        return backward(gpu, self, _BACKWARD, saved, dy)


def _forward(xp: Any, x: Array, scale: Array, shift: Array, y: Array, stats: Array, epsilon: float) -> None:
    x, y, width = rows(x), rows(y), x.shape[-1]
    for part in blocks(xp, x.shape[0], width):
        mean, inverse, out = stats[0, part], stats[1, part], y[part]
        xp.mean(x[part], axis=1, out=mean)
        xp.subtract(x[part], mean[:, None], out=out)
        inverse[...] = 1 / xp.sqrt(xp.einsum("ij,ij->i", out, out) / width + epsilon)
        xp.multiply(out, inverse[:, None], out=out)
        xp.multiply(out, scale, out=out)
        xp.add(out, shift, out=out)


def _scale_gradient(xp: Any, x: Array, stats: Array, dy: Array, grad: Array) -> None:
    x, dy, width = rows(x), rows(dy), x.shape[-1]
    grad[...] = 0
    for part in blocks(xp, x.shape[0], width):
        normal = _normalised(xp, x[part], stats[:, part])
        xp.add(grad, xp.einsum("ij,ij->j", normal, dy[part]), out=grad)


def _input_gradient(xp: Any, x: Array, stats: Array, scale: Array, dy: Array, dx: Array) -> None:
    x, dy, dx, width = rows(x), rows(dy), rows(dx), x.shape[-1]
    for part in blocks(xp, x.shape[0], width):
        normal, out = _normalised(xp, x[part], stats[:, part]), dx[part]
        xp.multiply(dy[part], scale, out=out)
        along = xp.einsum("ij,ij->i", out, normal) / width
        xp.subtract(out, xp.mean(out, axis=1)[:, None], out=out)
        xp.multiply(normal, along[:, None], out=normal)
        xp.subtract(out, normal, out=out)
        xp.multiply(out, stats[1, part][:, None], out=out)


def _normalised(xp: Any, x: Array, stats: Array) -> Array:
    normal = x - stats[0][:, None]
    xp.multiply(normal, stats[1][:, None], out=normal)
    return normal


_BACKWARD = Backward(_scale_gradient, sum_rows, _input_gradient, SCALE_FLOPS, BACKWARD_FLOPS)
