"""Progressive filling of a set of flows: the tightest link first. The flows outside keep their rates.

The set widens from here too: by faster flows of a link that turns out to bind, by groups whose link has changed, or by
all that shares a link with it.
"""

from math import inf

from numba import njit

from emu.engine import layout as L
from emu.engine.memory import (
    counts,
    fill_heap,
    flow_set,
    inner,
    links,
    messages,
    nodes,
    route_links,
    routes,
    touched_links,
)

SAME = 1e-13  # rates closer than this are the same rate: re-adding the same numbers must change nothing


@inner("ii")
def add_flow(s, m):
    """Add flow `m` to the set to be filled, unless it is there."""
    count = counts(s)
    f = messages(s)[m]
    if f.mark != count[L.EPOCH]:
        f.mark = count[L.EPOCH]
        flow_set(s)[count[L.SET_COUNT]] = m
        count[L.SET_COUNT] += 1


@inner("ii")
def add_group(s, j):
    msg = messages(s)
    m = links(s)[j].group_head
    while m >= 0:
        add_flow(s, m)
        m = msg[m].group_next


@inner("i")
def add_component(s):
    """Add all that shares a link with the set, directly or by way of others."""
    count, link, msg, node, rl = counts(s), links(s), messages(s), nodes(s), route_links(s)
    shift = count[L.NODE_SHIFT]
    chosen = flow_set(s)
    i = 0
    while i < count[L.SET_COUNT]:
        r = routes(s)[msg[chosen[i]].route]
        for h in range(r.count):
            n = link[rl[r.first + h]].head
            while n >= 0:
                add_flow(s, n >> shift)
                n = node[2 * n]
        i += 1


@njit
def _sift(h, i, n, share, j):
    """Let (share, j) sink from place `i` of a heap of `n`."""
    while True:
        down = 2 * i + 1
        if down >= n:
            break
        if down + 1 < n and (h[down + 1].time < h[down].time or (
                h[down + 1].time == h[down].time and h[down + 1].key < h[down].key)):
            down += 1
        if share < h[down].time or (share == h[down].time and j <= h[down].key):
            break
        h[i].time, h[i].key = h[down].time, h[down].key
        i = down
    h[i].time, h[i].key = share, j


@inner("i")
def _open_links(s):
    """Count the set's flows on each of their links and find the room the others leave them."""
    count, link, msg, rl, rt = counts(s), links(s), messages(s), route_links(s), routes(s)
    touched, chosen = touched_links(s), flow_set(s)
    for i in range(count[L.TOUCHED_COUNT]):
        link[touched[i]].stamp = 0
    edges = 0
    for i in range(count[L.SET_COUNT]):
        f = msg[chosen[i]]
        f.level = -1.0
        r = rt[f.route]
        for h in range(r.count):
            j = rl[r.first + h]
            k = link[j]
            if k.stamp == 0:
                k.stamp = 1
                k.inside = 0
                k.room = 0.0
                k.group_inside = 0
                touched[edges] = j
                edges += 1
            k.inside += 1
            k.room += f.rate
        if f.neck >= 0:
            link[f.neck].group_inside += 1
    count[L.TOUCHED_COUNT] = edges
    for i in range(edges):
        k = link[touched[i]]
        k.open = k.inside
        k.room = k.rate if k.inside == k.flows else max(0.0, k.rate - (k.load - k.room))


@inner("i")
def fill(s):
    """Progressive filling of the set: the tightest link first."""
    count, link, msg = counts(s), links(s), messages(s)
    _open_links(s)
    touched, chosen, h = touched_links(s), flow_set(s), fill_heap(s)
    n = 0
    for i in range(count[L.TOUCHED_COUNT]):
        k = link[touched[i]]
        h[n].time, h[n].key = k.room / k.open, touched[i]
        n += 1
    for i in range(count[L.SET_COUNT]):
        if msg[chosen[i]].cap < inf:
            h[n].time, h[n].key = msg[chosen[i]].cap, -1 - chosen[i]
            n += 1
    for i in range(n // 2 - 1, -1, -1):
        _sift(h, i, n, h[i].time, h[i].key)
    left = count[L.SET_COUNT]
    while left > 0:
        share, j = h[0].time, h[0].key
        now_share = share
        if j >= 0:
            if link[j].open == 0:
                n -= 1
                _sift(h, 0, n, h[n].time, h[n].key)
                continue
            now_share = max(share, link[j].room / link[j].open)
        if now_share > share:
            _sift(h, 0, n, now_share, j)
            continue
        if j < 0:
            if msg[-1 - j].level < 0.0:
                _freeze(s, -1 - j, share, L.OWN_CAP)
                left -= 1
        else:
            left -= _freeze_link(s, j, share)
        n -= 1
        _sift(h, 0, n, h[n].time, h[n].key)


@inner("iifi")
def _freeze(s, m, share, neck):
    link, rl = links(s), route_links(s)
    f = messages(s)[m]
    f.level = share
    f.new_neck = neck
    r = routes(s)[f.route]
    for h in range(r.count):
        k = link[rl[r.first + h]]
        k.room = max(0.0, k.room - share)
        k.open -= 1


@inner("iif")
def _freeze_link(s, j, share):
    """Freeze the set's open flows of link `j`; return how many. Faster ones held fixed join the set."""
    count, msg, node = counts(s), messages(s), nodes(s)
    shift, epoch = count[L.NODE_SHIFT], count[L.EPOCH]
    frozen = 0
    n = links(s)[j].head
    while n >= 0:
        m = n >> shift
        f = msg[m]
        if f.mark != epoch:
            if f.rate > share * (1.0 + SAME):
                add_flow(s, m)
                f.level = 0.0
        elif f.level < 0.0:
            _freeze(s, m, share, j)
            frozen += 1
        n = node[2 * n]
    return frozen


@njit
def changed(f):
    return abs(f.level - f.rate) > SAME * f.rate


@inner("i")
def add_bound(s):
    """Add the fixed groups of links on which a flow of the set has changed."""
    count, link, msg, rl = counts(s), links(s), messages(s), route_links(s)
    chosen = flow_set(s)
    for i in range(count[L.SET_COUNT]):
        f = msg[chosen[i]]
        if changed(f):
            r = routes(s)[f.route]
            for h in range(r.count):
                k = link[rl[r.first + h]]
                if k.stamp == 1 and k.group > k.group_inside:
                    k.group_inside = k.group
                    add_group(s, rl[r.first + h])
