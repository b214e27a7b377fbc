"""Transformers as layers: GPT, Llama and BERT, whole or one rank's part of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from emu.errors import ConfigError

from .activation import GELU, SwiGLU
from .attention import Attention
from .compose import Recompute, Residual, Sequential
from .embedding import Embedding
from .layer import Layer
from .linear import Linear
from .norm import LayerNorm
from .parameter import normal
from .rmsnorm import RMSNorm
from .rotary import Rotary
from .split import (
    Enter,
    Leave,
    Split,
    by_inputs,
    by_outputs,
    embedding_by_vocabulary,
    head_by_vocabulary,
)

DEVIATION = 0.02  # of initial weights, as GPT-2, BERT and Llama have it


@dataclass(frozen=True)
class Options:
    """How a model is computed: precision of arrays and of products, attention, recomputation, a rank's part."""

    dtype: str = "float32"
    math: str | None = None
    fused: bool = False
    recompute: bool = False
    split: Split | None = None

    def block(self, layer: Layer) -> Layer:
        """Wrap a block for recomputation where that is asked for."""
        return Recompute(layer) if self.recompute else layer

    def linear(self, name: str, inputs: int, outputs: int, bias: bool = True, deviation: float = DEVIATION) -> Linear:
        """Make a Linear, whole."""
        init = normal(deviation)
        return Linear(name, inputs, outputs, bias=bias, init=init, dtype=self.dtype, math=self.math)

    def heads(self, name: str, count: int) -> int:
        """Return how many of `count` heads this rank has."""
        return count if self.split is None else self.split.of(f"{name}: heads", count)


def embedding_and_head(embedding: Embedding, head: Linear, options: Options) -> tuple[list[Layer], Linear]:
    """Return the layers that embed, and the head; each one's part where the vocabulary is split.

    The head is tied to the embedding where they share their weight.
    """
    split = options.split
    if split is None or not split.vocabulary:
        return [embedding], head
    tied = head.weight is embedding.token
    piece = embedding_by_vocabulary(embedding, split.part, split.parts)
    head = head_by_vocabulary(head, split.part, split.parts, piece.token if tied else None)
    return [piece, Leave(f"{embedding.name}.leave", split)], head


def final(head: Linear, options: Options) -> list[Layer]:
    """Return the layers of the head: it is entered where the vocabulary is split."""
    split = options.split
    if split is None or not split.vocabulary:
        return [head]
    return [Enter(f"{head.name}.enter", split), head]


def gpt_block(name: str, width: int, heads: int, depth: int, options: Options) -> Layer:
    """Return x + attention(norm(x)), then x + mlp(norm(x)) with 4 × width inside.

    Projections onto the residual start 1 / √(2 depth) smaller.
    """
    small = DEVIATION / math.sqrt(2 * depth)
    attention = _attention(name, options, width, heads, heads, deviation=small)
    return Sequential(
        name,
        [
            _residual(f"{name}.attend", [LayerNorm(f"{name}.norm1", width, dtype=options.dtype)], attention, options),
            _residual(
                f"{name}.feed", [LayerNorm(f"{name}.norm2", width, dtype=options.dtype)],
                _feed_forward(name, options, width, small), options,
            ),
        ],
    )  # fmt: skip


def bert_block(name: str, width: int, heads: int, options: Options) -> Layer:
    """Return norm(x + attention(x)), then norm(x + mlp(x)), attention seeing both ways."""
    attention = _attention(name, options, width, heads, heads, causal=False)
    return Sequential(
        name,
        [
            _residual(f"{name}.attend", [], attention, options),
            LayerNorm(f"{name}.norm1", width, epsilon=1e-12, dtype=options.dtype),
            _residual(f"{name}.feed", [], _feed_forward(name, options, width, DEVIATION), options),
            LayerNorm(f"{name}.norm2", width, epsilon=1e-12, dtype=options.dtype),
        ],
    )


def llama_block(name: str, width: int, heads: int, groups: int, hidden: int, base: float, options: Options) -> Layer:
    """Return x + attention(norm(x)) with rotary positions, then x + swiglu mlp(norm(x)), without biases."""
    attention = _attention(name, options, width, heads, groups, bias=False, rotary=base)
    up = options.linear(f"{name}.gate_up", width, 2 * hidden, bias=False)
    down = options.linear(f"{name}.down", hidden, width, bias=False)
    up, down = _pair(up, down, options, [hidden, hidden])
    return Sequential(
        name,
        [
            _residual(f"{name}.attend", [RMSNorm(f"{name}.norm1", width, dtype=options.dtype)], attention, options),
            _residual(
                f"{name}.feed", [RMSNorm(f"{name}.norm2", width, dtype=options.dtype)],
                [up, SwiGLU(f"{name}.swiglu"), down], options,
            ),
        ],
    )  # fmt: skip


def _attention(
    name: str,
    options: Options,
    width: int,
    heads: int,
    groups: int,
    *,
    causal: bool = True,
    bias: bool = True,
    rotary: float | None = None,
    deviation: float = DEVIATION,
) -> list[Layer]:
    if width % heads:
        raise ConfigError(f"{name}: width must be a multiple of heads, got {width} and {heads}")
    each = width // heads
    mine, mine_groups = options.heads(name, heads), options.heads(name, groups)
    stacked = [width, groups * each, groups * each]
    qkv = options.linear(f"{name}.qkv", width, sum(stacked), bias=bias)
    project = options.linear(f"{name}.project", width, width, bias=bias, deviation=deviation)
    qkv, project = _pair(qkv, project, options, stacked)
    turn: list[Layer] = []
    if rotary is not None:
        turn = [Rotary(f"{name}.rotary", mine, mine_groups, base=rotary)]
    core = Attention(f"{name}.attention", mine, mine_groups, causal=causal, fused=options.fused, math=options.math)
    return [qkv, *turn, core, project]


def _feed_forward(name: str, options: Options, width: int, deviation: float) -> list[Layer]:
    up = options.linear(f"{name}.up", width, 4 * width)
    down = options.linear(f"{name}.down", 4 * width, width, deviation=deviation)
    up, down = _pair(up, down, options, None)
    return [up, GELU(f"{name}.gelu"), down]


def _pair(first: Linear, last: Linear, options: Options, stacked: Sequence[int] | None) -> tuple[Linear, Linear]:
    split = options.split
    if split is None:
        return first, last
    return by_outputs(first, split.part, split.parts, stacked), by_inputs(last, split.part, split.parts)


def _residual(name: str, before: list[Layer], body: list[Layer], options: Options) -> Layer:
    if options.split is not None:
        body = [Enter(f"{name}.enter", options.split), *body, Leave(f"{name}.leave", options.split)]
    return Residual(name, Sequential(name, [*before, *body]))
