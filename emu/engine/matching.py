"""Sends meet receives.

The i-th send meets the i-th receive of an equal channel, (context, source, destination, tag), with the
stream too for collectives. A receive from any source or with any tag meets the message whose envelope
(posted + latency) comes first; see `post_any`.
"""

import numpy as np
from numba import njit

from emu.engine import layout as L
from emu.engine.events import push
from emu.engine.memory import (
    channel_hash,
    channels,
    counts,
    entry,
    inner,
    lanes,
    messages,
    pair_keys,
    pair_routes,
    ranks,
    reals,
    routes,
)
from emu.engine.transfer import deliver, start_message, take_message


@njit
def _hash(context, stream, src, dst, tag):
    x = (np.uint64(src) << np.uint64(32)) ^ np.uint64(dst)
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x ^= (np.uint64(np.uint32(tag)) << np.uint64(24)) ^ np.uint64(np.uint32(context)) ^ (
        np.uint64(np.uint32(stream)) << np.uint64(48))
    x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64((x ^ (x >> np.uint64(32))) & np.uint64(0x7FFFFFFF))


@inner("iiiiii")
def find_channel(s, context, stream, src, dst, tag):
    """Return the channel of these, made if it is new (the caller has made sure of room)."""
    count, channel, table = counts(s), channels(s), channel_hash(s)
    bucket = _hash(context, stream, src, dst, tag) & count[L.CHANNEL_MASK]
    i = table[bucket]
    while i >= 0:
        c = channel[i]
        if c.src == src and c.dst == dst and c.tag == tag and c.context == context and c.stream == stream:
            return i
        i = c.next
    i = count[L.CHANNEL_COUNT]
    count[L.CHANNEL_COUNT] += 1
    c = channel[i]
    c.context, c.stream, c.src, c.dst, c.tag = context, stream, src, dst, tag
    c.route = _find_route(s, src, dst, tag >> L.WAY_SHIFT if stream >= 0 else 0)
    c.head = c.tail = -1
    c.sends = c.sent = c.asked = c.ordered = 0
    c.next = table[bucket]
    table[bucket] = i
    return i


@entry("void(int64)")
def rehash(s):
    """Hash all channels again, into a table of another size."""
    channel, table, count = channels(s), channel_hash(s), counts(s)
    for i in range(count[L.CHANNEL_COUNT]):
        c = channel[i]
        bucket = _hash(c.context, c.stream, c.src, c.dst, c.tag) & count[L.CHANNEL_MASK]
        c.next = table[bucket]
        table[bucket] = i


@inner("iiii")
def _find_route(s, src, dst, way):
    """Return the route of a pair by one of its ways: sorted keys, found by halving."""
    if src == dst and way == 0:
        return 0
    key = (way * counts(s)[L.WORLD] + src) * counts(s)[L.WORLD] + dst
    keys = pair_keys(s)
    low, high = 0, counts(s)[L.PAIR_COUNT]
    while high - low > 1:
        middle = (low + high) >> 1
        if keys[middle] <= key:
            low = middle
        else:
            high = middle
    return pair_routes(s)[low]


@njit
def _append(s, c, m):
    msg = messages(s)
    msg[m].next = -1
    if c.head < 0:
        c.head = m
    else:
        msg[c.tail].next = m
    c.tail = m


@inner("iiii", inline=True)
def _partner(s, chan, order, sends):
    """Take the waiting partner out of a channel: its first, or where order was given, the one of that order."""
    msg, c = messages(s), channels(s)[chan]
    m = c.head
    if m < 0:
        return -1
    if not c.ordered:
        if c.sends != sends:
            return -1
        c.head = msg[m].next
        return m
    wanted = L.SENT if sends else L.RECEIVED
    while m >= 0 and not (msg[m].status & wanted and msg[m].order == order):
        m = msg[m].next
    if m >= 0:
        _leave_channel(s, m)
    return m


@inner("iiiiiffi", inline=True)
def post_send(s, i, chan, size, label, posted, now, order):
    """Lane `i` has sent `size` bytes on channel `chan`; its `order` there is given (from 1 on) or 0, as it comes."""
    msg, lane = messages(s), lanes(s)[i]
    c = channels(s)[chan]
    r = routes(s)[c.route]
    c.sent += 1
    if order == 0:
        order = c.sent
    else:
        c.ordered = 1
    m = _partner(s, chan, order, 0)
    met = m >= 0
    if not met:
        m = take_message(s)
        c.sends = 1
        _append(s, c, m)
        msg[m].order = order
    f = msg[m]
    f.chan, f.route, f.src, f.dst = chan, c.route, c.src, c.dst
    f.bytes, f.src_lane, f.src_req, f.label, f.posted = size, i, lane.req_no, label, posted
    f.number = lane.posts
    f.status |= L.SENT
    if not met and counts(s)[L.WILD]:
        f.envelope = now + r.latency
        push(s, f.envelope, (L.KIND_ENVELOPE << L.KIND_SHIFT) | (lane.key << 20) | (f.number & 0xFFFFF), m)
    if met or size <= r.eager or counts(s)[L.ALL_EAGER]:
        start_message(s, m, now)


