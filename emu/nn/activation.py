"""Elementwise nonlinearities. All are bound by memory: one read, one write (backward: two reads, one write)."""

from __future__ import annotations

import math
from typing import Any

from .kernel import Array, Cost, Device, Kernel, blocks, dtype_name, launch, rows
from .parameter import Parameter

GELU_FLOPS, GELU_BACKWARD_FLOPS = 10, 18
_SLOPE, _CUBE = math.sqrt(2 / math.pi), 0.044715


class Elementwise:
    """y = f(x) by two kernels; backward gets what forward kept: its input, or its output."""

    def __init__(self, name: str, forward: Kernel, backward: Kernel, flops: tuple[int, int], keep_output: bool) -> None:
        self.name = name
        self._kernels = forward, backward
        self._flops = flops
        self._keep_output = keep_output

    def parameters(self) -> list[Parameter]:
        return []

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Array]:
        y = gpu.empty(x.shape, x.dtype, purpose="activations")
        cost = Cost(self._flops[0] * x.size, 2 * x.nbytes, dtype_name(x))
        launch(gpu, self._kernels[0], x, y, cost=cost, name=f"{self.name} forward")
        return y, y if self._keep_output else x

    def backward(self, gpu: Device, saved: Array, dy: Array) -> Array:
        dx = gpu.empty(dy.shape, dy.dtype, purpose="activations")
        cost = Cost(self._flops[1] * dy.size, 3 * dy.nbytes, dtype_name(dy))
        launch(gpu, self._kernels[1], saved, dy, dx, cost=cost, name=f"{self.name} backward")
        return dx


def ReLU(name: str = "relu") -> Elementwise:
    """Return max(x, 0): 1 FLOP an element each way. The output is kept, which the next layer keeps anyway."""
    return Elementwise(name, _relu, _relu_backward, (1, 1), keep_output=True)


def GELU(name: str = "gelu") -> Elementwise:
    """Return x Φ(x) in its tanh form, about 10 FLOPs an element forward and 18 backward.

    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016; the form that GPT-2 uses.
    """
    return Elementwise(name, _gelu, _gelu_backward, (GELU_FLOPS, GELU_BACKWARD_FLOPS), keep_output=False)


class SwiGLU:
    """y = silu(a) b for x = (a, b) in the last dimension: 6 FLOPs an output forward, 14 backward.

    Source: Shazeer, "GLU Variants Improve Transformer", 2020.
    """

    def __init__(self, name: str = "swiglu") -> None:
        self.name = name

    def parameters(self) -> list[Parameter]:
        return []

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Array]:
        y = gpu.empty((*x.shape[:-1], x.shape[-1] // 2), x.dtype, purpose="activations")
        cost = Cost(6 * y.size, x.nbytes + y.nbytes, dtype_name(x))
        launch(gpu, _swiglu, x, y, cost=cost, name=f"{self.name} forward")
        return y, x

    def backward(self, gpu: Device, saved: Array, dy: Array) -> Array:
        dx = gpu.empty(saved.shape, dy.dtype, purpose="activations")
        cost = Cost(14 * dy.size, 2 * saved.nbytes + dy.nbytes, dtype_name(dy))
        launch(gpu, _swiglu_backward, saved, dy, dx, cost=cost, name=f"{self.name} backward")
        return dx


def _relu(xp: Any, x: Array, y: Array) -> None:
    xp.maximum(x, 0, out=y)


def _relu_backward(xp: Any, y: Array, dy: Array, dx: Array) -> None:
    xp.multiply(dy, y > 0, out=dx)


def _gelu(xp: Any, x: Array, y: Array) -> None:
    x, y = x.reshape(-1), y.reshape(-1)
    for part in blocks(xp, x.size):
        half, out = x[part] * 0.5, y[part]
        _tanh_term(xp, x[part], out)
        xp.add(out, 1, out=out)
        xp.multiply(out, half, out=out)


def _gelu_backward(xp: Any, x: Array, dy: Array, dx: Array) -> None:
    x, dy, dx = x.reshape(-1), dy.reshape(-1), dx.reshape(-1)
    for part in blocks(xp, x.size):
        z, out = x[part], dx[part]
        _tanh_term(xp, z, out)  # t
        slope = z * z  # d(inner)/dz = slope (1 + 3 cube z²)
        xp.multiply(slope, 3 * _CUBE * _SLOPE, out=slope)
        xp.add(slope, _SLOPE, out=slope)
        inner = 1 - out * out
        xp.multiply(inner, slope, out=inner)
        xp.multiply(inner, z, out=inner)
        xp.add(inner, out, out=out)  # t + z (1 - t²) d(inner)/dz
        xp.add(out, 1, out=out)
        xp.multiply(out, 0.5, out=out)
        xp.multiply(out, dy[part], out=out)


def _tanh_term(xp: Any, x: Array, out: Array) -> None:
    xp.multiply(x, x, out=out)
    xp.multiply(out, _CUBE * _SLOPE, out=out)
    xp.add(out, _SLOPE, out=out)
    xp.multiply(out, x, out=out)
    xp.tanh(out, out=out)


def _swiglu(xp: Any, x: Array, y: Array) -> None:
    x, y, width = rows(x), rows(y), y.shape[-1]
    for part in blocks(xp, y.shape[0], width):
        gate, out = x[part, :width], y[part]
        _sigmoid(xp, gate, out)
        xp.multiply(out, gate, out=out)
        xp.multiply(out, x[part, width:], out=out)


def _swiglu_backward(xp: Any, x: Array, dy: Array, dx: Array) -> None:
    x, dy, dx, width = rows(x), rows(dy), rows(dx), dy.shape[-1]
    for part in blocks(xp, dy.shape[0], width):
        gate, value, change = x[part, :width], x[part, width:], dy[part]
        sigmoid = xp.empty_like(gate)
        _sigmoid(xp, gate, sigmoid)
        xp.multiply(change, gate * sigmoid, out=dx[part, width:])
        slope = sigmoid * (1 + gate * (1 - sigmoid))
        xp.multiply(slope, value, out=slope)
        xp.multiply(slope, change, out=dx[part, :width])


def _sigmoid(xp: Any, x: Array, out: Array) -> None:
    """Write 1 / (1 + exp(-x)) in a form that cannot overflow."""
    xp.multiply(x, 0.5, out=out)
    xp.tanh(out, out=out)
    xp.multiply(out, 0.5, out=out)
    xp.add(out, 0.5, out=out)
