"""Layers with something done around them, however deep they stand in sequences and residuals.

ZeRO gathers a layer's parameters before it runs and frees them after. The smaller the layers, the less is there at a
time, so it is the innermost layers with parameters that are wrapped. A layer that chooses among inner layers by its
data or its rank, such as a mixture of experts, is a *leaf*: wrapped as one, so that all ranks gather the same whatever
they choose. `leaves` are the classes of such layers.
Source: DeepSpeed's `set_z3_leaf_modules`, the idea.
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


def wrap(model: Model, around: Around, leaves: tuple[type, ...] = ()) -> list[Layer]:
    """Wrap the innermost layers that have parameters, and leaves; return those layers in the model's order."""
    found: list[Layer] = []

    def wrapped(layer: Layer) -> Layer:
        if isinstance(layer, leaves):
            pass
        elif isinstance(layer, Sequential):
            layer.layers = [wrapped(each) for each in layer.layers]
            return layer
        elif isinstance(layer, Residual):
            layer.body = wrapped(layer.body)
            layer.shortcut = wrapped(layer.shortcut) if layer.shortcut is not None else None
            return layer
        elif isinstance(layer, Recompute):
            layer.layer = wrapped(layer.layer)
            return layer
        if not layer.parameters():
            return layer
        found.append(layer)
        return Wrapped(layer, around, layer.name)

    model.layers = [wrapped(layer) for layer in model.layers]
    return found


def bare(layer: Layer) -> Layer:
    """Return a copy of a layer without what is done around its inner layers."""
    if isinstance(layer, Wrapped):
        return layer.layer
    if isinstance(layer, Sequential):
        return Sequential(layer.name, [bare(each) for each in layer.layers])
    if isinstance(layer, Residual):
        return Residual(layer.name, bare(layer.body), bare(layer.shortcut) if layer.shortcut else None)
    return bare(layer.layer) if isinstance(layer, Recompute) else layer
