"""What a layer is: a name, parameters, and an explicit forward and backward, each launch with its cost."""

from __future__ import annotations

from typing import Any, Protocol

from .kernel import Array, Device
from .parameter import Parameter


class Layer(Protocol):
    """One differentiable step of a model.

    Layers keep nothing between calls but parameters: what backward needs is returned by forward, so one
    layer can have several batches in flight. They never write into `x` or `dy`, and never keep a
    parameter's `data`, so that it may be freed and gathered again between forward and backward.
    """

    name: str

    def parameters(self) -> list[Parameter]:
        """Return one entry for each use of a parameter, in registration order."""
        ...

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Any]:
        """Return the output and what backward will need."""
        ...

    def backward(self, gpu: Device, saved: Any, dy: Array) -> Array | None:
        """Add to the parameters' gradients and return the input's (None where the input has none)."""
        ...
