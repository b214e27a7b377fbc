"""Who waited for whom: when the last rank came to each collective, and when a message's other side was posted.

Before that moment a wait is a wait for a slower rank; after it, the links are at work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emu.timeline.messages import Messages
from emu.timeline.routes import NOWHERE, Ways
from emu.timeline.tiling import GAP, Cause
from emu.timeline.views import RankView
from emu.trace import Op, Trace

NEVER = -np.inf  # nobody else had to come


@dataclass(frozen=True)
class Meetings:
    """For each item of a stream: when the last one that it needs came, who that was, and over which way.

    `own_s` is when this rank did its own part of it: entered the collective, or posted the message.
    Where sends lie before an item, what they cost the stream runs from `lead_s` to the item's start and has
    the cause `before`, GAP elsewhere. `flap` is the declared flap of a link on the way, -1 without one, and
    `down` when the link of each flap is down: sorted, disjoint (start_s, end_s).
    """

    met_s: np.ndarray
    rank: np.ndarray
    stream: np.ndarray
    own_s: np.ndarray
    way: np.ndarray
    link_class: np.ndarray
    lead_s: np.ndarray
    before: np.ndarray
    flap: np.ndarray
    down: Sequence[np.ndarray]


def meet(views: list[RankView], trace: Trace, ways: Ways) -> list[dict[int, Meetings]]:
    """Return the meetings of every rank's streams."""
    end_s = max((float(view.spans["end_s"].max(initial=0.0)) for view in views), default=0.0)
    down = [_down(flap, end_s) for flap in ways.flaps]
    meetings = [{s: _none(len(sv.items), down) for s, sv in view.streams.items()} for view in views]
    _collectives(views, trace, ways, meetings)
    messages = Messages(trace, views)
    _waits(views, messages, ways, meetings)
    _sends(views, messages, ways, meetings)
    classes = np.array([way.link_class for way in ways.known])
    for of_rank in meetings:
        for one in of_rank.values():
            one.link_class[:] = classes[one.way]
    return meetings


def _none(n: int, down: Sequence[np.ndarray]) -> Meetings:
    return Meetings(
        met_s=np.full(n, NEVER),
        rank=np.full(n, -1),
        stream=np.full(n, -1),
        own_s=np.full(n, NEVER),
        way=np.full(n, NOWHERE),
        link_class=np.zeros(n, dtype=np.int32),
        lead_s=np.zeros(n),
        before=np.full(n, GAP, dtype=np.int32),
        flap=np.full(n, -1),
        down=down,
    )


def _down(flap: Any, end_s: float) -> np.ndarray:
    """Return when a flapping link is down, up to `end_s`."""
    starts = np.arange(flap.start_s, max(end_s, flap.start_s), flap.period_s)
    return np.stack([starts, starts + flap.down_s], axis=1)


