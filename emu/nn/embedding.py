"""Token and position embeddings: a lookup forward, a scatter-add backward.

With N tokens and width d: forward reads N d of the table and writes N d (and adds N d for positions, and for a
segment); backward reads N d, and clears and adds into the whole table.
"""

from __future__ import annotations

from typing import Any

from emu.errors import ConfigError

from .kernel import Array, Cost, Device, dtype_name, launch, rows
from .parameter import Parameter, add_gradient, normal


class Embedding:
    """y[b, t] = token[x[b, t]] (+ position[t]) for integers x of shape (batch, length).

    `positions` is the longest length; without it no positions are added. With `segments` the first row of a
    table of so many is added everywhere, as for BERT's single sentences. The table has shape (vocabulary,
    width), that of a Linear from width to vocabulary, so that the two can be tied.
    """

    def __init__(
        self,
        name: str,
        vocabulary: int,
        width: int,
        positions: int | None = None,
        *,
        segments: int | None = None,
        deviation: float = 0.02,
        dtype: str = "float32",
    ) -> None:
        self.name = name
        self.width = width
        self.token = Parameter(f"{name}.token", (vocabulary, width), normal(deviation), dtype)
        self.position = None
        if positions is not None:
            self.position = Parameter(f"{name}.position", (positions, width), normal(deviation), dtype)
        self.first = 0  # the number of the table's first token, where it is a part of a larger one
        self.segment = None
        if segments is not None:
            self.segment = Parameter(f"{name}.segment", (segments, width), normal(deviation), dtype)

    def parameters(self) -> list[Parameter]:
        return [self.token, *self._added()]

    def _added(self) -> list[Parameter]:
        return [table for table in (self.position, self.segment) if table is not None]

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Array]:
        y = gpu.empty((*x.shape, self.width), self.token.dtype, purpose="activations")
        if self.position is not None and x.shape[-1] > self.position.shape[0]:
            raise ConfigError(
                f"{self.name}: a length of at most {self.position.shape[0]} is expected, got {x.shape[-1]}"
            )
        added = [(self.position, x.shape[-1]), (self.segment, 1)]
        tables: list[tuple[Array, int]] = [(table.data, length) for table, length in added if table is not None]
        read = x.nbytes + y.nbytes + sum(length * self.width * y.dtype.itemsize for _, length in tables)
        cost = Cost(len(tables) * y.size, read + y.nbytes, dtype_name(y))
        arrays = x, self.token.data, *(table[:length] for table, length in tables), y
        part = None if self.token.cut is None else self.first
        launch(gpu, _forward, *arrays, first=part, cost=cost, name=f"{self.name} forward")
        return y, x

    def backward(self, gpu: Device, saved: Array, dy: Array) -> None:
        x, dtype, name = saved, dtype_name(dy), f"{self.name} backward"
        # The table is cleared once; each row of dy is read, and read-added-written where it belongs.
        cost = Cost(dy.size, self.token.nbytes + 3 * dy.nbytes + x.nbytes, dtype)
        part = None if self.token.cut is None else self.first
        add_gradient(gpu, self.token, _token_gradient, x, dy, first=part, cost=cost, name=name)
        if self.position is not None:
            cost = Cost(dy.size, dy.nbytes + self.position.nbytes, dtype)
            add_gradient(gpu, self.position, _position_gradient, dy, cost=cost, name=name)
        if self.segment is not None:
            cost = Cost(dy.size, dy.nbytes + self.segment.nbytes, dtype)
            add_gradient(gpu, self.segment, _segment_gradient, dy, cost=cost, name=name)


def _forward(xp: Any, x: Array, token: Array, *rest: Array, first: int | None) -> None:
    y = rest[-1]
    if first is None:
        xp.take(token, x, axis=0, out=y)
    else:
        inside, here = _inside(xp, x, first, token.shape[0])
        xp.take(token, here, axis=0, out=y)
        xp.multiply(y, inside[..., None], out=y)
    for table in rest[:-1]:
        xp.add(y, table, out=y)


def _token_gradient(xp: Any, x: Array, dy: Array, grad: Array, first: int | None) -> None:
    grad[...] = 0
    x, dy = x.reshape(-1), rows(dy)
    if first is not None:
        inside, x = _inside(xp, x, first, grad.shape[0])
        dy = dy * inside[:, None]
    xp.add.at(grad, x, dy)


def _inside(xp: Any, x: Array, first: int, count: int) -> tuple[Array, Array]:
    """Return which tokens the part of a table that starts at `first` knows, and their rows (0 for others)."""
    here = x - first
    inside = (here >= 0) & (here < count)
    return inside, xp.where(inside, here, 0)


def _position_gradient(xp: Any, dy: Array, grad: Array) -> None:
    length = dy.shape[-2]
    grad[length:] = 0
    xp.sum(dy.reshape((-1, length, dy.shape[-1])), axis=0, out=grad[:length])


def _segment_gradient(xp: Any, dy: Array, grad: Array) -> None:
    grad[1:] = 0
    xp.sum(rows(dy), axis=0, out=grad[0])
