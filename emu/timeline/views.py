"""A rank's spans, stream by stream: which are whole collectives, which are rows outside of them.

Indices in a `StreamView` point into its rank's `spans`, which are sorted by row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emu.trace import COLLECTIVE, STEP, Op, Trace


@dataclass(frozen=True)
class StreamView:
    """One stream of one rank.

    `items` are its collectives and the rows outside of them, in order; `whole` marks the collectives among
    the items; `end_rows` is the last row of each item.
    """

    stream: int
    items: np.ndarray
    whole: np.ndarray
    end_rows: np.ndarray


class RankView:
    """One rank's rows and spans, and when its streams reached a row."""

    def __init__(self, rank: int, rows: np.ndarray, spans: np.ndarray) -> None:
        self.rank = rank
        self.rows = rows
        self.spans = spans

    @cached_property
    def streams(self) -> dict[int, StreamView]:
        """Return the streams that have spans, by number."""
        numbers = np.unique(self.spans["stream"]).tolist()
        return {int(s): self._stream(int(s)) for s in numbers}

    def _stream(self, stream: int) -> StreamView:
        spans = self.spans
        mine = np.flatnonzero(spans["stream"] == stream)
        op, row = spans["op"][mine], spans["row"][mine]
        end_row = np.where(op == Op.BEGIN, self._end_rows[np.clip(row, 0, len(self.rows) - 1)], row)
        whole = (op == Op.CALL) | ((op == Op.BEGIN) & (spans["flag"][mine] & COLLECTIVE > 0))
        reach = np.maximum.accumulate(np.where(whole, end_row, -1))
        inside = row <= np.concatenate([[-1], reach[:-1]])
        taken = ~inside & (whole | (op != Op.BEGIN))
        return StreamView(stream, mine[taken], whole[taken], end_row[taken])

    @cached_property
    def _end_rows(self) -> np.ndarray:
        """Row of the END of each BEGIN; other rows stand for themselves."""
        ends = np.arange(len(self.rows))
        op, stream = self.rows["op"], self.rows["stream"]
        edges = np.flatnonzero((op == Op.BEGIN) | (op == Op.END))
        for number in np.unique(stream[edges]):
            at = edges[stream[edges] == number]
            opens = op[at] == Op.BEGIN
            # The END of a span has the level of its BEGIN; at one level they alternate.
            level = np.cumsum(np.where(opens, 1, -1)) + ~opens
            ordered = at[np.argsort(level, kind="stable")]
            begins = np.flatnonzero(op[ordered[:-1]] == Op.BEGIN)
            closed = begins[op[ordered[begins + 1]] == Op.END]
            ends[ordered[closed]] = ordered[closed + 1]
            open_ended = np.setdiff1d(at[opens], ordered[closed])
            ends[open_ended] = len(self.rows)
        return ends

    @cached_property
    def steps(self) -> np.ndarray:
        """Return the spans that are one training step each, in order."""
        spans = self.spans
        return spans[(spans["op"] == Op.BEGIN) & (spans["flag"] & STEP > 0)]

    def reached(self, stream: int, rows: np.ndarray) -> np.ndarray:
        """Return when `stream` came to each of `rows`: what lies before on it has ended, and every SYNC."""
        view = self.streams.get(stream)
        known, ends = self._ended(None if view is None else self.spans[view.items])
        times = _before(known, ends, rows)
        syncs, released = self._syncs
        return np.maximum(times, _before(syncs, released, rows))

    @cached_property
    def _syncs(self) -> tuple[np.ndarray, np.ndarray]:
        syncs = np.flatnonzero(self.rows["op"] == Op.SYNC)
        known, ends = self._ended(self.spans[self.spans["op"] != Op.BEGIN])
        return syncs, _before(known, ends, syncs)

    @staticmethod
    def _ended(spans: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if spans is None or not len(spans):
            return np.empty(0, dtype=np.int64), np.empty(0)
        return spans["row"], np.maximum.accumulate(spans["end_s"])


def _before(known: np.ndarray, times: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Look up the time of the last known row below each of `rows`; 0 where there is none."""
    at = np.searchsorted(known, rows, side="left") - 1
    return np.where(at >= 0, np.append(times, 0.0)[at], 0.0)


def rank_views(trace: Trace, spans: np.ndarray) -> list[RankView]:
    """Split a span array into one view a rank, each sorted by row."""
    rank, row = spans["rank"], spans["row"]
    turns = np.diff(rank)
    if (turns < 0).any() or (np.diff(row)[turns == 0] < 0).any():
        spans = spans[np.lexsort((row, rank))]
        rank = spans["rank"]
    cuts = np.searchsorted(rank, np.arange(trace.world_size + 1))
    return [RankView(r, trace.ranks[r], spans[cuts[r] : cuts[r + 1]]) for r in range(trace.world_size)]
