"""Tilings: what a stream does at every instant, as intervals that touch without overlap or hole.

A cause is a small integer. Those of the accounting are zero or positive; negative ones say that somebody
else knows better: `GAP` (the stream has nothing to run) and `follow(target)` (look at another tiling).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Cause(IntEnum):
    """Where the time of a step goes; `EXPOSED + k` is communication over link class k."""

    COMPUTE = 0
    LAUNCH = 1
    COPY = 2
    STRAGGLER = 3
    STALL = 4
    BUBBLE = 5
    IDLE = 6
    EXPOSED = 7


LINK_CLASSES = ("nvlink", "pcie", "rdma", "tcp", "other")
CAUSES = Cause.EXPOSED + len(LINK_CLASSES)  # how many causes there are in all

GAP = -1


def follow(target: int | np.ndarray) -> int | np.ndarray:
    """Return the cause that stands for "whatever tiling `target` does meanwhile"."""
    return -2 - target


@dataclass(frozen=True)
class Tiling:
    """Interval i runs from `bounds[i]` to `bounds[i + 1]` and has `causes[i]`."""

    bounds: np.ndarray
    causes: np.ndarray

    @property
    def starts(self) -> np.ndarray:
        """Start of each interval."""
        return self.bounds[:-1]

    @property
    def ends(self) -> np.ndarray:
        """End of each interval."""
        return self.bounds[1:]


@dataclass(frozen=True)
class Pieces:
    """Stretches of time with a cause each, in any order."""

    starts: np.ndarray
    ends: np.ndarray
    causes: np.ndarray

    def where(self, mask: np.ndarray) -> Pieces:
        """Return the pieces under `mask`."""
        return Pieces(self.starts[mask], self.ends[mask], self.causes[mask])


def tile(
    starts: np.ndarray,
    middles: np.ndarray,
    ends: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    horizon_s: float,
) -> Tiling:
    """Tile [0, horizon] with serial intervals in order, each cut at its middle into two causes.

    What lies between them is GAP. Empty stretches are dropped.
    """
    n = len(starts)
    bounds = np.empty(3 * n + 2)
    bounds[0], bounds[-1] = 0.0, horizon_s
    bounds[1:-1:3], bounds[2:-1:3], bounds[3:-1:3] = starts, middles, ends
    causes = np.full(3 * n + 1, GAP, dtype=np.int32)
    causes[1::3], causes[2::3] = first, second
    # Serial by construction; rounding in the last bit must not make a stretch run backwards.
    np.maximum.accumulate(bounds, out=bounds)
    kept = np.append(bounds[1:] > bounds[:-1], True)
    return Tiling(bounds[kept], causes[kept[:-1]])


def clip(tiling: Tiling, starts: np.ndarray, ends: np.ndarray) -> tuple[Pieces, np.ndarray]:
    """Cut a tiling by sorted intervals that do not overlap.

    Return the pieces and, for each, the index of the interval it came from.
    """
    first = np.searchsorted(tiling.ends, starts, side="right")
    last = np.searchsorted(tiling.starts, ends, side="left")
    counts = np.where(ends > starts, np.maximum(last - first, 0), 0)
    owner = np.repeat(np.arange(len(starts)), counts)
    offset = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    index = first[owner] + offset
    pieces = Pieces(
        np.maximum(tiling.starts[index], starts[owner]),
        np.minimum(tiling.ends[index], ends[owner]),
        tiling.causes[index],
    )
    return pieces, owner


def join(parts: list[Pieces]) -> Pieces:
    """Put pieces together."""
    return Pieces(
        np.concatenate([p.starts for p in parts]),
        np.concatenate([p.ends for p in parts]),
        np.concatenate([p.causes for p in parts]),
    )
