"""What each layer of a model costs: counted by running the layers dry, so that no formula is written twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from emu.gpu import Cost, DryArray, Memory
from emu.gpu.arrays import dtype_of

from .kernel import Array, Kernel
from .layer import Layer
from .model import Hooks, Model
from .parameter import Parameter


@dataclass(frozen=True)
class LayerCost:
    """One layer, for one batch. Bytes forward and backward are of device memory touched."""

    name: str
    kind: str
    parameters: int
    parameter_bytes: int
    forward_flops: float
    forward_bytes: float
    backward_flops: float
    backward_bytes: float
    launches: int
    activation_bytes: int
    """Bytes that stay allocated from this layer's forward to its backward, its output included."""


class Meter:
    """A GPU that only counts: launches, FLOPs, bytes touched, memory."""

    xp: Any = np
    dry = True

    def __init__(self) -> None:
        self.memory = Memory(float("inf"))
        self.flops = 0.0
        self.bytes = 0.0
        self.launches = 0

    def empty(self, shape: Any, dtype: Any = "float32", purpose: str = "activations") -> Array:
        array = DryArray.of(shape, dtype_of(dtype))
        nbytes = array.nbytes
        self.memory.take(nbytes, purpose)
        self.memory.watch(array, nbytes, purpose)
        return array

    zeros = empty

    def launch(self, kernel: Kernel, *arrays: Array, cost: Cost, name: str | None = None) -> None:
        self.flops += cost.flops
        self.bytes += cost.bytes
        self.launches += 1

    def live_bytes(self, purpose: str) -> int:
        """Return what is allocated for a purpose now."""
        return self.memory.live.get(purpose, 0)


def describe(model: Model, shape: Iterable[int], dtype: str) -> list[LayerCost]:
    """Run a batch of inputs of this shape and dtype through the model, dry; return each layer's costs.

    A tied parameter is counted where it is first used. The model is left as it was.
    """
    before = [(parameter, parameter.data, parameter.grad) for parameter in model.parameters()]
    hooks = model.hooks
    for parameter, _, _ in before:
        parameter.data = parameter.grad = None
    try:
        return _measure(model, tuple(shape), dtype)
    finally:
        model.hooks = hooks
        for parameter, data, grad in before:
            parameter.data, parameter.grad = data, grad


@dataclass(frozen=True)
class _Reading:
    """A meter's counts at a moment, or between two."""

    flops: float
    bytes: float
    launches: int
    activations: int

    def since(self, earlier: _Reading) -> _Reading:
        return _Reading(
            self.flops - earlier.flops, self.bytes - earlier.bytes, self.launches - earlier.launches,
            self.activations - earlier.activations,
        )  # fmt: skip


def _measure(model: Model, shape: tuple[int, ...], dtype: str) -> list[LayerCost]:
    meter = Meter()
    started: list[_Reading] = []
    forwards: dict[int, _Reading] = {}
    backwards: dict[int, _Reading] = {}

    def read() -> _Reading:
        return _Reading(meter.flops, meter.bytes, meter.launches, meter.live_bytes("activations"))

    def start(gpu: Any, index: int, layer: Layer) -> None:
        started.append(read())

    model.hooks = Hooks(
        start, lambda gpu, index, layer: forwards.update({index: read().since(started.pop())}),
        start, lambda gpu, index, layer: backwards.update({index: read().since(started.pop())}),
    )  # fmt: skip
    model.allocate(meter)
    y, saved = model.forward(meter, meter.empty(shape, dtype, "buffers"))
    model.backward(meter, saved, y)
    seen: set[Parameter] = set()
    return [_cost(layer, forwards[i], backwards[i], seen) for i, layer in enumerate(model.layers)]


def _cost(layer: Layer, forward: _Reading, backward: _Reading, seen: set[Parameter]) -> LayerCost:
    own = [parameter for parameter in dict.fromkeys(layer.parameters()) if parameter not in seen]
    seen.update(own)
    return LayerCost(
        name=layer.name,
        kind=type(layer).__name__,
        parameters=sum(parameter.size for parameter in own),
        parameter_bytes=sum(parameter.nbytes for parameter in own),
        forward_flops=forward.flops,
        forward_bytes=forward.bytes,
        backward_flops=backward.flops,
        backward_bytes=backward.bytes,
        launches=forward.launches + backward.launches,
        activation_bytes=forward.activations,
    )
