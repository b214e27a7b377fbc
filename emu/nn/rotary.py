"""Rotary position embedding: turns queries and keys by an angle that grows with their position.

About 3 FLOPs an element; one read, one write. Nothing is kept: backward turns the other way.
Source: Su et al., "RoFormer", 2021; halves paired as Llama pairs them.
"""

from __future__ import annotations

import math
from typing import Any

from emu.errors import ConfigError

from .kernel import Array, Cost, Device, dtype_name, launch
from .parameter import Parameter

FLOPS = 3


class Rotary:
    """Turns the queries and keys of x (batch, length, (heads + 2 groups) d); values pass through."""

    def __init__(self, name: str, heads: int, groups: int | None = None, *, base: float = 10_000.0) -> None:
        self.name = name
        self.heads, self.groups = heads, groups or heads
        self.base = base

    def parameters(self) -> list[Parameter]:
        return []

    def forward(self, gpu: Device, x: Array) -> tuple[Array, None]:
        return self._turn(gpu, x, 1.0, f"{self.name} forward"), None

    def backward(self, gpu: Device, saved: None, dy: Array) -> Array:
        return self._turn(gpu, dy, -1.0, f"{self.name} backward")

    def _turn(self, gpu: Device, x: Array, direction: float, name: str) -> Array:
        each = x.shape[-1] // (self.heads + 2 * self.groups)
        if each % 2:
            raise ConfigError(f"{self.name}: heads of an even width are expected, got {each}")
        y = gpu.empty(x.shape, x.dtype, purpose="activations")
        cost = Cost(FLOPS * x.size, 2 * x.nbytes, dtype_name(x))
        parts = self.heads + 2 * self.groups
        turned = self.heads + self.groups
        constants = {"parts": parts, "turned": turned, "base": self.base, "direction": direction}
        launch(gpu, _turn, x, y, cost=cost, name=name, **constants)  # type: ignore[arg-type]
        return y


def _turn(xp: Any, x: Array, y: Array, parts: int, turned: int, base: float, direction: float) -> None:
    batch, length = x.shape[:2]
    x, y = x.reshape((batch, length, parts, -1)), y.reshape((batch, length, parts, -1))
    half = x.shape[-1] // 2
    speeds = xp.exp(xp.arange(half, dtype=xp.float64) * (-math.log(base) / max(1, half)))
    angles = xp.arange(length, dtype=xp.float64)[:, None] * speeds[None, :]
    cosine = xp.cos(angles).astype(x.dtype)[:, None, :]
    sine = (direction * xp.sin(angles)).astype(x.dtype)[:, None, :]
    first, second = x[:, :, :turned, :half], x[:, :, :turned, half:]
    y[:, :, :turned, :half] = first * cosine - second * sine
    y[:, :, :turned, half:] = second * cosine + first * sine
    y[:, :, turned:] = x[:, :, turned:]
