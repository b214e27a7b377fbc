"""Max-min fair sharing, kept up as flows come and go.

Every flow has a neck: the link that holds it back (or its own cap). The flows with the same neck are that
link's group; they have one rate, and the group has one finish event. When flows come or go, only those that
can change are filled again: the newcomers and the groups of the links concerned; then, as long as a link
turns out to bind flows that were held fixed, those too.
"""

from math import inf

from emu.engine import layout as L
from emu.engine.fans import SMALLEST, form_fan, join_fan, rate_fan
from emu.engine.filling import add_bound, add_component, add_flow, add_group, changed, fill
from emu.engine.groups import join_group, leave_group, mark_dirty, schedule
from emu.engine.memory import (
    counts,
    dirty_links,
    flow_set,
    inner,
    links,
    losses,
    messages,
    new_flows,
    nodes,
    reals,
    regroup_links,
    route_links,
    routes,
    touched_links,
)

WIDEN_AT_ONCE = 6  # after so many rounds, take the whole connected component


@inner("iif")
def insert_flow(s, m, now):
    """Put message `m` on its links; rate it at once when it is alone there."""
    msg, link, rl, node = messages(s), links(s), route_links(s), nodes(s)
    f = msg[m]
    r = routes(s)[f.route]
    base = m << counts(s)[L.NODE_SHIFT]
    alone = True
    for h in range(r.count):
        k = link[rl[r.first + h]]
        n = base + h
        node[2 * n] = k.head
        node[2 * n + 1] = -1
        if k.head >= 0:
            node[2 * k.head + 1] = n
        k.head = n
        k.flows += 1
        if k.flows > 1:
            alone = False
    f.last = now
    f.status |= L.FLYING
    f.neck = L.NO_NECK
    f.rate = 0.0
    f.finish = inf
    count = counts(s)
    count[L.ON_LINKS] += 1
    if alone and count[L.FAULT_COUNT] == 0 and f.cap >= r.rate:
        _rate_alone(s, m, r.rate, r.neck, now)
        return
    if not alone and join_fan(s, m, now):
        return
    new_flows(s)[count[L.NEW_COUNT]] = m
    count[L.NEW_COUNT] += 1
    for h in range(r.count):
        if link[rl[r.first + h]].flows > 1:
            mark_dirty(s, rl[r.first + h])


@inner("iifif", inline=True)
def _rate_alone(s, m, rate, neck, now):
    link, rl = links(s), route_links(s)
    f = messages(s)[m]
    r = routes(s)[f.route]
    f.rate = rate
    f.finish = now + f.left / rate if rate > 0.0 else inf
    for h in range(r.count):
        link[rl[r.first + h]].load = rate
    join_group(s, m, neck)
    if neck >= 0:
        link[neck].group_finish = f.finish
    schedule(s, m, neck)


@inner("ii", inline=True)
def remove_flow(s, m):
    """Take message `m` off its links. Room on a link that held nobody back changes nothing."""
    link, rl, node = links(s), route_links(s), nodes(s)
    f = messages(s)[m]
    r = routes(s)[f.route]
    base = m << counts(s)[L.NODE_SHIFT]
    leave_group(s, m)
    counts(s)[L.ON_LINKS] -= 1
    for h in range(r.count):
        j = rl[r.first + h]
        k = link[j]
        n = base + h
        after, before = node[2 * n], node[2 * n + 1]
        if before >= 0:
            node[2 * before] = after
        else:
            k.head = after
        if after >= 0:
            node[2 * after + 1] = before
        k.flows -= 1
        k.carried += f.bytes
        if k.flows == 0:
            k.load = 0.0
            k.hub = -1
        else:
            k.load -= f.rate
            k.stale += 1
            if k.group > 0:
                mark_dirty(s, j)
    f.status &= ~L.FLYING


@inner("i")
def refill(s):
    """Give the flows that can have changed in this instant their new rates."""
    count, link = counts(s), links(s)
    now = reals(s)[L.NOW]
    _rate_fans(s, now)
    _start_set(s)
    if count[L.SET_COUNT] > 0:
        count[L.REFILLS] += 1
        rounds = 0
        while True:
            before = count[L.SET_COUNT]
            fill(s)
            if count[L.SET_COUNT] == before:
                add_bound(s)
            if count[L.SET_COUNT] == before:
                break
            rounds += 1
            if rounds >= WIDEN_AT_ONCE:
                add_component(s)
        count[L.REFILLED] += count[L.SET_COUNT]
        _apply(s, now)
    dirty = dirty_links(s)
    for i in range(count[L.DIRTY_COUNT]):
        link[dirty[i]].dirty = 0
        if link[dirty[i]].hub < 0:
            _want_regroup(s, dirty[i])
    count[L.DIRTY_COUNT] = 0
    count[L.CROWDED] = 0
    count[L.NEW_COUNT] = 0
    _regroup(s)
    if count[L.SET_COUNT] >= SMALLEST and count[L.TCP_COUNT] == 0:
        _look_for_fan(s, now)


