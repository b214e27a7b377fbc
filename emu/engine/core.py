"""The loop: take what happens next, let it happen, and share the links anew once an instant."""

from math import inf

from emu.engine import layout as L
from emu.engine.events import NONE, drop, first_queue, head
from emu.engine.fans import next_of_fan, reach_mark
from emu.engine.faults import change_links
from emu.engine.groups import mark_dirty
from emu.engine.look_ahead import look_ahead
from emu.engine.matching import envelope_arrives
from emu.engine.memory import counts, entry, inner, lanes, links, messages, reals
from emu.engine.sharing import refill
from emu.engine.steps import walk
from emu.engine.tcp import port_round, window_round
from emu.engine.transfer import finish_message, make_ready


@inner("ifii", inline=True)
def _happen(s, time, kind, what):
    """Let one event happen, unless it is stale."""
    if kind == L.KIND_WAKE:
        lanes(s)[what].awake = 1
        make_ready(s, what)
    elif kind == L.KIND_LINK:
        if links(s)[what].scheduled == time:
            links(s)[what].scheduled = inf  # its event is gone: one more in this instant needs another
        if links(s)[what].group_finish == time:
            _finish_group(s, what, time)
    elif kind == L.KIND_FLOW:
        f = messages(s)[what]
        if f.status & L.FLYING and f.neck == L.OWN_CAP and f.finish == time:
            finish_message(s, what, time)
    elif kind == L.KIND_ROUND:
        window_round(s, what, time)
    elif kind == L.KIND_PORT:
        port_round(s, what, time)
    elif kind == L.KIND_ENVELOPE:
        if messages(s)[what].envelope == time:
            envelope_arrives(s, what, time)


@inner("iif")
def _finish_group(s, j, time):
    """Finish the flows of link `j` whose time has come; where there is none by now, have it rated again."""
    msg = messages(s)
    if links(s)[j].hub == j:
        reach_mark(s, j, time)
        m = next_of_fan(s, j)
        while m >= 0:
            finish_message(s, m, time)
            m = next_of_fan(s, j) if links(s)[j].hub == j else -1
        return
    some = False
    m = links(s)[j].group_head
    while m >= 0:
        following = msg[m].group_next
        if msg[m].finish <= time:
            finish_message(s, m, time)
            some = True
        m = following
    if not some:
        mark_dirty(s, j)


@entry("int64(int64)")
def run(s):
    """Advance until nothing happens any more (IDLE), the horizon (AT_HORIZON), or an array is full (NEED_...)."""
    count, real, lane = counts(s), reals(s), lanes(s)
    while True:
        while count[L.READY_HEAD] >= 0:
            if real[L.HORIZON] <= real[L.NOW]:
                return L.AT_HORIZON
            i = count[L.READY_HEAD]
            count[L.READY_HEAD] = lane[i].next
            need = walk(s, i)
            if need > 0:
                lane[i].next = count[L.READY_HEAD]
                if count[L.READY_HEAD] < 0:
                    count[L.READY_TAIL] = i
                count[L.READY_HEAD] = i
                return need
        if real[L.HORIZON] <= real[L.NOW]:
            return L.AT_HORIZON
        q = first_queue(s)
        time, key, what = inf, 0, 0
        if q != NONE:
            time, key, what = head(s, q)
        if time > real[L.NOW] or q == NONE:
            if count[L.HEAP_COUNT] + 3 * count[L.MSG_CAPACITY] + 2 * count[L.LINK_COUNT] + count[L.LANE_COUNT] + (
                    3 * count[L.TCP_COUNT]) > count[L.HEAP_CAPACITY]:
                return L.NEED_HEAP
            if count[L.DIRTY_COUNT] > 0 or count[L.NEW_COUNT] > 0:
                refill(s)
                continue
            if q == NONE and (count[L.ON_LINKS] == 0 or real[L.NEXT_FAULT] == inf):
                return L.IDLE
            time = min(time, real[L.NEXT_FAULT])
            if time >= real[L.HORIZON]:
                return L.AT_HORIZON
            if count[L.LOG_SPANS] and count[L.TCP_COUNT] > 0 and count[L.LINK_COUNT] + 4 * count[L.TCP_COUNT] + max(
                    count[L.WINDOW_LOG], count[L.QUEUE_LOG]) > count[L.LOG_CAPACITY]:
                return L.NEED_LOG
            real[L.NOW] = time
            if time == real[L.NEXT_FAULT]:
                change_links(s)
                continue
        drop(s, q)
        look_ahead(s, q)
        count[L.EVENTS] += 1
        _happen(s, time, key >> L.KIND_SHIFT, what)
