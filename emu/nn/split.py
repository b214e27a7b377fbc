"""One rank's part of a layer, for tensor parallelism: initial values are cut from those of the whole.

A Linear split by outputs makes a part of the outputs (of every stacked block of them, such as queries, keys and
values); split by inputs it makes a part of the sum over inputs, and the first part alone adds the bias.
Source: Shoeybi et al., "Megatron-LM", 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from emu.errors import ConfigError

from .layer import Layer
from .linear import Linear
from .parameter import Parameter


@dataclass(frozen=True)
class Split:
    """Part `part` of `parts`, and the layers that communicate between them.

    `enter(name)` stands where the parts' inputs are the same: forward it passes x on, backward it sums the
    parts' gradients. `leave(name)` stands where their outputs must be summed: it sums forward, and passes dy on.
    """

    part: int
    parts: int
    enter: Callable[[str], Layer]
    leave: Callable[[str], Layer]


def by_outputs(linear: Linear, part: int, parts: int, stacked: Sequence[int] | None = None) -> Linear:
    """Return the part of a Linear that makes some of its outputs.

    `stacked` are the sizes of blocks that its outputs consist of; each is split by itself.
    """
    rows = _rows(linear, stacked or [linear.outputs], part, parts)
    weight = _cut(linear.weight, (len(rows), linear.inputs), lambda whole: whole[rows])
    bias = None if linear.bias is None else _cut(linear.bias, (len(rows),), lambda whole: whole[rows])
    return _like(linear, linear.inputs, len(rows), weight, bias)


def by_inputs(linear: Linear, part: int, parts: int) -> Linear:
    """Return the part of a Linear that takes some of its inputs; the parts' outputs sum to the whole's."""
    if linear.inputs % parts:
        raise ConfigError(f"{linear.name}: inputs must be a multiple of {parts} parts, got {linear.inputs}")
    each = linear.inputs // parts
    columns = slice(part * each, (part + 1) * each)
    weight = _cut(linear.weight, (linear.outputs, each), lambda whole: whole[:, columns])
    return _like(linear, each, linear.outputs, weight, linear.bias if part == 0 else None)


def _rows(linear: Linear, stacked: Sequence[int], part: int, parts: int) -> np.ndarray:
    if any(size % parts for size in stacked) or sum(stacked) != linear.outputs:
        raise ConfigError(
            f"{linear.name}: each block of its {linear.outputs} outputs must be a multiple of {parts} parts, "
            f"got {list(stacked)}"
        )
    starts = np.cumsum([0, *stacked[:-1]])
    each = [size // parts for size in stacked]
    return np.concatenate([start + part * n + np.arange(n) for start, n in zip(starts, each, strict=True)])


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
