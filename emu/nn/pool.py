"""Pooling over windows of an image, and flattening. k² FLOPs an output; images are read and written once."""

from __future__ import annotations

from typing import Any

from .conv import output_size, padded, positions
from .kernel import Array, Cost, Device, dtype_name, launch
from .parameter import Parameter


class MaxPool2d:
    """The largest pixel of each window; of equal ones the first gets the gradient. `stride` defaults to `kernel`."""

    def __init__(self, name: str, kernel: int, stride: int | None = None, padding: int = 0) -> None:
        self.name = name
        self.window = kernel, stride or kernel, padding

    def parameters(self) -> list[Parameter]:
        return []

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Any]:
        y = _pooled(gpu, self.name, x, *self.window)
        cost = Cost(self.window[0] ** 2 * y.size, x.nbytes + y.nbytes, dtype_name(x))
        launch(gpu, _max, x, y, window=self.window, cost=cost, name=f"{self.name} forward")
        return y, (x, y)

    def backward(self, gpu: Device, saved: Any, dy: Array) -> Array:
        x, y = saved
        dx = gpu.empty(x.shape, x.dtype, purpose="activations")
        cost = Cost(2 * self.window[0] ** 2 * y.size, 2 * x.nbytes + 2 * y.nbytes, dtype_name(x))
        name = f"{self.name} backward"
        launch(gpu, _max_backward, x, y, dy, dx, window=self.window, cost=cost, name=name)
        return dx


class AvgPool2d:
    """The mean of each window. `kernel=None` is the whole image, whatever its (square) size."""

    def __init__(self, name: str, kernel: int | None = None, stride: int | None = None) -> None:
        self.name = name
        self.kernel, self.stride = kernel, stride

    def parameters(self) -> list[Parameter]:
        return []

    def forward(self, gpu: Device, x: Array) -> tuple[Array, tuple[int, ...]]:
        window = self._window(x.shape)
        y = _pooled(gpu, self.name, x, *window)
        cost = Cost(window[0] ** 2 * y.size, x.nbytes + y.nbytes, dtype_name(x))
        launch(gpu, _mean, x, y, window=window, cost=cost, name=f"{self.name} forward")
        return y, x.shape

    def backward(self, gpu: Device, saved: tuple[int, ...], dy: Array) -> Array:
        window = self._window(saved)
        dx = gpu.empty(saved, dy.dtype, purpose="activations")
        cost = Cost(window[0] ** 2 * dy.size, dx.nbytes + dy.nbytes, dtype_name(dy))
        launch(gpu, _mean_backward, dy, dx, window=window, cost=cost, name=f"{self.name} backward")
        return dx

    def _window(self, shape: tuple[int, ...]) -> tuple[int, int, int]:
        kernel = self.kernel or shape[-1]
        return kernel, self.stride or kernel, 0


class Flatten:
    """View (batch, ...) as (batch, everything else). Costs nothing."""

    def __init__(self, name: str = "flatten") -> None:
        self.name = name

    def parameters(self) -> list[Parameter]:
        return []

    def forward(self, gpu: Device, x: Array) -> tuple[Array, tuple[int, ...]]:
        return x.reshape((x.shape[0], x.size // x.shape[0] if x.shape[0] else 0)), x.shape

    def backward(self, gpu: Device, saved: tuple[int, ...], dy: Array) -> Array:
        return dy.reshape(saved)


def _pooled(gpu: Device, name: str, x: Array, kernel: int, stride: int, padding: int) -> Array:
    height, width = (output_size(name, size, kernel, stride, padding) for size in x.shape[2:])
    return gpu.empty((*x.shape[:2], height, width), x.dtype, purpose="activations")


def _max(xp: Any, x: Array, y: Array, window: tuple[int, int, int]) -> None:
    kernel, stride, padding = window
    source = padded(xp, x, padding, -xp.inf)
    y[...] = -xp.inf
    for _, _, down, across in positions(kernel, stride, *y.shape[2:]):
        xp.maximum(y, source[:, :, down, across], out=y)


def _max_backward(xp: Any, x: Array, y: Array, dy: Array, dx: Array, window: tuple[int, int, int]) -> None:
    kernel, stride, padding = window
    height, width = dx.shape[2:]
    source = padded(xp, x, padding, -xp.inf)
    whole = xp.zeros_like(source)
    left = xp.ones_like(y, dtype=bool)  # windows whose gradient has not found its pixel yet
    for _, _, down, across in positions(kernel, stride, *y.shape[2:]):
        here = (source[:, :, down, across] == y) & left
        left &= ~here
        target = whole[:, :, down, across]
        xp.add(target, dy * here, out=target)
    dx[...] = whole[:, :, padding : padding + height, padding : padding + width]


def _mean(xp: Any, x: Array, y: Array, window: tuple[int, int, int]) -> None:
    kernel, stride, _ = window
    y[...] = 0
    for _, _, down, across in positions(kernel, stride, *y.shape[2:]):
        xp.add(y, x[:, :, down, across], out=y)
    xp.multiply(y, 1 / kernel**2, out=y)


def _mean_backward(xp: Any, dy: Array, dx: Array, window: tuple[int, int, int]) -> None:
    kernel, stride, _ = window
    dx[...] = 0
    part = dy * (1 / kernel**2)
    for _, _, down, across in positions(kernel, stride, *dy.shape[2:]):
        target = dx[:, :, down, across]
        xp.add(target, part, out=target)
