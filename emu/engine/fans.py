"""Fans: many flows through one link, each alone elsewhere, as when workers push to a server.

All flows of a fan have one rate, so how much each has had since the fan formed is one number, its volume. A
flow leaves when the volume reaches its mark; coming, going and a new rate then cost a few steps however many
flows there are. Links that the whole fan crosses besides its hub (the server's lanes behind its NIC) are
common to it. As soon as a flow of the fan shares any other link, the fan is dissolved into plain flows.
"""

from math import inf

from emu.engine import layout as L
from emu.engine.events import push
from emu.engine.groups import join_group, mark_dirty
from emu.engine.memory import (
    counts,
    fans,
    inner,
    links,
    messages,
    nodes,
    route_links,
    routes,
    touched_links,
)

SMALLEST = 6  # flows; fewer are as quickly shared one by one
OFTEN = 4  # rebase after so many departures a flow, before the volume swamps what flows have left


@inner("ii")
def _own_limit(s, m):
    """Return what holds back a flow of a fan apart from the fan: its own links and cap."""
    link, rl = links(s), route_links(s)
    f = messages(s)[m]
    r = routes(s)[f.route]
    limit = f.cap
    for h in range(r.count):
        k = link[rl[r.first + h]]
        if k.hub < 0:
            limit = min(limit, k.rate)
    return limit


@inner("iii")
def _melt(s, a, b):
    """Join two heaps of flows ordered by their marks; return the root."""
    msg = messages(s)
    if a < 0:
        return b
    if b < 0:
        return a
    if msg[b].level < msg[a].level or (msg[b].level == msg[a].level and b < a):
        a, b = b, a
    msg[b].heap_next = msg[a].heap_child
    msg[a].heap_child = b
    return a


@inner("ii")
def _without_top(s, a):
    """Return the heap `a` without its root: its children joined in pairs, then all into one."""
    msg = messages(s)
    pairs = -1
    child = msg[a].heap_child
    while child >= 0:
        other = msg[child].heap_next
        following = msg[other].heap_next if other >= 0 else -1
        msg[child].heap_next = -1
        if other >= 0:
            msg[other].heap_next = -1
        both = _melt(s, child, other)
        msg[both].heap_next = pairs
        pairs = both
        child = following
    whole = -1
    while pairs >= 0:
        following = msg[pairs].heap_next
        msg[pairs].heap_next = -1
        whole = _melt(s, whole, pairs)
        pairs = following
    return whole


@inner("iif")
def _advance(s, j, now):
    fan = fans(s)[j]
    fan.volume += fan.level * (now - fan.since)
    fan.since = now


@inner("iif")
def form_fan(s, j, now):
    """Make link `j`, whose group was just rated and is all there is on its links, a fan."""
    link, msg, touched = links(s), messages(s), touched_links(s)
    fan = fans(s)[j]
    fan.volume, fan.since, fan.limit, fan.top, fan.left = 0.0, now, inf, -1, 0
    fan.level = msg[link[j].group_head].rate
    fan.common = 0
    for i in range(counts(s)[L.TOUCHED_COUNT]):
        if link[touched[i]].flows == link[j].flows:
            link[touched[i]].hub = j
            fan.common += 1
    m = link[j].group_head
    while m >= 0:
        f = msg[m]
        f.level = f.left - f.rate * (now - f.last)
        f.heap_child = f.heap_next = -1
        fan.top = _melt(s, fan.top, m)
        fan.limit = min(fan.limit, _own_limit(s, m))
        m = f.group_next


@inner("iif")
def dissolve_fan(s, j, now):
    """Make the flows of fan `j` plain flows again, to be rated in this instant."""
    link, msg, rl, fan = links(s), messages(s), route_links(s), fans(s)[j]
    _advance(s, j, now)
    m = link[j].group_head
    while m >= 0:
        f = msg[m]
        f.left = max(0.0, f.level - fan.volume)
        f.last, f.rate = now, fan.level
        f.finish = now + f.left / f.rate if f.rate > 0.0 else inf
        r = routes(s)[f.route]
        for h in range(r.count):
            k = link[rl[r.first + h]]
            k.load = fan.level if k.hub < 0 else fan.level * link[j].group
        m = f.group_next
    r = routes(s)[msg[link[j].group_head].route]
    for h in range(r.count):
        link[rl[r.first + h]].hub = -1
    mark_dirty(s, j)


