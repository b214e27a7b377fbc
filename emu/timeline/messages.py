"""Messages outside of collectives: which send met which receive, and when each side posted it."""

from __future__ import annotations

import numpy as np

from emu.timeline.routes import NOWHERE, Ways
from emu.timeline.views import RankView
from emu.trace import ANY, COLLECTIVE, Op, Trace


class Messages:
    """All plain SEND and RECV rows of a trace.

    `partner[i]` is the message that i met, or -1 where a receive that takes any source or tag leaves that
    to the order of arrival; `posted_s[i]` is when its stream came to it.
    """

    def __init__(self, trace: Trace, views: list[RankView]) -> None:
        self._trace = trace
        self._requests = [
            np.count_nonzero((t.rows["op"] == Op.SEND) | (t.rows["op"] == Op.RECV)) for t in trace.templates
        ]
        found = [_plain(rows) for rows in trace.ranks]
        self._first = np.cumsum([0] + [len(at) for at in found])
        self.row = np.concatenate(found) if found else np.empty(0, dtype=np.int64)
        self.rank = np.repeat(np.arange(len(found)), [len(at) for at in found])
        rows = np.concatenate([trace.ranks[r][at] for r, at in enumerate(found)])
        self.stream, self.peer = rows["stream"], rows["a"]
        self.sends = rows["op"] == Op.SEND
        self.partner = _partners(rows, self.rank)
        self.posted_s = np.zeros(len(rows))
        for view in views:
            mine = self.of(view.rank)
            for stream in np.unique(self.stream[mine]).tolist():
                of_stream = mine[self.stream[mine] == stream]
                self.posted_s[of_stream] = view.reached(stream, self.row[of_stream])

    def of(self, rank: int) -> np.ndarray:
        """Return the numbers of a rank's messages, in order of its rows."""
        return np.arange(self._first[rank], self._first[rank + 1])

    def waited(self, rank: int, stream: int, wait_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs (which WAIT, which message) for the plain messages that WAIT rows of a stream wait for."""
        rows = self._trace.ranks[rank]
        made = np.zeros(len(rows), dtype=np.int64)
        here = rows["stream"] == stream
        made[here & ((rows["op"] == Op.SEND) | (rows["op"] == Op.RECV))] = 1
        calls = np.flatnonzero(here & (rows["op"] == Op.CALL))
        if len(calls):
            made[calls] = np.array(self._requests)[rows["a"][calls]]
        total = np.cumsum(made)
        back, count = rows["a"][wait_rows].astype(np.int64), rows["b"][wait_rows].astype(np.int64)
        wait = np.repeat(np.arange(len(wait_rows)), count)
        offset = np.arange(len(wait)) - np.repeat(np.cumsum(count) - count, count)
        request = total[wait_rows][wait] - back[wait] + offset
        row = np.searchsorted(total, request, side="right")
        mine = self.row[self._first[rank] : self._first[rank + 1]]
        place = np.searchsorted(mine, row)
        plain = np.append(mine, -1)[place] == row
        return wait[plain], self._first[rank] + place[plain]

    def way(self, ways: Ways, message: int) -> int:
        """Return the way that a message takes."""
        me, peer = int(self.rank[message]), int(self.peer[message])
        if peer < 0:
            return NOWHERE
        return ways.pair(me, peer) if self.sends[message] else ways.pair(peer, me)


def _plain(rows: np.ndarray) -> np.ndarray:
    op = rows["op"]
    return np.flatnonzero(((op == Op.SEND) | (op == Op.RECV)) & (rows["flag"] & COLLECTIVE == 0))


def _partners(rows: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Pair the i-th send with the i-th receive of equal (context, source, destination, tag)."""
    n = len(rows)
    partner = np.full(n, -1)
    if not n:
        return partner
    sends, peer, context, tag = rows["op"] == Op.SEND, rows["a"], rows["c"], rows["b"]
    src, dst = np.where(sends, rank, peer), np.where(sends, peer, rank)
    free = ~sends & ((peer == ANY) | (tag == ANY))
    mailbox = context.astype(np.int64) << 32 | dst
    settled = ~np.isin(mailbox, mailbox[free])
    order = np.lexsort((np.arange(n), sends, tag, dst, src, context))
    order = order[settled[order]]
    keys = np.stack([context, src, dst, tag, sends])[:, order]
    fresh = np.append(True, (np.diff(keys) != 0).any(axis=0)) if len(order) else np.empty(0, dtype=bool)
    places = np.arange(len(order))
    ordinal = places - np.maximum.accumulate(np.where(fresh, places, 0))
    again = np.lexsort((keys[4], ordinal, keys[3], keys[2], keys[1], keys[0]))
    ids = order[again]
    same = (np.diff(np.stack([*keys[:4, again], ordinal[again]])) == 0).all(axis=0)
    one, other = ids[:-1][same], ids[1:][same]
    partner[one], partner[other] = other, one
    return partner
