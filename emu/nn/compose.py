"""Layers made of layers: a sequence, a residual sum, and one that recomputes its inside in backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .kernel import Array, Cost, Device, dtype_name, launch
from .layer import Layer
from .parameter import Parameter


class Sequential:
    """Layers one after another."""

    def __init__(self, name: str, layers: Sequence[Layer]) -> None:
        self.name = name
        self.layers = list(layers)

    def parameters(self) -> list[Parameter]:
        return [parameter for layer in self.layers for parameter in layer.parameters()]

    def forward(self, gpu: Device, x: Array) -> tuple[Array, list[Any]]:
        saved = []
        for layer in self.layers:
            x, kept = layer.forward(gpu, x)
            saved.append(kept)
        return x, saved

    def backward(self, gpu: Device, saved: list[Any], dy: Array) -> Array | None:
        gradient: Array | None = dy
        for layer in reversed(self.layers):
            gradient = layer.backward(gpu, saved.pop(), gradient)  # popped: freed as soon as it is used
        return gradient


class Residual:
    """y = x + body(x), or shortcut(x) + body(x)."""

    def __init__(self, name: str, body: Layer, shortcut: Layer | None = None) -> None:
        self.name = name
        self.body = body
        self.shortcut = shortcut

    def parameters(self) -> list[Parameter]:
        return self.body.parameters() + (self.shortcut.parameters() if self.shortcut else [])

    def forward(self, gpu: Device, x: Array) -> tuple[Array, list[Any]]:
        branch, kept = self.body.forward(gpu, x)
        straight, kept_shortcut = self.shortcut.forward(gpu, x) if self.shortcut else (x, None)
        return add(gpu, straight, branch, f"{self.name} forward"), [kept, kept_shortcut]

    def backward(self, gpu: Device, saved: list[Any], dy: Array) -> Array:
        kept_shortcut, kept = saved.pop(), saved.pop()
        straight = self.shortcut.backward(gpu, kept_shortcut, dy) if self.shortcut else dy
        del kept_shortcut
        branch = self.body.backward(gpu, kept, dy)
        return add(gpu, straight, branch, f"{self.name} backward")


class Recompute:
    """The same layer, keeping only its input: backward runs forward again (about a third more FLOPs).

    Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
    """

    def __init__(self, layer: Layer) -> None:
        self.name = layer.name
        self.layer = layer

    def parameters(self) -> list[Parameter]:
        return self.layer.parameters()

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Array]:
        return self.layer.forward(gpu, x)[0], x

    def backward(self, gpu: Device, saved: Array, dy: Array) -> Array | None:
        return self.layer.backward(gpu, self.layer.forward(gpu, saved)[1], dy)


def add(gpu: Device, a: Array, b: Array, name: str) -> Array:
    """Return a + b in a new array: one FLOP an element, two reads and a write."""
    out = gpu.empty(a.shape, a.dtype, purpose="activations")
    launch(gpu, _add, a, b, out, cost=Cost(a.size, 3 * a.nbytes, dtype_name(a)), name=name)
    return out


def _add(xp: Any, a: Array, b: Array, out: Array) -> None:
    xp.add(a, b, out=out)
