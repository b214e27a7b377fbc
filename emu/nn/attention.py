"""Multi-head attention between a layer that makes queries, keys and values and one that projects back.

The core has no parameters, so that a split by heads needs nothing but fewer heads. With h heads of width
d, batch b, length t: each product takes 2 b h t² d FLOPs: two forward, four backward. Plain attention keeps
the b h t² probabilities, and counts the masked half as a plain matrix product computes it. Fused attention
keeps one number a row, computes the scores again in backward, and skips the masked half.

Source: Vaswani et al., "Attention Is All You Need", 2017; Dao et al., "FlashAttention", 2022;
grouped queries: Ainslie et al., "GQA", 2023.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from emu.errors import ConfigError

from .kernel import Array, Cost, Device, dtype_name, launch, stats_dtype
from .parameter import Parameter

SOFTMAX_FLOPS, SOFTMAX_BACKWARD_FLOPS = 6, 5  # an element; with the scale


class _Shape(NamedTuple):
    """How (batch, length, (heads + 2 groups) × width) is read: `heads` queries share `groups` keys and values."""

    heads: int
    groups: int
    causal: bool


class Attention:
    """y[b, t] = Σ_s softmax_s(q_t · k_s / √d) v_s, over s ≤ t where `causal`.

    Takes x of shape (batch, length, (heads + 2 groups) d), the last dimension being all heads' queries,
    then keys, then values, and returns (batch, length, heads d). `groups` (default: heads) is the number of
    key and value heads; each serves heads / groups query heads.
    """

    def __init__(
        self,
        name: str,
        heads: int,
        groups: int | None = None,
        *,
        causal: bool = True,
        fused: bool = False,
        math: str | None = None,
    ) -> None:
        groups = groups or heads
        if heads < 1 or heads % groups:
            raise ConfigError(f"{name}: heads must be a multiple of the key-value heads, got {heads} and {groups}")
        self.name = name
        self.fused = fused
        self.math = math
        self._shape = _Shape(heads, groups, causal)

    def parameters(self) -> list[Parameter]:
        return []

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Any]:
        batch, length, width = self._width(x)
        heads = self._shape.heads
        y = gpu.empty((batch, length, heads * width), x.dtype, purpose="activations")
        name = f"{self.name} forward"
        if self.fused:
            stats = gpu.empty((batch, heads, length), stats_dtype(x), purpose="activations")
            cost = Cost(self._fused_flops(x, products=2), x.nbytes + y.nbytes + stats.nbytes, self._math(x))
            launch(gpu, _fused_forward, x, y, stats, writes=2, shape=self._shape, cost=cost, name=name)
            return y, (x, stats)
        weights = gpu.empty((batch, heads, length, length), x.dtype, purpose="activations")
        product = self._product_cost(x, weights)
        launch(gpu, _scores, x, weights, shape=self._shape, cost=product, name=name)
        softmax = Cost(SOFTMAX_FLOPS * weights.size, 2 * weights.nbytes, dtype_name(x))
        causal, scale = self._shape.causal, 1 / math.sqrt(width)
        launch(gpu, _softmax, weights, causal=causal, scale=scale, cost=softmax, name=name)
        launch(gpu, _mix, x, weights, y, shape=self._shape, cost=product, name=name)
        return y, (x, weights)

    def backward(self, gpu: Device, saved: Any, dy: Array) -> Array:
        x, kept = saved
        dx = gpu.empty(x.shape, x.dtype, purpose="activations")
        name = f"{self.name} backward"
        if self.fused:
            moved = 2 * x.nbytes + 2 * dy.nbytes + kept.nbytes  # reads x, y, dy; writes dx
            cost = Cost(self._fused_flops(x, products=5), moved, self._math(x))
            launch(gpu, _fused_backward, x, kept, dy, dx, shape=self._shape, cost=cost, name=name)
            return dx
        product = self._product_cost(x, kept)
        scores = gpu.empty(kept.shape, kept.dtype, purpose="activations")
        launch(gpu, _weights_gradient, x, dy, scores, shape=self._shape, cost=product, name=name)
        launch(gpu, _value_gradient, kept, dy, dx, shape=self._shape, cost=product, name=name)
        softmax = Cost(SOFTMAX_BACKWARD_FLOPS * kept.size, 3 * kept.nbytes, dtype_name(x))
        scale = 1 / math.sqrt(self._width(x)[2])
        launch(gpu, _softmax_backward, kept, scores, scale=scale, cost=softmax, name=name)
        launch(gpu, _query_gradient, x, scores, dx, shape=self._shape, cost=product, name=name)
        launch(gpu, _key_gradient, x, scores, dx, shape=self._shape, cost=product, name=name)
        return dx

    def _width(self, x: Array) -> tuple[int, int, int]:
        parts = self._shape.heads + 2 * self._shape.groups
        if len(x.shape) != 3 or x.shape[2] % parts:
            raise ConfigError(
                f"{self.name}: the input must have shape (batch, length, a multiple of {parts}), got {x.shape}"
            )
        return x.shape[0], x.shape[1], x.shape[2] // parts

    def _math(self, x: Array) -> str:
        return self.math or dtype_name(x)

    def _product_cost(self, x: Array, weights: Array) -> Cost:
        """One of the products of all heads: (t × t) by (t × d), each operand touched once."""
        batch, length, width = self._width(x)
        queries = batch * length * self._shape.heads * width
        keys = batch * length * self._shape.groups * width
        return Cost(2 * weights.size * width, weights.nbytes + (queries + keys) * x.dtype.itemsize, self._math(x))

    def _fused_flops(self, x: Array, products: int) -> int:
        batch, length, width = self._width(x)
        pairs = length * (length + 1) // 2 if self._shape.causal else length * length
        softmax = SOFTMAX_FLOPS if products == 2 else SOFTMAX_FLOPS + SOFTMAX_BACKWARD_FLOPS
        return batch * self._shape.heads * pairs * (2 * products * width + softmax)


def _split(x: Array, shape: _Shape) -> tuple[Array, Array, Array]:
    """View x as q (b, groups, heads/groups, t, d) and k, v (b, groups, 1, t, d)."""
    batch, length = x.shape[:2]
    heads, groups = shape.heads, shape.groups
    parts = x.reshape((batch, length, heads + 2 * groups, -1))
    query = _by_head(parts[:, :, :heads], groups)
    key = _by_head(parts[:, :, heads : heads + groups], groups)
    return query, key, _by_head(parts[:, :, heads + groups :], groups)


def _by_head(x: Array, groups: int) -> Array:
    batch, length, heads, width = x.shape
    return x.reshape((batch, length, groups, heads // groups, width)).transpose((0, 2, 3, 1, 4))


def _grouped(weights: Array, groups: int) -> Array:
    batch, heads, length, _ = weights.shape
    return weights.reshape((batch, groups, heads // groups, length, length))


def _outputs(y: Array, shape: _Shape) -> Array:
    return _by_head(y.reshape((*y.shape[:2], shape.heads, -1)), shape.groups)


def _transposed(x: Array) -> Array:
    return x.swapaxes(-1, -2)


def _scores(xp: Any, x: Array, weights: Array, shape: _Shape) -> None:
    query, key, _ = _split(x, shape)
    xp.matmul(query, _transposed(key), out=_grouped(weights, shape.groups))


def _softmax(xp: Any, weights: Array, causal: bool, scale: float) -> None:
    xp.multiply(weights, scale, out=weights)
    if causal:
        xp.add(weights, _mask(xp, weights), out=weights)
    xp.subtract(weights, xp.max(weights, axis=-1, keepdims=True), out=weights)
    xp.exp(weights, out=weights)
    xp.divide(weights, xp.sum(weights, axis=-1, keepdims=True), out=weights)


def _mask(xp: Any, weights: Array) -> Array:
    length = weights.shape[-1]
    return xp.triu(xp.full((length, length), -xp.inf, dtype=weights.dtype), 1)


def _mix(xp: Any, x: Array, weights: Array, y: Array, shape: _Shape) -> None:
    value = _split(x, shape)[2]
    xp.matmul(_grouped(weights, shape.groups), value, out=_outputs(y, shape))


def _weights_gradient(xp: Any, x: Array, dy: Array, scores: Array, shape: _Shape) -> None:
    value = _split(x, shape)[2]
    xp.matmul(_outputs(dy, shape), _transposed(value), out=_grouped(scores, shape.groups))


def _softmax_backward(xp: Any, weights: Array, scores: Array, scale: float) -> None:
    along = xp.einsum("bhts,bhts->bht", weights, scores)
    xp.subtract(scores, along[..., None], out=scores)
    xp.multiply(scores, weights, out=scores)
    xp.multiply(scores, scale, out=scores)


def _value_gradient(xp: Any, weights: Array, dy: Array, dx: Array, shape: _Shape) -> None:
    _shared_product(xp, _grouped(weights, shape.groups), _outputs(dy, shape), _split(dx, shape)[2])


def _query_gradient(xp: Any, x: Array, scores: Array, dx: Array, shape: _Shape) -> None:
    xp.matmul(_grouped(scores, shape.groups), _split(x, shape)[1], out=_split(dx, shape)[0])


def _key_gradient(xp: Any, x: Array, scores: Array, dx: Array, shape: _Shape) -> None:
    _shared_product(xp, _grouped(scores, shape.groups), _split(x, shape)[0], _split(dx, shape)[1])


def _shared_product(xp: Any, weights: Array, right: Array, out: Array) -> None:
    """Write weightsᵀ right, summed over the query heads that share a key or value."""
    if weights.shape[2] == 1:
        xp.matmul(_transposed(weights), right, out=out)
    else:
        xp.sum(xp.matmul(_transposed(weights), right), axis=2, keepdims=True, out=out)


def _fused_forward(xp: Any, x: Array, y: Array, stats: Array, shape: _Shape) -> None:
    for b in range(x.shape[0]):  # one sequence's scores at a time: scratch that a GPU keeps on chip
        one = slice(b, b + 1)
        weights = _scaled_scores(xp, x[one], shape)
        top = xp.max(weights, axis=-1, keepdims=True)
        xp.exp(xp.subtract(weights, top, out=weights), out=weights)
        total = xp.sum(weights, axis=-1, keepdims=True)
        xp.divide(weights, total, out=weights)
        stats[one] = (top + xp.log(total))[..., 0]
        _mix(xp, x[one], weights, y[one], shape)


def _fused_backward(xp: Any, x: Array, stats: Array, dy: Array, dx: Array, shape: _Shape) -> None:
    for b in range(x.shape[0]):
        one = slice(b, b + 1)
        weights = _scaled_scores(xp, x[one], shape)
        xp.exp(xp.subtract(weights, stats[one][..., None], out=weights), out=weights)
        scores = xp.empty_like(weights)
        _weights_gradient(xp, x[one], dy[one], scores, shape)
        _value_gradient(xp, weights, dy[one], dx[one], shape)
        width = dy.shape[-1] // shape.heads
        _softmax_backward(xp, weights, scores, 1 / math.sqrt(width))
        _query_gradient(xp, x[one], scores, dx[one], shape)
        _key_gradient(xp, x[one], scores, dx[one], shape)


def _scaled_scores(xp: Any, x: Array, shape: _Shape) -> Array:
    batch, length, parts = x.shape
    weights = xp.empty((batch, shape.heads, length, length), dtype=x.dtype)
    _scores(xp, x, weights, shape)
    width = parts // (shape.heads + 2 * shape.groups)
    xp.multiply(weights, 1 / math.sqrt(width), out=weights)
    if shape.causal:
        xp.add(weights, _mask(xp, weights), out=weights)
    return weights