def _collectives(views: list[RankView], trace: Trace, ways: Ways, meetings: list[dict[int, Meetings]]) -> None:
    parties = _Parties(trace)
    calls, places = [], []
    keys_of_ways = [ways.order, ways.flap_order] if ways.flaps else [ways.order]
    for view in views:
        row_ways = [ways.of_rows(view.rank, view.rows, key) for key in keys_of_ways]
        for number, stream in view.streams.items():
            at = np.flatnonzero(stream.whole)
            if not len(at):
                continue
            spans = view.spans[stream.items[at]]
            contexts = spans["context"]
            party = parties.of(view, stream.items[at], stream.end_rows[at])
            way = [
                _first_within(ways, mine, spans["row"], stream.end_rows[at], key)
                for mine, key in zip(row_ways, keys_of_ways, strict=True)
            ]
            n = len(at)
            came = view.resumed(spans["start_s"])
            columns = (np.full(n, number), contexts, party, _ordinals(contexts), came, way[0], way[-1])
            calls.append(np.stack([np.asarray(c, dtype=np.float64) for c in columns]))
            places.append((view.rank, number, at))
    if not calls:
        return
    number, context, party, ordinal, start, way, flapping = np.concatenate(calls, axis=1)
    party = parties.roots(context.astype(np.int64), party.astype(np.int64))
    rank = np.repeat([r for r, _, _ in places], [len(at) for _, _, at in places])
    # Members of one call stand together, the last arrival at the end of each run.
    order = np.lexsort((rank, start, ordinal, party, context, number))
    keys = np.stack([number, context, party, ordinal])[:, order]
    first = np.flatnonzero(np.append(True, (np.diff(keys) != 0).any(axis=0)))
    sizes = np.diff(np.append(first, len(order)))
    last = order[first + sizes - 1]
    slowest = _first_of(ways, way.astype(np.int64)[order], first, ways.order)
    flapping = _first_of(ways, flapping.astype(np.int64)[order], first, ways.flap_order)
    # Where this rank's own way is as slow as the slowest, that one is named.
    rates = np.array([known.bytes_per_s for known in ways.known])
    values = np.empty((5, len(order)))
    of_call = np.stack([start[last], rank[last], number[last], slowest, flapping])
    values[:, order] = np.repeat(of_call, sizes, axis=1)
    own, by = way.astype(np.int64), values[3].astype(np.int64)
    values[3] = np.where(rates[own] == rates[by], own, by)
    flaps = np.array([known.flap for known in ways.known])[values[4].astype(np.int64)]
    begin = 0
    for r, s, at in places:
        met, who, stream_number, by, _ = values[:, begin : begin + len(at)]
        mine = meetings[r][s]
        mine.met_s[at], mine.rank[at], mine.stream[at], mine.way[at] = met, who, stream_number, by
        mine.own_s[at], mine.flap[at] = start[begin : begin + len(at)], flaps[begin : begin + len(at)]
        begin += len(at)


