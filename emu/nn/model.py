"""A model: layers in a row, whose parameters report when their gradients are final."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .kernel import Array, Device
from .layer import Layer
from .parameter import Parameter, allocate, initialise

LayerHook = Callable[[Device, int, Layer], None]


@dataclass
class Hooks:
    """What a strategy does around each layer: gather its parameters before, free them after."""

    before_forward: LayerHook | None = None
    after_forward: LayerHook | None = None
    before_backward: LayerHook | None = None
    after_backward: LayerHook | None = None


class Model:
    """Layers in a row, or one pipeline stage of them. Strategies set `hooks`; names decide initial values."""

    def __init__(self, name: str, layers: Sequence[Layer]) -> None:
        self.name = name
        self.layers = list(layers)
        self.hooks = Hooks()
        self._uses = Counter(parameter for layer in self.layers for parameter in layer.parameters())

    def parameters(self) -> list[Parameter]:
        """Return every parameter once, in the order of the layers; a tied one where it is first used."""
        return list(self._uses)

    def trainable(self) -> list[Parameter]:
        """Return the parameters that require a gradient."""
        return [parameter for parameter in self._uses if parameter.requires_grad]

    @property
    def size(self) -> int:
        """Number of parameters, tied ones counted once."""
        return sum(parameter.size for parameter in self._uses)

    def allocate(self, gpu: Device) -> None:
        """Give every parameter an array of its own, uninitialised."""
        allocate(gpu, self.parameters())

    def initialise(self, gpu: Device, seed: int) -> None:
        """Write the initial values of `seed`: the same on every rank, for any split of the layers."""
        initialise(gpu, self.parameters(), seed)

    def forward(self, gpu: Device, x: Array, keep: bool = True) -> tuple[Array, list[Any]]:
        """Return the output and what backward will need (nothing with `keep=False`: inference)."""
        saved: list[Any] = []
        for index, layer in enumerate(self.layers):
            _call(self.hooks.before_forward, gpu, index, layer)
            x, kept = layer.forward(gpu, x)
            if keep:
                saved.append(kept)
            del kept
            _call(self.hooks.after_forward, gpu, index, layer)
        return x, saved

    def backward(
        self,
        gpu: Device,
        saved: list[Any],
        dy: Array,
        ready: Callable[[Parameter], None] | None = None,
        accumulate: bool = False,
    ) -> Array | None:
        """Write the parameters' gradients and return the input's (None where the input has none).

        Calls `ready(parameter)` as soon as its gradient is final: while earlier layers are still to come;
        for a tied parameter after its last use. With `accumulate` gradients add to those that are there.
        Consumes `saved`, and frees each layer's part as soon as it is used.
        """
        for parameter, uses in self._uses.items():
            parameter.expect(uses, accumulate, ready)
        gradient: Array | None = dy
        del dy
        for index in reversed(range(len(self.layers))):
            layer = self.layers[index]
            _call(self.hooks.before_backward, gpu, index, layer)
            gradient = layer.backward(gpu, saved.pop(), gradient)
            _call(self.hooks.after_backward, gpu, index, layer)
        return gradient


def _call(hook: LayerHook | None, gpu: Device, index: int, layer: Layer) -> None:
    if hook is not None:
        hook(gpu, index, layer)
