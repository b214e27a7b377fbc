"""Ranks with different numbers of batches: those that run out take part with gradients of zero until all are done.

    for batch, rows in joined(strategy, batches, len):
        strategy.begin()
        strategy.skip() if batch is None else backward(...)     # the loss being a mean over `rows`
        strategy.finish()
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

Batch = TypeVar("Batch")


def joined(
    strategy: Any, batches: Iterable[Batch], rows: Callable[[Batch], int]
) -> Iterator[tuple[Batch | None, int]]:
    """Yield this rank's batches, then None while other ranks still have some; with it the rows of all ranks together.

    Collective: before each turn the ranks tell each other how many rows they have.
    """
    mine = iter(batches)
    while True:
        batch = next(mine, None)
        total = sum(strategy.comm.wire.exchange(0 if batch is None else rows(batch)))
        if total == 0:
            return
        yield batch, total
