"""TCP between nodes: windows that grow, switch ports that overflow, losses, timeouts.

A connection (a pair of ranks) lets its messages go at its window a round trip, as a cap in the max-min sharing.
The window doubles each round trip up to its threshold, then grows by a segment; it stays with the connection
and starts again from the initial window when idle for a retransmission timeout. While nothing overflows, that
is all, and a connection that its window no longer holds back is left alone.

A port whose connections' windows together exceed what its link and its buffer hold is stepped: the segments of
one round trip come in seeded order and those that find the buffer full are lost. Who loses some and sees three
later ones arrive halves its window; who sees fewer, or loses a retransmission, sends nothing until the
retransmission timeout. With DCTCP a port marks above its threshold, and windows shrink by how much is marked.

Sources: RFC 5681 (congestion control), RFC 6298 (timeout), RFC 8257 (DCTCP).
"""

from math import inf

import numpy as np

from emu.engine import layout as L
from emu.engine.events import push
from emu.engine.layout import LOSS, RESTART, ROUND, TIMEOUT
from emu.engine.memory import (
    connections,
    counts,
    inner,
    links,
    losses,
    messages,
    new_flows,
    nodes,
    ports,
    queue_log,
    route_links,
    routes,
    shuffle,
    window_log,
)
from emu.engine.noise import uniform

DUPLICATES = 3  # later segments that must arrive before a loss is known without a timeout


@inner("ii")
def round_trip(s, n):
    """Return the round trip of connection `n`, waiting in the ports' queues included."""
    return connections(s)[n].rtt + queueing(s, connections(s)[n].route)


@inner("ii")
def queueing(s, route):
    """Return how long a segment waits in the queues of a route's ports."""
    r, rl, link, port = routes(s)[route], route_links(s), links(s), ports(s)
    wait = 0.0
    for h in range(r.count):
        j = rl[r.first + h]
        if port[j].queue > 0.0 and link[j].rate > 0.0:
            wait += port[j].queue / link[j].rate
    return wait


@inner("iif")
def open_window(s, m, now):
    """Let message `m`, about to start, go at its connection's window."""
    f = messages(s)[m]
    n = routes(s)[f.route].connection
    c = connections(s)[n]
    if c.active == 0 and now - c.last > c.rto and c.window > c.initial:
        c.window = c.initial
        _log_window(s, n, RESTART, now)
    f.tcp = c.head
    c.head = m
    c.active += 1
    f.cap = _cap(s, n, now)
    if c.active > 1:
        _apply_window(s, n, now)
    _plan_round(s, n, now)
    check_ports(s, f.route, now)


@inner("iif")
def close_window(s, m, now):
    """Message `m` has left: its share of the window goes to the connection's other messages."""
    msg = messages(s)
    n = routes(s)[msg[m].route].connection
    c = connections(s)[n]
    if c.head == m:
        c.head = msg[m].tcp
    else:
        before = c.head
        while msg[before].tcp != m:
            before = msg[before].tcp
        msg[before].tcp = msg[m].tcp
    c.active -= 1
    c.last = now
    if c.active > 0:
        _apply_window(s, n, now)


@inner("iif")
def _cap(s, n, now):
    """Return what each message of connection `n` may send a second."""
    c = connections(s)[n]
    most = routes(s)[c.route].cap
    if now < c.blocked:
        return 0.0
    return min(most, c.window / c.rtt / max(1, c.active))


@inner("iif")
def _apply_window(s, n, now):
    """Give the connection's messages the cap that its window allows."""
    msg, count = messages(s), counts(s)
    cap = _cap(s, n, now)
    m = connections(s)[n].head
    while m >= 0:
        f = msg[m]
        if f.cap != cap:
            f.cap = cap
            if f.status & L.FLYING and losses(s)[m].listed == 0:
                losses(s)[m].listed = 1
                new_flows(s)[count[L.NEW_COUNT]] = m
                count[L.NEW_COUNT] += 1
        m = f.tcp


@inner("iif")
def _plan_round(s, n, now):
    c = connections(s)[n]
    if c.planned <= now:
        c.planned = max(now + round_trip(s, n), c.blocked if c.blocked > now else 0.0)
        push(s, c.planned, (L.KIND_ROUND << L.KIND_SHIFT) | c.order, n)


