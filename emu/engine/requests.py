"""Numbers of requests: those that a call makes and waits for itself are left out.

A wait counts its requests back from the newest one, and calls in between make thousands. A lane keeps a place for
each number that can still be waited for; without the calls' own, these are few.
"""

from dataclasses import dataclass, field

import numpy as np

from emu.engine import layout as L
from emu.engine.calls import Calls


@dataclass
class _Lane:
    """How many requests a lane has made since it was first looked at, and which of them keep a number."""

    made: int = 0
    kept: list[np.ndarray] = field(default_factory=list)


class Requests:
    """Renumbers the waits of lanes, as their rows come in."""

    def __init__(self, calls: Calls):
        self.calls = calls
        self._lanes: dict[tuple[int, int], _Lane] = {}

    def renumber(self, rank: int, stream: int, rows: np.ndarray) -> None:
        """Let a lane's new waits count back over the requests that keep their numbers. In place."""
        op = rows["op"]
        lane = self._lanes.get((rank, stream))
        moves, calls = (op == L.SEND) | (op == L.RECV), op == L.CALL
        if lane is None:
            # Until then all numbers are kept; calls before the first request are behind what waits look back to.
            if not moves.any() or not calls.any():
                return
            lane = self._lanes[rank, stream] = _Lane()
        made, kept = moves.astype(np.int64), moves.astype(np.int64)
        made[calls], kept[calls] = self.calls.posts[rows["a"][calls]], self.calls.kept[rows["a"][calls]]
        kept[calls] = np.where(kept[calls] > 0, made[calls], 0)
        first = lane.made + np.cumsum(made) - made  # each row's first request
        before = sum(map(len, lane.kept)) + np.cumsum(kept) - kept
        lane.made += int(made.sum())
        some = np.flatnonzero(kept)
        if len(some):
            lane.kept.append(_ranges(first[some], kept[some]))
        waits = np.flatnonzero(op == L.WAIT)
        if len(waits):
            numbers = np.concatenate(lane.kept) if lane.kept else np.zeros(0, np.int64)
            lane.kept = [numbers]
            low = first[waits] - rows["a"][waits]
            high = low + rows["b"][waits]
            low, high = (np.where(at < 0, at, np.searchsorted(numbers, at)) for at in (low, high))
            rows["a"][waits], rows["b"][waits] = before[waits] - low, high - low


def _ranges(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return first[0], first[0] + 1, ... (count[0] of them), first[1], ..."""
    return np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