@inner("if")
def _rate_fans(s, now):
    """Rate the fans among the dirty links."""
    count, link, dirty = counts(s), links(s), dirty_links(s)
    for i in range(count[L.DIRTY_COUNT]):
        if link[dirty[i]].hub == dirty[i]:
            rate_fan(s, dirty[i], now)


@inner("if")
def _look_for_fan(s, now):
    """Make a fan of the flows just rated, if they are all on one neck and each alone elsewhere."""
    count, link, touched = counts(s), links(s), touched_links(s)
    flows = count[L.SET_COUNT]
    neck = messages(s)[flow_set(s)[0]].neck
    if neck < 0 or link[neck].group != flows or link[neck].flows != flows or link[neck].rate <= 0.0:
        return
    for i in range(count[L.TOUCHED_COUNT]):
        k = link[touched[i]]
        if (k.flows != 1 and k.flows != flows) or k.hub >= 0:
            return
        if k.flows > 1 and not _all_cross(s, touched[i]):
            return
    form_fan(s, neck, now)


@inner("ii")
def _all_cross(s, j):
    """Whether each of the flows just rated is on link `j`: it may as well hold as many that were left alone."""
    msg, route, rl = messages(s), routes(s), route_links(s)
    for i in range(counts(s)[L.SET_COUNT]):
        r = route[msg[flow_set(s)[i]].route]
        there = False
        for h in range(r.count):
            there |= rl[r.first + h] == j
        if not there:
            return False
    return True


@inner("i")
def _start_set(s):
    """Start with the newcomers, the groups of dirty links, and flows above an equal share of them."""
    count, link, msg, node = counts(s), links(s), messages(s), nodes(s)
    count[L.EPOCH] += 1
    count[L.SET_COUNT] = 0
    new = new_flows(s)
    for i in range(count[L.NEW_COUNT]):
        losses(s)[new[i]].listed = 0
        if msg[new[i]].status & L.FLYING:
            add_flow(s, new[i])
    crowded = count[L.NEW_COUNT] > 0 or count[L.CROWDED] > 0
    shift = count[L.NODE_SHIFT]
    dirty = dirty_links(s)
    for i in range(count[L.DIRTY_COUNT]):
        k = link[dirty[i]]
        if k.hub == dirty[i]:
            continue
        if crowded and k.flows > k.group:
            n = k.head
            while n >= 0:
                m = n >> shift
                if msg[m].rate * k.flows >= k.rate:
                    add_flow(s, m)
                n = node[2 * n]
        add_group(s, dirty[i])


@inner("ii")
def _want_regroup(s, j):
    k = links(s)[j]
    if k.regroup == 0:
        k.regroup = 1
        count = counts(s)
        regroup_links(s)[count[L.REGROUP_COUNT]] = j
        count[L.REGROUP_COUNT] += 1


@inner("if")
def _apply(s, now):
    """Let the set's flows go on at their new rates."""
    count, link, msg, rl, rt = counts(s), links(s), messages(s), route_links(s), routes(s)
    chosen = flow_set(s)
    for i in range(count[L.SET_COUNT]):
        m = chosen[i]
        f = msg[m]
        moved = changed(f)
        if moved:
            f.left = max(0.0, f.left - f.rate * (now - f.last))
            f.last = now
            r = rt[f.route]
            for h in range(r.count):
                k = link[rl[r.first + h]]
                k.load += f.level - f.rate
                k.stale += 1
            f.rate = f.level
            f.finish = now + f.left / f.rate if f.rate > 0.0 else inf
        if f.new_neck != f.neck:
            if f.neck >= 0:
                _want_regroup(s, f.neck)
            leave_group(s, m)
            join_group(s, m, f.new_neck)
            moved = True
        if moved:
            if f.neck >= 0:
                _want_regroup(s, f.neck)
            else:
                schedule(s, m, f.neck)
    _refresh_loads(s)


@inner("i")
def _refresh_loads(s):
    """Sum a link's load anew after as many changes as it has flows, before rounding adds up."""
    count, link, msg, node = counts(s), links(s), messages(s), nodes(s)
    shift = count[L.NODE_SHIFT]
    touched = touched_links(s)
    for i in range(count[L.TOUCHED_COUNT]):
        k = link[touched[i]]
        if k.stale >= k.flows:
            k.stale = 0
            total = 0.0
            n = k.head
            while n >= 0:
                total += msg[n >> shift].rate
                n = node[2 * n]
            k.load = total


@inner("i")
def _regroup(s):
    """Find the next finish of each group that changed, and plan it."""
    count, link, msg = counts(s), links(s), messages(s)
    want = regroup_links(s)
    for i in range(count[L.REGROUP_COUNT]):
        k = link[want[i]]
        k.regroup = 0
        first = inf
        m = k.group_head
        while m >= 0:
            if msg[m].finish < first:
                first = msg[m].finish
            m = msg[m].group_next
        k.group_finish = first
        if k.group > 0:
            schedule(s, k.group_head, want[i])
    count[L.REGROUP_COUNT] = 0