@inner("iif")
def window_round(s, n, now):
    """A round trip of connection `n` is over: its window grows, or it tries again after a timeout."""
    c, msg = connections(s)[n], messages(s)
    if c.planned != now or c.active == 0:
        return
    left = 0.0
    m = c.head
    while m >= 0:
        f = msg[m]
        left += f.left - f.rate * (now - f.last)
        m = f.tcp
    counts(s)[L.TCP_ROUNDS] += 1
    marked = _marked(s, n)
    if c.waits and now >= c.blocked:
        c.waits = 0
    elif marked > 0.0:
        c.window = max(2.0 * c.segment, c.window * (1.0 - 0.5 * c.marks))
        c.threshold = c.window
    elif c.window < c.threshold:
        c.window = min(2.0 * c.window, c.threshold)
    else:
        c.window += c.segment
    c.backoff = 0 if now > c.blocked + round_trip(s, n) else c.backoff
    c.window = min(c.window, c.limit)
    c.recovering = 0 if now > c.recovers else c.recovering
    _log_window(s, n, ROUND, now)
    _apply_window(s, n, now)
    finite = check_ports(s, c.route, now)
    if left > 0.0 and (finite or (c.window < c.limit and c.window < routes(s)[c.route].rate * c.rtt)):
        _plan_round(s, n, now)


@inner("ii")
def _marked(s, n):
    """Return the part of the last round that ports marked, and keep its running mean (DCTCP alone)."""
    c = connections(s)[n]
    if not c.dctcp:
        return 0.0
    r, rl, port = routes(s)[c.route], route_links(s), ports(s)
    part = 0.0
    for h in range(r.count):
        j = rl[r.first + h]
        if port[j].queue > port[j].threshold:
            part = 1.0
    c.marks = (1.0 - c.gain) * c.marks + c.gain * part
    return part


@inner("iif")
def check_ports(s, route, now):
    """Plan a look at the route's ports that can overflow; say whether there are any."""
    r, rl, port, link = routes(s)[route], route_links(s), ports(s), links(s)
    c = connections(s)[r.connection]
    finite = False
    for h in range(r.count):
        j = int(rl[r.first + h])
        p = port[j]
        if p.buffer < inf or p.threshold < inf:
            finite = True
            p.rtt = max(p.rtt, c.rtt) if link[j].flows > 1 else c.rtt
            at = max(now, p.stepped + p.rtt)
            if p.planned < now or p.planned > at:
                p.planned = at
                push(s, at, (L.KIND_PORT << L.KIND_SHIFT) | j, j)
    return finite


@inner("iif")
def port_round(s, j, now):
    """Look at port `j`: what stands in its queue, and whether it overflows."""
    p, link, node = ports(s)[j], links(s), nodes(s)
    if p.planned != now:
        return
    shift = counts(s)[L.NODE_SHIFT]
    total = 0.0
    n = link[j].head
    while n >= 0:
        total += _window_of(s, n >> shift, now)
        n = node[2 * n]
    holds = link[j].rate * p.rtt
    p.queue = min(p.buffer, max(0.0, total - holds))
    lost = 0
    if total > holds + p.buffer:
        p.stepped = now
        lost = _overflow(s, j, total, holds, now)
    count = counts(s)
    if count[L.LOG_FLOWS]:
        e = queue_log(s)[count[L.QUEUE_LOG]]
        count[L.QUEUE_LOG] += 1
        e.time_s, e.link, e.bytes, e.dropped = now, j, p.queue, lost


@inner("iif")
def _window_of(s, m, now):
    """Return the bytes that message `m` has on the way: its window, or what it has left."""
    f = messages(s)[m]
    n = routes(s)[f.route].connection
    if n < 0:
        return f.rate * 2.0 * routes(s)[f.route].latency
    c = connections(s)[n]
    if now < c.blocked:
        return 0.0
    left = f.left - f.rate * (now - f.last)
    return max(0.0, min(left, c.window / max(1, c.active)))