@inner("iif")
def join_fan(s, m, now):
    """Let message `m`, put on its links just now, join the fan that it meets there; say whether it could.

    It could not if it meets several, or a flow outside its fan: those fans are dissolved.
    """
    link, rl = links(s), route_links(s)
    msg = messages(s)
    f = msg[m]
    r = routes(s)[f.route]
    hub, met, shared = -1, 0, 0
    for h in range(r.count):
        k = link[rl[r.first + h]]
        if k.flows > 1:
            shared += 1
            if k.hub >= 0 and (hub < 0 or k.hub == hub):
                hub = k.hub
                met += 1
    if hub >= 0 and met == shared == fans(s)[hub].common:
        fan, k = fans(s)[hub], link[hub]
        limit = _own_limit(s, m)
        if k.rate / k.flows <= limit:
            _advance(s, hub, now)
            f.level = fan.volume + f.left
            f.heap_child = f.heap_next = -1
            join_group(s, m, hub)
            fan.top = _melt(s, fan.top, m)
            fan.limit = min(fan.limit, limit)
            mark_dirty(s, hub)
            return True
    dissolve_met(s, m, now)
    return False


@inner("iif")
def dissolve_met(s, m, now):
    """Dissolve the fans whose flows message `m` shares a link with."""
    link, rl = links(s), route_links(s)
    r = routes(s)[messages(s)[m].route]
    for h in range(r.count):
        j = rl[r.first + h]
        if link[j].flows > 1:
            dissolve_at(s, j, now)


@inner("iif")
def dissolve_at(s, j, now):
    """Dissolve the fan that link `j` belongs to, or that its flow belongs to."""
    link, msg = links(s), messages(s)
    hub = link[j].hub
    if hub < 0 and link[j].flows <= 2:
        n = link[j].head
        while n >= 0 and hub < 0:
            neck = msg[n >> counts(s)[L.NODE_SHIFT]].neck
            if neck >= 0 and link[neck].hub == neck:
                hub = neck
            n = nodes(s)[2 * n]
    if hub >= 0:
        dissolve_fan(s, hub, now)


@inner("iif")
def rate_fan(s, j, now):
    """Give fan `j` the rate that its number of flows allows; dissolve it if its flows' own links bind."""
    k, fan = links(s)[j], fans(s)[j]
    level = k.rate / k.flows
    if level > fan.limit:
        dissolve_fan(s, j, now)
        return
    _advance(s, j, now)
    fan.level = level
    if fan.left > OFTEN * k.flows + 64:
        _rebase(s, j)
    k.group_finish = now + max(0.0, messages(s)[fan.top].level - fan.volume) / level
    if k.group_finish != k.scheduled:
        k.scheduled = k.group_finish
        push(s, k.group_finish, (L.KIND_LINK << L.KIND_SHIFT) | j, j)


@inner("ii")
def _rebase(s, j):
    msg, fan = messages(s), fans(s)[j]
    m = links(s)[j].group_head
    while m >= 0:
        msg[m].level -= fan.volume
        m = msg[m].group_next
    fan.volume = 0.0
    fan.left = 0


@inner("iif")
def reach_mark(s, j, now):
    """Let the volume of fan `j` be its next flow's mark, as that flow is done now.

    What is left by rounding, less than goes in the least step of time, would never go.
    """
    fan = fans(s)[j]
    fan.volume = max(fan.volume, messages(s)[fan.top].level)
    fan.since = now


@inner("ii")
def next_of_fan(s, j):
    """Take the next flow of fan `j` that is done, -1 if there is none."""
    msg, fan = messages(s), fans(s)[j]
    m = fan.top
    if m < 0 or msg[m].level > fan.volume:
        return -1
    fan.top = _without_top(s, m)
    fan.left += 1
    return m
