"""A message's life after it is posted: it starts, leaves, arrives; its requests complete, its slot is free.

Eager messages start when they are sent, the others when both sides are there. The sender's request completes
when the last byte has left, the receiver's when it has arrived.
"""

from emu.engine import layout as L
from emu.engine.memory import (
    channels,
    counts,
    flows,
    inner,
    knots,
    lanes,
    messages,
    reals,
    request_peers,
    requests,
    routes,
)
from emu.engine.noise import spread, uniform
from emu.engine.sharing import insert_flow, remove_flow
from emu.engine.tcp import close_window, open_window, queueing


@inner("i", inline=True)
def take_message(s):
    """Take a free message; the caller has made sure that there is one."""
    msg, count = messages(s), counts(s)
    m = count[L.FREE]
    f = msg[m]
    count[L.FREE] = f.next
    f.status = 0
    f.next = -1
    f.src_lane = -1
    f.dst_lane = -1
    f.near_next = -1
    f.near_prev = -1
    f.envelope = -1.0
    f.tcp = -1
    count[L.IN_FLIGHT] += 1
    return m


@inner("ii", inline=True)
def free_message(s, m):
    count = counts(s)
    f = messages(s)[m]
    f.status = 0
    f.envelope = -1.0
    f.next = count[L.FREE]
    count[L.FREE] = m
    count[L.IN_FLIGHT] -= 1


@inner("ii", inline=True)
def make_ready(s, i):
    """Queue lane `i` to go on walking its rows in this instant."""
    lane, count = lanes(s), counts(s)
    lane[i].next = -1
    if count[L.READY_HEAD] < 0:
        count[L.READY_HEAD] = i
    else:
        lane[count[L.READY_TAIL]].next = i
    count[L.READY_TAIL] = i


@inner("iiifii", inline=True)
def complete(s, i, req, time, peer, tag):
    """Complete request `req` of lane `i` at `time`, which may lie ahead."""
    lane = lanes(s)[i]
    slot = lane.req_base + (req & lane.req_mask)
    requests(s)[slot] = time
    if counts(s)[L.WILD]:
        request_peers(s)[2 * slot] = peer
        request_peers(s)[2 * slot + 1] = tag
    if lane.state == L.WAITING:
        if lane.wait_lo <= req < lane.wait_hi:
            lane.pending -= 1
            lane.time = max(lane.time, time)
            if lane.pending == 0:
                make_ready(s, i)
    elif lane.state == L.ENDED and lane.asks:
        reals(s)[L.HORIZON] = min(reals(s)[L.HORIZON], max(lane.time, time))


@inner("iiif")
def stretched(s, first, count, size):
    """Return as how many bytes `size` bytes count, by the knots of a route or memory (`cluster.parts.stretched`)."""
    knot = knots(s)
    at, before, taken = size, 0.0, 0.0
    for k in range(first, first + count):
        at = knot[2 * k]
        if size <= at:
            return taken + (size - before) * (knot[2 * k + 1] - taken) / (at - before)
        before, taken = at, knot[2 * k + 1]
    return size * (taken / before)


@inner("iif")
def start_message(s, m, now):
    """Send the bytes of message `m` on their way."""
    f = messages(s)[m]
    r = routes(s)[f.route]
    f.start = now
    f.status |= L.STARTED
    f.left = f.bytes * r.wire
    if r.knot_count > 0:
        f.left = stretched(s, r.knots, r.knot_count, f.bytes) * r.wire
    f.cap = r.cap
    if reals(s)[L.PERTURB] > 0.0:
        f.left *= 1.0 + reals(s)[L.PERTURB] * uniform(
            s, lanes(s)[f.src_lane].key + (counts(s)[L.PERTURBATION_SEED] << 40), f.number)
    if f.left <= 0.0 or r.count == 0:
        finish_message(s, m, now)
    else:
        if r.connection >= 0:
            open_window(s, m, now)
        insert_flow(s, m, now)


@inner("iif")
def finish_message(s, m, now):
    """The last byte of message `m` has left."""
    f = messages(s)[m]
    r = routes(s)[f.route]
    latency = r.latency
    if f.status & L.FLYING:
        remove_flow(s, m)
        if r.connection >= 0:
            close_window(s, m, now)
            latency += queueing(s, f.route)
    f.status |= L.FINISHED
    f.finish = now
    if reals(s)[L.NETWORK_JITTER] > 0.0:
        latency *= spread(s, ~lanes(s)[f.src_lane].key, f.number, reals(s)[L.NETWORK_JITTER])
    f.arrival = now + latency
    if f.status & L.IS_COPY:
        lane = lanes(s)[f.src_lane]
        lane.time = max(lane.time, f.arrival + r.receive_s)
        make_ready(s, f.src_lane)
        counts(s)[L.COPIES] += 1
        close_message(s, m)
        return
    counts(s)[L.MESSAGES] += 1
    complete(s, f.src_lane, f.src_req, now, f.dst, 0)
    if f.status & L.RECEIVED:
        deliver(s, m, now)


@inner("iif", inline=True)
def deliver(s, m, now):
    """Complete the receive of message `m`, whose bytes have all left, and forget the message."""
    f = messages(s)[m]
    tag = channels(s)[f.chan].tag
    complete(s, f.dst_lane, f.dst_req, max(f.arrival, now) + routes(s)[f.route].receive_s, f.src, tag)
    close_message(s, m)


@inner("ii", inline=True)
def close_message(s, m):
    """Log message `m` and free it."""
    count = counts(s)
    if count[L.LOG_FLOWS]:
        f = messages(s)[m]
        e = flows(s)[count[L.FLOW_COUNT]]
        count[L.FLOW_COUNT] += 1
        e.src, e.dst, e.route, e.bytes = f.src, f.dst, f.route, f.bytes
        e.stream, e.label = lanes(s)[f.src_lane].stream, f.label
        e.posted_s, e.start_s, e.end_s, e.arrival_s = f.posted, f.start, f.finish, f.arrival
    free_message(s, m)