@inner("iifff")
def _overflow(s, j, total, holds, now):
    """Let the segments of one round trip come to a port that can't hold them; return how many are lost."""
    p, link, msg, node, order = ports(s)[j], links(s), messages(s), nodes(s), shuffle(s)
    shift = counts(s)[L.NODE_SHIFT]
    p.rounds += 1
    segment = 1.0
    n = link[j].head
    while n >= 0:
        k = routes(s)[msg[n >> shift].route].connection
        if k >= 0:
            segment = max(segment, connections(s)[k].segment)
        n = node[2 * n]
    segment = max(segment, 2.0 * total / L.SHUFFLE)
    count = 0
    n = link[j].head
    while n >= 0:
        m = n >> shift
        e = losses(s)[m]
        e.seen = e.lost = e.later = e.again = e.before = 0
        for _ in range(int(np.ceil(_window_of(s, m, now) / segment))):
            if count < L.SHUFFLE:
                order[count] = m
                count += 1
        n = node[2 * n]
    for i in range(count - 1, 0, -1):
        k = int((uniform(s, (j << 20) | 0xF, p.rounds * 1048583 + i) + 1.0) * 0.5 * (i + 1))
        order[i], order[k] = order[k], order[i]
    _tail_drop(s, count, holds / segment, p.buffer / segment)
    lost = 0
    n = link[j].head
    while n >= 0:
        m = n >> shift
        if losses(s)[m].lost > 0:
            lost += losses(s)[m].lost
            _lose(s, m, now)
        n = node[2 * n]
    counts(s)[L.TCP_LOST] += lost
    return lost


@inner("iiff")
def _tail_drop(s, count, drained, room):
    """Pass `count` segments by a buffer of `room` segments that `drained` leave in the meantime."""
    msg, order = messages(s), shuffle(s)
    queue = 0.0
    leave = drained / count
    for i in range(count):
        e = losses(s)[order[i]]
        n = routes(s)[msg[order[i]].route].connection
        again = n >= 0 and e.seen < connections(s)[n].recovering
        e.seen += 1
        queue = max(0.0, queue - leave)
        if queue + 1.0 > room:
            e.lost += 1
            e.again += 1 if again else 0
        else:
            queue += 1.0
            if e.lost > 0:
                e.later += 1
            else:
                e.before += 1


@inner("iif")
def _lose(s, m, now):
    """Message `m` has lost segments in this round: halve its window, or wait for the timeout."""
    e, f = losses(s)[m], messages(s)[m]
    n = routes(s)[f.route].connection
    if n < 0:
        return
    c = connections(s)[n]
    if now < c.blocked:
        return
    c.threshold = max(0.5 * c.window, 2.0 * c.segment)
    rtt = round_trip(s, n)
    # What arrived before the first loss lets as many new segments follow, if there are that many.
    beyond = (f.left - f.rate * (now - f.last) - _window_of(s, m, now)) / c.segment
    if e.again > 0 or e.later + min(e.before, beyond) < DUPLICATES:
        c.rto = min(c.rto_max, max(c.rto_min, 2.0 * rtt) * 2.0**c.backoff)
        c.backoff = min(c.backoff + 1, 12)
        c.blocked = now + c.rto
        c.waits = 1
        c.window = c.segment
        c.recovering = 0
        c.planned = c.blocked
        counts(s)[L.TCP_TIMEOUTS] += 1
        push(s, c.blocked, (L.KIND_ROUND << L.KIND_SHIFT) | c.order, n)
        _log_window(s, n, TIMEOUT, now)
    else:
        c.backoff = 0
        c.window = c.threshold
        c.recovering = e.lost
        c.recovers = now + rtt
        _log_window(s, n, LOSS, now)
        if c.planned > now:
            c.planned = now + rtt
            push(s, c.planned, (L.KIND_ROUND << L.KIND_SHIFT) | c.order, n)
    _apply_window(s, n, now)


@inner("iiif")
def _log_window(s, n, what, now):
    count = counts(s)
    if count[L.LOG_FLOWS] or (count[L.LOG_SPANS] and what == TIMEOUT):
        c = connections(s)[n]
        e = window_log(s)[count[L.WINDOW_LOG]]
        count[L.WINDOW_LOG] += 1
        e.time_s, e.src, e.dst, e.what = now, c.src, c.dst, what
        e.cwnd_bytes, e.ssthresh_bytes = c.window, c.threshold
        e.until_s = c.blocked if what == TIMEOUT else now
