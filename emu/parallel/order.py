"""The order in which a step uses its layers: learned in the first step, followed and checked in those after.

Source: DeepSpeed's partitioned parameter coordinator, the idea: record a trace, then look ahead along it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Order(Generic[T]):
    """A sequence of uses. `expected` is what is known of it; empty until it is learned or once it was broken."""

    def __init__(self) -> None:
        self.expected: list[T] = []
        self.notes: list[str] = []
        self.steps = 0
        self._seen: list[T] = []
        self._broken = False

    def begin(self) -> None:
        """Begin a step."""
        self._seen = []
        self._broken = False

    @property
    def known(self) -> bool:
        """Say whether the rest of this step is known."""
        return bool(self.expected) and not self._broken

    @property
    def at(self) -> int:
        """The place of the use that is going on."""
        return len(self._seen) - 1

    def use(self, what: T, name: str = "") -> None:
        """Take note of a use."""
        place = len(self._seen)
        self._seen.append(what)
        if self.known and (place >= len(self.expected) or self.expected[place] != what):
            self._broken = True
            self.notes.append(
                f"prefetch: the order of layers changed in step {self.steps} at use {place} ({name or what}); "
                "no prefetch for the rest of this step, then the new order"
            )

    def ahead(self) -> Iterator[T]:
        """Yield what comes after the use that is going on, as far as it is known."""
        if self.known:
            yield from self.expected[len(self._seen) :]

    def end(self) -> bool:
        """End a step; keep its order. Return whether it is another than the one that was known."""
        changed = self._seen != self.expected
        if changed and self.known:  # it stopped early
            self.notes.append(
                f"prefetch: step {self.steps} used {len(self._seen)} layers, not {len(self.expected)}; "
                "the next one follows it"
            )
        self.expected = self._seen
        self.steps += 1
        return changed


def kept_after_use(order: Sequence[T], sizes: dict[T, int], distance: int) -> set[int]:
    """Return the places after which what was used is used again after fewer than `distance` elements of other uses.

    >>> sorted(kept_after_use(["a", "b", "b", "a"], {"a": 5, "b": 3}, 4))
    [1]
    >>> sorted(kept_after_use(["a", "b", "b", "a"], {"a": 5, "b": 3}, 7))
    [0, 1]
    """
    before = [0]
    for each in order:
        before.append(before[-1] + sizes[each])
    kept: set[int] = set()
    last: dict[T, int] = {}
    for place in reversed(range(len(order))):
        each = order[place]
        again = last.get(each)
        if again is not None and before[again] - before[place + 1] < distance:
            kept.add(place)
        last[each] = place
    return kept
