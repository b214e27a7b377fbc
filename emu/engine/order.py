"""The order of a rank's own sends and receives where several of its streams make them.

The i-th send meets the i-th receive in the order of the program, which need not be the order in which streams
get there. Ranks that send (or receive) outside of collectives from one stream only need no numbers.
"""

from collections.abc import Callable, Iterable

import numpy as np

from emu.engine import layout as L


class Order:
    """Numbers of plain sends and receives within their channels, for ranks that need them."""

    def __init__(self, rows_before: Callable[[int], Iterable[np.ndarray]]):
        self.ranks: dict[int, dict[tuple[int, ...], int]] = {}
        self._rows_before = rows_before
        self._stream: dict[int, int] = {}

    def number(self, r: int, rows: np.ndarray) -> np.ndarray:
        """Return rows whose plain sends and receives carry their numbers (from 1 on) in `x`, if need be."""
        plain = _plain(rows)
        streams = set(np.unique(rows["stream"][plain]).tolist())
        if r not in self.ranks:
            before = [part for part in self._rows_before(r) if _plain(part).any()] if streams else []
            streams |= {int(part["stream"][0]) for part in before}
            if len(streams) < 2:
                return rows
            known = self.ranks[r] = {}
            for part in before:
                _count(part[_plain(part)], known)
        rows = rows.copy()
        rows["x"][plain] = _count(rows[plain], self.ranks[r])
        return rows


def _plain(rows: np.ndarray) -> np.ndarray:
    """Say which rows are sends, and receives of one source and tag, outside of collectives."""
    op = rows["op"]
    named = (op == L.SEND) | ((op == L.RECV) & (rows["a"] >= 0) & (rows["b"] >= 0))
    return named & (rows["flag"] & L.COLLECTIVE == 0)


def _count(rows: np.ndarray, known: dict[tuple[int, ...], int]) -> list[int]:
    """Return each row's number within its channel, counting on from `known`."""
    numbers = []
    for key in zip(*(rows[name].tolist() for name in ("op", "a", "b", "c")), strict=True):
        known[key] = known.get(key, 0) + 1
        numbers.append(known[key])
    return numbers
