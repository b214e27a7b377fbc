"""Layers with something done around them, however deep they stand in sequences and residuals.

ZeRO gathers a layer's parameters before it runs and frees them after. The smaller the layers, the less is there at a
time, so it is the innermost layers with parameters that are wrapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from emu.nn.compose import Recompute, Residual, Sequential
from emu.nn.layer import Layer
from emu.nn.model import Model
from emu.nn.parameter import Parameter


class Around(Protocol):
    """What is done before and after a layer runs."""

    def before(self, layer: Layer, backward: bool) -> None:
        """Prepare for a layer."""

    def after(self, layer: Layer, backward: bool) -> None:
        """Clean up after a layer."""


@dataclass
class Wrapped:
    """A layer, and what is done around it."""

    layer: Layer
    around: Around
    name: str

    def parameters(self) -> list[Parameter]:
        """Return the layer's parameters."""
        return self.layer.parameters()

    def forward(self, gpu: Any, x: Any) -> tuple[Any, Any]:
        """Prepare, run the layer forward, clean up."""
        self.around.before(self.layer, backward=False)
        try:
            return self.layer.forward(gpu, x)
        finally:
            self.around.after(self.layer, backward=False)

    def backward(self, gpu: Any, saved: Any, dy: Any) -> Any:
        """Prepare, run the layer backward, clean up."""
        self.around.before(self.layer, backward=True)
        try:
            return self.layer.backward(gpu, saved, dy)
        finally:
            self.around.after(self.layer, backward=True)


def wrap(model: Model, around: Around) -> list[Layer]:
    """Wrap the innermost layers that have parameters; return those layers in the model's order."""
    found: list[Layer] = []
    model.layers = [_wrapped(layer, around, found) for layer in model.layers]
    return found


def _wrapped(layer: Layer, around: Around, found: list[Layer]) -> Layer:
    if isinstance(layer, Sequential):
        layer.layers = [_wrapped(each, around, found) for each in layer.layers]
    elif isinstance(layer, Residual):
        layer.body = _wrapped(layer.body, around, found)
        if layer.shortcut is not None:
            layer.shortcut = _wrapped(layer.shortcut, around, found)
    elif isinstance(layer, Recompute):
        layer.layer = _wrapped(layer.layer, around, found)
    elif layer.parameters():
        found.append(layer)
        return Wrapped(layer, around, layer.name)
    return layer


def bare(layer: Layer) -> Layer:
    """Return a copy of a layer without what is done around its inner layers."""
    if isinstance(layer, Wrapped):
        return layer.layer
    if isinstance(layer, Sequential):
        return Sequential(layer.name, [bare(each) for each in layer.layers])
    if isinstance(layer, Residual):
        return Residual(layer.name, bare(layer.body), bare(layer.shortcut) if layer.shortcut else None)
    return bare(layer.layer) if isinstance(layer, Recompute) else layer
