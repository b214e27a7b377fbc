"""The streams of a rank among themselves: events that one records and another waits for, and their host's waits."""

from math import inf

from emu.engine import layout as L
from emu.engine.log import log_span
from emu.engine.memory import (
    event_times,
    event_waiters,
    inner,
    lanes,
    ranks,
    rows,
)
from emu.engine.transfer import make_ready

GO_ON, STOP = 0, -1  # what a row's function returns; or a NEED_ of `layout`


@inner("iii")
def order_streams(s, i, op):
    """Events between the streams of a rank, and its host's waits for them all."""
    lane, r = lanes(s)[i], rows(s)[lanes(s)[i].pc]
    if op == L.RECORD:
        _record(s, i, r.n)
        lane.pc += 1
        return GO_ON
    if op == L.AWAIT:
        at = event_times(s)[r.n]
        lane.start = lane.time
        if at == inf:
            lane.state = L.AWAITING
            lane.next_waiter = event_waiters(s)[r.n]
            event_waiters(s)[r.n] = i
            return STOP
        lane.time = max(lane.time, at)
        if not lane.in_call:
            log_span(s, i, lane.start, lane.time, 0.0)
        lane.pc += 1
        return GO_ON
    return _sync(s, i, r.a, r.b, r.x)


@inner("iii")
def _record(s, i, event):
    lane = lanes(s)
    at = lane[i].time
    event_times(s)[event] = at
    j = event_waiters(s)[event]
    while j >= 0:
        lane[j].time = max(lane[j].time, at)
        make_ready(s, j)
        j = lane[j].next_waiter
    event_waiters(s)[event] = -1


@inner("iiiif")
def _sync(s, i, number, parties, not_before):
    """Meet the rank's other lanes in its host's wait `number`, which ends no earlier than `not_before`.

    Zero parties only follow it.
    """
    lane, rank = lanes(s), ranks(s)[lanes(s)[i].rank]
    me = lane[i]
    if rank.sync_done >= number:
        me.time = max(me.time, rank.sync_time)
        me.pc += 1
        return GO_ON
    if parties > 0:
        rank.sync_count += 1
        rank.sync_max = max(rank.sync_max, me.time, not_before)
        if rank.sync_count == parties:
            rank.sync_done, rank.sync_count, rank.sync_time = number, 0, rank.sync_max
            j = rank.waiting
            rank.waiting = -1
            while j >= 0:
                following = lane[j].next_waiter
                lane[j].time = max(lane[j].time, rank.sync_time)
                make_ready(s, j)
                j = following
            me.time = rank.sync_time
            me.pc += 1
            return GO_ON
    me.state = L.SYNCING
    me.next_waiter = rank.waiting
    rank.waiting = i
    return STOP
