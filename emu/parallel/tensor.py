"""Tensor parallel: each rank has a part of every block's matrices, of the vocabulary and of the loss.

Two all-reduces forward and two backward a block, on the stream that computes.
Source: Shoeybi et al., "Megatron-LM", 2019, section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emu.nn.describe import Meter
from emu.nn.split import Split


def split_over(comm: Any, all_reduce: Callable[..., Any]) -> Split | None:
    """Return how layers are split over the ranks of `comm` (None: not at all)."""
    if comm is None:
        return None

    def reduce(gpu: Any, x: Any, op: str) -> None:
        if not isinstance(gpu, Meter):  # which only counts
            all_reduce(comm, x, op)

    return Split(comm.rank, comm.size, reduce, vocabulary=True)


def as_split(part: int, parts: int) -> Split | None:
    """Return the same split without communication, to learn shapes from."""
    return Split(part, parts, lambda gpu, x, op: None, vocabulary=True) if parts > 1 else None
