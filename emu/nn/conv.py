"""Convolution of images as one matrix product over patches.

With c inputs, o outputs, k × k patches and L output positions over the whole batch: forward 2 o c k² L
FLOPs, backward as many for the weight and for the input. Bytes touch the images and the weight once (an
implicit product: patches are not kept in device memory).
Source: Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014.
"""

from __future__ import annotations

from typing import Any

from emu.errors import ConfigError

from .kernel import Array, Cost, Device, dtype_name, launch
from .parameter import Parameter, add_gradient, he_uniform, zeros


def output_size(name: str, size: int, kernel: int, stride: int, padding: int) -> int:
    """Return how many windows fit along one side; raise ConfigError where none does."""
    windows = (size + 2 * padding - kernel) // stride + 1
    if windows < 1:
        raise ConfigError(
            f"{name}: a window of {kernel} must fit into {size} + 2 × {padding} pixels; use a smaller window"
        )
    return windows


class Conv2d:
    """y[b, o] = Σ_c x[b, c] * w[o, c] + bias[o] for x of shape (batch, channels, height, width)."""

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        padding: int = 0,
        bias: bool = True,
        *,
        dtype: str = "float32",
        math: str | None = None,
        input_gradient: bool = True,
    ) -> None:
        self.name = name
        self.inputs, self.outputs = inputs, outputs
        self.kernel, self.stride, self.padding = kernel, stride, padding
        self.math = math
        self.input_gradient = input_gradient
        shape = outputs, inputs, kernel, kernel
        self.weight = Parameter(f"{name}.weight", shape, he_uniform(inputs * kernel * kernel), dtype)
        self.bias = Parameter(f"{name}.bias", (outputs,), zeros, dtype) if bias else None

    def parameters(self) -> list[Parameter]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Array]:
        window = self.kernel, self.stride, self.padding
        height, width = (output_size(self.name, size, *window) for size in x.shape[2:])
        y = gpu.empty((x.shape[0], self.outputs, height, width), x.dtype, purpose="activations")
        operands = [x, self.weight.data] + ([self.bias.data] if self.bias else [])
        cost = self._cost(x, y)
        if self.bias is not None:
            cost = Cost(cost.flops + y.size, cost.bytes + self.bias.nbytes, cost.dtype)
        launch(gpu, _forward, *operands, y, window=window, cost=cost, name=f"{self.name} forward")
        return y, x

    def backward(self, gpu: Device, saved: Array, dy: Array) -> Array | None:
        x, cost, name = saved, self._cost(saved, dy), f"{self.name} backward"
        window = self.kernel, self.stride, self.padding
        add_gradient(gpu, self.weight, _weight_gradient, x, dy, window=window, cost=cost, name=name)
        if self.bias is not None:
            bias_cost = Cost(dy.size, dy.nbytes + self.bias.nbytes, dtype_name(dy))
            add_gradient(gpu, self.bias, _bias_gradient, dy, cost=bias_cost, name=name)
        if not self.input_gradient:
            return None
        dx = gpu.empty(x.shape, x.dtype, purpose="activations")
        launch(gpu, _input_gradient, dy, self.weight.data, dx, window=window, cost=cost, name=name)
        return dx

    def _cost(self, x: Array, y: Array) -> Cost:
        flops = 2 * y.size * self.inputs * self.kernel**2
        return Cost(flops, x.nbytes + y.nbytes + self.weight.size * x.dtype.itemsize, self.math or dtype_name(x))


_Window = tuple[int, int, int]


def padded(xp: Any, x: Array, padding: int, value: float = 0.0) -> Array:
    """Return x with `padding` pixels of `value` on each side; x itself where there is none."""
    if not padding:
        return x
    batch, channels, height, width = x.shape
    out = xp.full((batch, channels, height + 2 * padding, width + 2 * padding), value, dtype=x.dtype)
    out[:, :, padding : padding + height, padding : padding + width] = x
    return out


def positions(kernel: int, stride: int, height: int, width: int) -> list[tuple[int, int, slice, slice]]:
    """List each pixel (i, j) of a window with the slices that hold it for every output position."""
    return [
        (i, j, slice(i, i + stride * (height - 1) + 1, stride), slice(j, j + stride * (width - 1) + 1, stride))
        for i in range(kernel)
        for j in range(kernel)
    ]


def _patches(xp: Any, x: Array, window: _Window, height: int, width: int) -> Array:
    """Gather the patches as (channels k², batch × positions)."""
    kernel, stride, padding = window
    batch, channels = x.shape[:2]
    source = padded(xp, x, padding).transpose((1, 0, 2, 3))
    columns = xp.empty((channels, kernel, kernel, batch, height, width), dtype=x.dtype)
    for i, j, down, across in positions(kernel, stride, height, width):
        columns[:, i, j] = source[:, :, down, across]
    return columns.reshape((channels * kernel * kernel, -1))


def _forward(xp: Any, x: Array, weight: Array, *rest: Array, window: _Window) -> None:
    y = rest[-1]
    batch, outputs, height, width = y.shape
    product = xp.matmul(weight.reshape((outputs, -1)), _patches(xp, x, window, height, width))
    y[...] = product.reshape((outputs, batch, height, width)).transpose((1, 0, 2, 3))
    if len(rest) == 2:
        xp.add(y, rest[0][:, None, None], out=y)


def _by_output(dy: Array) -> Array:
    return dy.transpose((1, 0, 2, 3)).reshape((dy.shape[1], -1))


def _weight_gradient(xp: Any, x: Array, dy: Array, grad: Array, window: _Window) -> None:
    columns = _patches(xp, x, window, *dy.shape[2:])
    xp.matmul(_by_output(dy), columns.T, out=grad.reshape((grad.shape[0], -1)))


def _bias_gradient(xp: Any, dy: Array, grad: Array) -> None:
    xp.sum(dy, axis=(0, 2, 3), out=grad)


def _input_gradient(xp: Any, dy: Array, weight: Array, dx: Array, window: _Window) -> None:
    kernel, stride, padding = window
    batch, channels, rows_in, columns_in = dx.shape
    height, width = dy.shape[2:]
    columns = xp.matmul(weight.reshape((weight.shape[0], -1)).T, _by_output(dy))
    columns = columns.reshape((channels, kernel, kernel, batch, height, width))
    whole = xp.zeros((channels, batch, rows_in + 2 * padding, columns_in + 2 * padding), dtype=dx.dtype)
    for i, j, down, across in positions(kernel, stride, height, width):
        xp.add(whole[:, :, down, across], columns[:, i, j], out=whole[:, :, down, across])
    inside = whole[:, :, padding : padding + rows_in, padding : padding + columns_in]
    dx[...] = inside.transpose((1, 0, 2, 3))
