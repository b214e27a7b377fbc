"""A layer that a user knows by its costs alone: for dry runs and plans."""

from __future__ import annotations

from typing import Any

from emu.errors import ConfigError

from .kernel import Array, Cost, Device, dtype_name, launch
from .parameter import Parameter, add_gradient


class Custom:
    """`flops` forward for one example, twice that backward; `outputs` elements out, `saved` kept for backward.

    Parameters and activations are touched once forward, and twice backward.
    """

    def __init__(
        self,
        name: str,
        parameters: int,
        flops: int,
        outputs: int,
        saved: int | None = None,
        *,
        dtype: str = "float32",
        math: str | None = None,
    ) -> None:
        self.name = name
        self.flops, self.outputs = flops, outputs
        self.saved = outputs if saved is None else saved
        self.math = math
        self.weight = Parameter(f"{name}.weight", (parameters,), dtype=dtype) if parameters else None

    def parameters(self) -> list[Parameter]:
        return [self.weight] if self.weight else []

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Any]:
        batch = x.shape[0]
        dtype = self.weight.dtype if self.weight else x.dtype
        y = gpu.empty((batch, self.outputs), dtype, purpose="activations")
        kept = gpu.empty((batch, self.saved), dtype, purpose="activations")
        launch(gpu, _refuse, x, y, cost=self._cost(x, y, self.flops), name=f"{self.name} forward")
        return y, (kept, x.shape, x.dtype)

    def backward(self, gpu: Device, saved: Any, dy: Array) -> Array:
        _, shape, dtype = saved
        name = f"{self.name} backward"
        dx = gpu.empty(shape, dtype, purpose="activations")
        cost = self._cost(dx, dy, self.flops)
        if self.weight is not None:
            add_gradient(gpu, self.weight, _refuse, dy, cost=cost, name=name)
        launch(gpu, _refuse, dy, dx, cost=cost, name=name)
        return dx

    def _cost(self, x: Array, y: Array, flops: int) -> Cost:
        weight = self.weight.nbytes if self.weight else 0
        return Cost(x.shape[0] * flops, x.nbytes + y.nbytes + weight, self.math or dtype_name(y))


def _refuse(xp: Any, *arrays: Array) -> None:
    raise ConfigError("custom layer: it has costs but no arithmetic, so it must run dry; add --dry")
