"""Token and position embeddings: a lookup forward, a scatter-add backward.

With N tokens and width d: forward reads N(d) of the table and writes N d (N d additions for positions);
backward reads N d, and clears and adds into the whole table.
"""

from __future__ import annotations

from typing import Any

from .kernel import Array, Cost, Device, launch, rows
from .parameter import Parameter, add_gradient, normal


class Embedding:
    """y[b, t] = token[x[b, t]] (+ position[t]) for integers x of shape (batch, length).

    `positions` is the longest length; without it no positions are added. The table has shape
    (vocabulary, width), that of a Linear from width to vocabulary, so that the two can be tied.
    """

    def __init__(
        self,
        name: str,
        vocabulary: int,
        width: int,
        positions: int | None = None,
        *,
        deviation: float = 0.02,
        dtype: str = "float32",
    ) -> None:
        self.name = name
        self.width = width
        self.token = Parameter(f"{name}.token", (vocabulary, width), normal(deviation), dtype)
        self.position = None
        if positions is not None:
            self.position = Parameter(f"{name}.position", (positions, width), normal(deviation), dtype)

    def parameters(self) -> list[Parameter]:
        return [self.token] if self.position is None else [self.token, self.position]

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Array]:
        y = gpu.empty((*x.shape, self.width), self.token.dtype, purpose="activations")
        tables = [self.token.data] + ([self.position.data] if self.position else [])
        flops = y.size if self.position else 0
        read = x.nbytes + y.nbytes + (x.shape[-1] * self.width * y.dtype.itemsize if self.position else 0)
        cost = Cost(flops, read + y.nbytes, str(y.dtype))
        launch(gpu, _forward, x, *tables, y, cost=cost, name=f"{self.name} forward")
        return y, x

    def backward(self, gpu: Device, saved: Array, dy: Array) -> None:
        x, dtype, name = saved, str(dy.dtype), f"{self.name} backward"
        # The table is cleared once; each row of dy is read, and read-added-written where it belongs.
        cost = Cost(dy.size, self.token.nbytes + 3 * dy.nbytes + x.nbytes, dtype)
        add_gradient(gpu, self.token, _token_gradient, x, dy, cost=cost, name=name)
        if self.position is not None:
            cost = Cost(dy.size, dy.nbytes + self.position.nbytes, dtype)
            add_gradient(gpu, self.position, _position_gradient, dy, cost=cost, name=name)


def _forward(xp: Any, x: Array, token: Array, *rest: Array) -> None:
    y = rest[-1]
    xp.take(token, x, axis=0, out=y)
    if len(rest) == 2:
        xp.add(y, rest[0][: x.shape[-1]], out=y)


def _token_gradient(xp: Any, x: Array, dy: Array, grad: Array) -> None:
    grad[...] = 0
    xp.add.at(grad, x.reshape(-1), rows(dy))


def _position_gradient(xp: Any, dy: Array, grad: Array) -> None:
    length = dy.shape[-2]
    grad[length:] = 0
    xp.sum(dy.reshape((-1, length, dy.shape[-1])), axis=0, out=grad[:length])
