"""One rank's part of a layer, for tensor parallelism: initial values are cut from those of the whole.

A Linear split by outputs makes a part of the outputs (of every stacked block of them, such as queries, keys and
values); split by inputs it makes a part of the sum over inputs, and the first part alone adds the bias. Between the
two stands what works on single outputs. `Enter` comes before, `Leave` after:

    x ─ Enter ─ by outputs ─ GELU or attention ─ by inputs ─ Leave ─ y

Source: Shoeybi et al., "Megatron-LM", 2019, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from emu.errors import ConfigError

from .data import share
from .embedding import Embedding
from .kernel import Array, Device
from .linear import Linear
from .parameter import Parameter


@dataclass(frozen=True)
class Split:
    """Part `part` of `parts`. `reduce(gpu, x, op)` all-reduces a flat x in place over the parts ("sum" or "max").

    With `vocabulary` the embedding and the head are split too; the loss is then a SplitCrossEntropy.
    """

    part: int
    parts: int
    reduce: Callable[[Device, Array, str], None]
    vocabulary: bool = False

    def of(self, name: str, count: int) -> int:
        """Return a part's share of `count` things that must divide evenly, such as heads."""
        if count % self.parts:
            raise ConfigError(f"{name} must be a multiple of {self.parts} parts, got {count}")
        return count // self.parts


class Enter:
    """Passes x on to all parts; sums their gradients of it, in place of the one that the next layer made."""

    def __init__(self, name: str, split: Split) -> None:
        self.name = name
        self.split = split

    def parameters(self) -> list[Parameter]:
        return []

    def forward(self, gpu: Device, x: Array) -> tuple[Array, None]:
        return x, None

    def backward(self, gpu: Device, saved: None, dy: Array) -> Array:
        self.split.reduce(gpu, dy.reshape((dy.size,)), "sum")
        return dy


class Leave:
    """Sums the parts' outputs, in place of the one that the layer before made; passes dy on to all parts."""

    def __init__(self, name: str, split: Split) -> None:
        self.name = name
        self.split = split

    def parameters(self) -> list[Parameter]:
        return []

    def forward(self, gpu: Device, x: Array) -> tuple[Array, None]:
        self.split.reduce(gpu, x.reshape((x.size,)), "sum")
        return x, None

    def backward(self, gpu: Device, saved: None, dy: Array) -> Array:
        return dy


def by_outputs(linear: Linear, part: int, parts: int, stacked: Sequence[int] | None = None) -> Linear:
    """Return the part of a Linear that makes some of its outputs.

    `stacked` are the sizes of blocks that its outputs consist of; each is split by itself.
    """
    sizes = list(stacked or [linear.outputs])
    if any(size % parts for size in sizes) or sum(sizes) != linear.outputs:
        raise ConfigError(
            f"{linear.name}: each block of its {linear.outputs} outputs must be a multiple of {parts} parts, "
            f"got {sizes}"
        )
    starts, mine = np.cumsum([0, *sizes[:-1]]), [size // parts for size in sizes]
    rows = [start + part * each + np.arange(each) for start, each in zip(starts, mine, strict=True)]
    return _some_outputs(linear, np.concatenate(rows))


def by_inputs(linear: Linear, part: int, parts: int) -> Linear:
    """Return the part of a Linear that takes some of its inputs; the parts' outputs sum to the whole's."""
    if linear.inputs % parts:
        raise ConfigError(f"{linear.name}: inputs must be a multiple of {parts} parts, got {linear.inputs}")
    each = linear.inputs // parts
    columns = slice(part * each, (part + 1) * each)
    weight = _cut(linear.weight, (linear.outputs, each), lambda whole: whole[:, columns])
    return _like(linear, each, linear.outputs, weight, linear.bias if part == 0 else None)


def head_by_vocabulary(linear: Linear, part: int, parts: int, weight: Parameter | None = None) -> Linear:
    """Return the part of a head that makes some classes' logits; `weight` ties it to the embedding's part."""
    mine = share(linear.outputs, part, parts)
    head = _some_outputs(linear, np.arange(mine.start, mine.stop))
    head.weight = weight or head.weight
    return head


def embedding_by_vocabulary(embedding: Embedding, part: int, parts: int) -> Embedding:
    """Return the part of an Embedding that knows some tokens and gives zeros for others.

    The first part alone adds positions and segments. The parts' outputs sum to the whole's.
    """
    mine = share(embedding.token.shape[0], part, parts)
    piece = Embedding(embedding.name, mine.stop - mine.start, embedding.width, dtype=embedding.token.dtype)
    piece.token = _cut(embedding.token, piece.token.shape, lambda whole: whole[mine])
    piece.first = mine.start
    if part == 0:
        piece.position, piece.segment = embedding.position, embedding.segment
    return piece


def _some_outputs(linear: Linear, rows: np.ndarray) -> Linear:
    weight = _cut(linear.weight, (len(rows), linear.inputs), lambda whole: whole[rows])
    bias = None if linear.bias is None else _cut(linear.bias, (len(rows),), lambda whole: whole[rows])
    return _like(linear, linear.inputs, len(rows), weight, bias)


def _cut(whole: Parameter, shape: tuple[int, ...], cut: Callable[[np.ndarray], np.ndarray]) -> Parameter:
    if whole.cut is not None:
        raise ConfigError(f"{whole.name}: a parameter is split once, got a part of it")
    return Parameter(whole.name, shape, whole.init, whole.dtype, whole.requires_grad, whole_shape=whole.shape, cut=cut)


def _like(linear: Linear, inputs: int, outputs: int, weight: Parameter, bias: Parameter | None) -> Linear:
    part = Linear(
        linear.name, inputs, outputs, bias=False, dtype=weight.dtype, math=linear.math, weight=weight,
        input_gradient=linear.input_gradient,
    )  # fmt: skip
    part.bias = bias
    return part