@inner("iiifi", inline=True)
def post_receive(s, i, chan, now, order):
    """Lane `i` is ready to receive on channel `chan`; `order` as for a send."""
    msg, lane = messages(s), lanes(s)[i]
    c = channels(s)[chan]
    c.asked += 1
    if order == 0:
        order = c.asked
    else:
        c.ordered = 1
    m = _partner(s, chan, order, 1)
    if m >= 0:
        _meet(s, m, i, lane.req_no, now)
        return
    m = take_message(s)
    c.sends = 0
    _append(s, c, m)
    f = msg[m]
    f.order = order
    f.chan, f.src, f.dst = chan, c.src, c.dst
    f.dst_lane, f.dst_req = i, lane.req_no
    f.status |= L.RECEIVED


@inner("iiiif")
def _meet(s, m, i, req, now):
    """Message `m`, sent before, meets request `req` of lane `i`."""
    f = messages(s)[m]
    if f.status & L.NEAR:
        _leave_near(s, m)
    f.dst_lane, f.dst_req = i, req
    f.status |= L.RECEIVED
    if f.status & L.FINISHED:
        deliver(s, m, now)
    elif not f.status & L.STARTED:
        start_message(s, m, now)


@inner("ii")
def _leave_near(s, m):
    msg = messages(s)
    f = msg[m]
    rank = ranks(s)[f.dst]
    if f.near_prev >= 0:
        msg[f.near_prev].near_next = f.near_next
    else:
        rank.near_head = f.near_next
    if f.near_next >= 0:
        msg[f.near_next].near_prev = f.near_prev
    else:
        rank.near_tail = f.near_prev
    f.status &= ~L.NEAR


@inner("iii")
def _fits(s, m, want):
    """Say whether sent message `m` fits the any-source receive `want`.

    A waiting any-source receive keeps its source in `src`, its tag in `size`, its context in `route`.
    """
    c = channels(s)[messages(s)[m].chan]
    w = messages(s)[want]
    return (c.stream == -1 and c.context == w.route and (w.src < 0 or w.src == c.src)
            and (w.bytes < 0 or w.bytes == c.tag))


@inner("ii")
def _leave_channel(s, m):
    msg = messages(s)
    c = channels(s)[msg[m].chan]
    if c.head == m:
        c.head = msg[m].next
        return
    before = c.head
    while msg[before].next != m:
        before = msg[before].next
    msg[before].next = msg[m].next
    if c.tail == m:
        c.tail = before


@inner("iiiiif")
def post_any(s, i, source, tag, context, now):
    """Lane `i` receives from any source or with any tag: the first envelope that came, or that will come."""
    msg, lane = messages(s), lanes(s)[i]
    rank = ranks(s)[lane.rank]
    want = take_message(s)
    w = msg[want]
    w.src, w.dst, w.bytes, w.route = source, lane.rank, tag, context
    w.dst_lane, w.dst_req = i, lane.req_no
    m = rank.near_head
    while m >= 0:
        if _fits(s, m, want):
            w.next = counts(s)[L.FREE]
            counts(s)[L.FREE] = want
            counts(s)[L.IN_FLIGHT] -= 1
            _leave_channel(s, m)
            _meet(s, m, i, lane.req_no, now)
            return
        m = msg[m].near_next
    w.status = L.RECEIVED
    w.next = -1
    if rank.wild_head < 0:
        rank.wild_head = want
    else:
        msg[rank.wild_tail].next = want
    rank.wild_tail = want


@inner("iif")
def envelope_arrives(s, m, now):
    """The envelope of message `m` is at its receiver, who may wait for it under no name."""
    msg = messages(s)
    f = msg[m]
    if f.status & (L.RECEIVED | L.NEAR):
        return
    f.envelope = -now  # done with, and remembered for who probes
    rank = ranks(s)[f.dst]
    before, want = -1, rank.wild_head
    while want >= 0 and not _fits(s, m, want):
        before, want = want, msg[want].next
    if want < 0:
        f.status |= L.NEAR
        f.near_next = -1
        f.near_prev = rank.near_tail
        if rank.near_tail >= 0:
            msg[rank.near_tail].near_next = m
        else:
            rank.near_head = m
        rank.near_tail = m
        if rank.probes:
            reals(s)[L.HORIZON] = now
        return
    if before >= 0:
        msg[before].next = msg[want].next
    else:
        rank.wild_head = msg[want].next
    if rank.wild_tail == want:
        rank.wild_tail = before
    lane, req = msg[want].dst_lane, msg[want].dst_req
    msg[want].next = counts(s)[L.FREE]
    msg[want].status = 0
    counts(s)[L.FREE] = want
    counts(s)[L.IN_FLIGHT] -= 1
    _leave_channel(s, m)
    _meet(s, m, lane, req, now)
