"""The group of a link: the flows that it holds back, with one rate and one finish event."""

from math import inf

from emu.engine import layout as L
from emu.engine.events import push
from emu.engine.memory import counts, dirty_links, inner, lanes, links, messages


@inner("iii", inline=True)
def schedule(s, m, neck):
    """Plan the finish of a group, or of one flow with a cap of its own."""
    if neck >= 0:
        k = links(s)[neck]
        if k.group_finish < inf and k.scheduled != k.group_finish:
            k.scheduled = k.group_finish
            push(s, k.group_finish, (L.KIND_LINK << L.KIND_SHIFT) | neck, neck)
    elif messages(s)[m].finish < inf:
        f = messages(s)[m]
        order = (lanes(s)[f.src_lane].key << 20) | (f.number & 0xFFFFF)
        push(s, f.finish, (L.KIND_FLOW << L.KIND_SHIFT) | order, m)


@inner("ii", inline=True)
def mark_dirty(s, j):
    """Remember that the flows of link `j` may have to be rated again."""
    k = links(s)[j]
    if k.dirty == 0:
        k.dirty = 1
        count = counts(s)
        dirty_links(s)[count[L.DIRTY_COUNT]] = j
        count[L.DIRTY_COUNT] += 1


@inner("iii", inline=True)
def join_group(s, m, neck):
    """Make link `neck` (or the flow's own cap) what holds `m` back."""
    msg = messages(s)
    f = msg[m]
    f.neck = neck
    if neck >= 0:
        k = links(s)[neck]
        f.group_prev = -1
        f.group_next = k.group_head
        if k.group_head >= 0:
            msg[k.group_head].group_prev = m
        k.group_head = m
        k.group += 1


@inner("ii", inline=True)
def leave_group(s, m):
    msg = messages(s)
    f = msg[m]
    if f.neck >= 0:
        k = links(s)[f.neck]
        if f.group_prev >= 0:
            msg[f.group_prev].group_next = f.group_next
        else:
            k.group_head = f.group_next
        if f.group_next >= 0:
            msg[f.group_next].group_prev = f.group_prev
        k.group -= 1
        if k.group == 0:
            k.group_finish = inf
            k.scheduled = inf
    f.neck = L.NO_NECK