def _ordinals(keys: np.ndarray) -> np.ndarray:
    """Number equal keys from 0, in order."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    first = np.append(True, ordered[1:] != ordered[:-1])
    starts = np.maximum.accumulate(np.where(first, np.arange(len(keys)), 0))
    ordinals = np.empty(len(keys), dtype=np.int64)
    ordinals[order] = np.arange(len(keys)) - starts
    return ordinals


def _first_within(
    ways: Ways, row_ways: np.ndarray, first: np.ndarray, last: np.ndarray, key: Callable[[int], tuple]
) -> np.ndarray:
    """Return the first way by `key` among the rows of each collective."""
    rows = np.flatnonzero(row_ways != NOWHERE)
    lo, hi = np.searchsorted(rows, first), np.searchsorted(rows, last, side="right")
    found = np.full(len(first), NOWHERE)
    busy = hi > lo
    if busy.any():
        # Rows between two collectives fall into every other range, which is thrown away.
        cuts = np.stack([lo[busy], hi[busy]], axis=1).ravel()
        padded = np.append(row_ways[rows], NOWHERE)
        found[busy] = _first_of(ways, padded, cuts, key)[::2]
    return found


def _first_of(ways: Ways, numbers: np.ndarray, cuts: np.ndarray, key: Callable[[int], tuple]) -> np.ndarray:
    """Return the first way by `key` from each cut to the next."""
    named, which = np.unique(numbers, return_inverse=True)
    ordered = np.array(sorted(range(len(named)), key=lambda k: key(int(named[k]))))
    place = np.empty(len(ordered), dtype=np.int64)
    place[ordered] = np.arange(len(ordered))
    return named[ordered[np.minimum.reduceat(place[which], cuts)]]


class _Parties:
    """Which ranks meet in a context: disjoint groups may bear the same context number."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._parent: dict[tuple[int, int], tuple[int, int]] = {}

    def of(self, view: RankView, items: np.ndarray, end_rows: np.ndarray) -> np.ndarray:
        """Return this rank for each collective, after joining it with those it meets there."""
        spans = view.spans[items]
        _, some = np.unique(spans["context"].astype(np.int64) << 8 | spans["op"], return_index=True)
        for i in some.tolist():
            context, row = int(spans["context"][i]), int(spans["row"][i])
            if spans["op"][i] == Op.CALL:
                peers = [self._trace.groups[int(view.rows["b"][row])][0]]
            else:
                rows = view.rows[row : int(end_rows[i]) + 1]
                messages = ((rows["op"] == Op.SEND) | (rows["op"] == Op.RECV)) & (rows["a"] >= 0)
                peers = np.unique(rows["a"][messages]).tolist()
            for peer in peers:
                self._join((context, view.rank), (context, peer))
        return np.full(len(items), view.rank)

    def roots(self, contexts: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Return the ranks that stand for the parties of `ranks` in their contexts."""
        distinct, where = np.unique(contexts << 32 | ranks, return_inverse=True)
        found = [self._find((key >> 32, key & 0xFFFFFFFF))[1] for key in distinct.tolist()]
        return np.array(found, dtype=np.int64)[where]

    def _find(self, who: tuple[int, int]) -> tuple[int, int]:
        path = []
        while (parent := self._parent.get(who, who)) != who:
            path.append(who)
            who = parent
        for node in path:
            self._parent[node] = who
        return who

    def _join(self, a: tuple[int, int], b: tuple[int, int]) -> None:
        low, high = sorted((self._find(a), self._find(b)))
        self._parent[high] = low


def _waits(views: list[RankView], messages: Messages, ways: Ways, meetings: list[dict[int, Meetings]]) -> None:
    for view in views:
        for number, stream in view.streams.items():
            op = view.spans["op"][stream.items]
            at = np.flatnonzero((op == Op.WAIT) & ~stream.whole)
            if not len(at):
                continue
            spans = view.spans[stream.items[at]]
            wait, message = messages.waited(view.rank, number, spans["row"])
            if not len(wait):
                continue
            partner = messages.partner[message]
            came = np.where(partner >= 0, messages.posted_s[partner], np.inf)
            # An eager send is over before its receiver comes: it cannot have been what was waited for.
            early = (partner >= 0) & (came > spans["end_s"][wait])
            came = np.where(early, NEVER, came)
            order = np.lexsort((came, wait))
            last = order[np.flatnonzero(np.append(np.diff(wait[order]) != 0, True))]
            mine, where = meetings[view.rank][number], at[wait[last]]
            mine.met_s[where], mine.own_s[where] = came[last], messages.posted_s[message[last]]
            known = partner[last]
            mine.rank[where] = np.where(known >= 0, messages.rank[known], -1)
            mine.stream[where] = np.where(known >= 0, messages.stream[known], -1)
            used = np.array([messages.way(ways, m) for m in message.tolist()])
            first = np.flatnonzero(np.append(True, np.diff(wait) != 0))
            mine.way[where] = _first_of(ways, used, first, ways.order)
            flapping = _first_of(ways, used, first, ways.flap_order)
            mine.flap[where] = [ways.known[number].flap for number in flapping.tolist()]


def _sends(views: list[RankView], messages: Messages, ways: Ways, meetings: list[dict[int, Meetings]]) -> None:
    """Tell which holes between items are the overhead of sends; what lies before a SYNC is part of its wait."""
    for view in views:
        mine = messages.of(view.rank)
        mine = mine[messages.sends[mine]]
        if not len(mine):
            continue
        syncs = np.append(-1, np.flatnonzero(view.rows["op"] == Op.SYNC))
        for number, stream in view.streams.items():
            sent = mine[messages.stream[mine] == number]
            rows, sends = view.spans["row"][stream.items], messages.row[sent]
            since = np.maximum(np.append(-1, stream.end_rows[:-1]), syncs[np.searchsorted(syncs, rows) - 1])
            first = np.searchsorted(sends, since, side="right")
            here = meetings[view.rank][number]
            for item in np.flatnonzero(first < np.searchsorted(sends, rows)).tolist():
                message = int(sent[first[item]])
                way = ways.known[messages.way(ways, message)]
                here.lead_s[item], here.before[item] = (
                    messages.posted_s[message],
                    Cause.EXPOSED + way.link_class,
                )
