"""A rank's spans, stream by stream: which are whole collectives, which are rows outside of them.

Indices in a `StreamView` point into its rank's `spans`, which are sorted by (stream, row).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from emu.trace import COLLECTIVE, STEP, Op, Trace

NO_PAUSES = np.empty((0, 2))


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

    def __init__(self, rank: int, rows: np.ndarray, spans: np.ndarray, pauses: np.ndarray = NO_PAUSES) -> None:
        self.rank = rank
        self.rows = rows
        self.spans = spans
        self.pauses = pauses  # (start_s, end_s) in which the rank starts nothing, sorted and disjoint

    @cached_property
    def streams(self) -> dict[int, StreamView]:
        """Return the streams that have spans, by number."""
        numbers, first = np.unique(self.spans["stream"], return_index=True)
        ends = np.append(first, len(self.spans))[1:]
        return {
            number: self._stream(number, begin, end)
            for number, begin, end in zip(numbers.tolist(), first.tolist(), ends.tolist(), strict=True)
        }

    def _stream(self, stream: int, begin: int, end: int) -> StreamView:
        """Split the spans from `begin` to `end` into collectives and the rows outside of them."""
        spans = self.spans[begin:end]
        op = spans["op"]
        flat = (op == Op.BEGIN) & (spans["flag"] & COLLECTIVE > 0)
        if not flat.any():
            items = np.flatnonzero(op != Op.BEGIN)
            return StreamView(stream, begin + items, op[items] == Op.CALL, spans["row"][items])
        row = spans["row"]
        end_row = np.where(op == Op.BEGIN, self.end_rows[row], row)
        whole = flat | (op == Op.CALL)
        reach = np.maximum.accumulate(np.where(whole, end_row, -1))
        inside = row <= np.concatenate([[-1], reach[:-1]])
        items = np.flatnonzero(~inside & (whole | (op != Op.BEGIN)))
        return StreamView(stream, begin + items, whole[items], end_row[items])

    @cached_property
    def end_rows(self) -> np.ndarray:
        """The row of the END of each BEGIN; other rows are their own."""
        return span_ends(self.rows)

    @cached_property
    def steps(self) -> np.ndarray:
        """Return the spans that are one training step each, in order."""
        spans = self.spans[(self.spans["op"] == Op.BEGIN) & (self.spans["flag"] & STEP > 0)]
        return spans[np.argsort(spans["row"], kind="stable")]

    def reached(self, stream: int, rows: np.ndarray) -> np.ndarray:
        """Return when `stream` came to each of `rows`: what lies before on it has ended, and every SYNC."""
        view = self.streams.get(stream)
        known, ends = self._ended(None if view is None else self.spans[view.items])
        times = _before(known, ends, rows)
        syncs, released = self._syncs
        return self.resumed(np.maximum(times, _before(syncs, released, rows)))

    def resumed(self, times: np.ndarray) -> np.ndarray:
        """Return when the rank does what it would do at `times`: a pause puts that off to its end."""
        if not len(self.pauses):
            return times
        at = np.searchsorted(self.pauses[:, 0], times, side="right") - 1
        return np.where(at >= 0, np.maximum(times, self.pauses[at, 1]), times)

    @cached_property
    def _syncs(self) -> tuple[np.ndarray, np.ndarray]:
        syncs = np.flatnonzero(self.rows["op"] == Op.SYNC)
        if not len(syncs):
            return syncs, np.empty(0)
        spans = self.spans[self.spans["op"] != Op.BEGIN]
        known, ends = self._ended(spans[np.argsort(spans["row"], kind="stable")])
        return syncs, _before(known, ends, syncs)

    @staticmethod
    def _ended(spans: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        if spans is None or not len(spans):
            return np.empty(0, dtype=np.int64), np.empty(0)
        return spans["row"], np.maximum.accumulate(spans["end_s"])


def span_ends(rows: np.ndarray) -> np.ndarray:
    """Return the row of the END of each BEGIN, past the last row where there is none; other rows are their own."""
    ends = np.arange(len(rows))
    op, stream = rows["op"], rows["stream"]
    edges = np.flatnonzero((op == Op.BEGIN) | (op == Op.END))
    for number in np.unique(stream[edges]):
        at = edges[stream[edges] == number]
        opens = op[at] == Op.BEGIN
        # The END of a span has the level of its BEGIN; at one level they alternate.
        level = np.cumsum(np.where(opens, 1, -1)) + ~opens
        ordered = at[np.argsort(level, kind="stable")]
        begins = np.flatnonzero(op[ordered[:-1]] == Op.BEGIN)
        closed = begins[op[ordered[begins + 1]] == Op.END]
        ends[at[opens]] = len(rows)
        ends[ordered[closed]] = ordered[closed + 1]
    return ends


def _before(known: np.ndarray, times: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Look up the time of the last known row below each of `rows`; 0 where there is none."""
    at = np.searchsorted(known, rows, side="left") - 1
    return np.where(at >= 0, np.append(times, 0.0)[at], 0.0)


def rank_views(
    trace: Trace, spans: np.ndarray, rank_end_s: np.ndarray, pauses: Mapping[int, np.ndarray]
) -> list[RankView]:
    """Split a span array into one view a rank, each sorted by (stream, row); `pauses` are those of some ranks.

    A span that its rank did not live to close ends with the rank.
    """
    key = spans["rank"].astype(np.int64) << 8 | spans["stream"]
    turns = np.diff(key)
    if (turns < 0).any() or (np.diff(spans["row"])[turns == 0] < 0).any():
        spans = spans[np.lexsort((spans["row"], key))]
    still_open = spans["end_s"] < spans["start_s"]
    if still_open.any():
        spans = spans.copy()
        ends = np.maximum(rank_end_s[spans["rank"]], spans["start_s"])
        spans["end_s"] = np.where(still_open, ends, spans["end_s"])
        spans["launch_s"][still_open] = 0.0
    cuts = np.searchsorted(spans["rank"], np.arange(trace.world_size + 1))
    return [
        RankView(r, trace.ranks[r], spans[cuts[r] : cuts[r + 1]], pauses.get(r, NO_PAUSES))
        for r in range(trace.world_size)
    ]
