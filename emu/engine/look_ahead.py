"""Bring into the cache what the next events of a queue will need. This changes when things are read, and nothing else.

At thousands of ranks an event's link, messages and lanes were used last thousands of events ago and have left the
cache; but a queue tells long before who is next. Each stage follows one reference further: what an event is about,
what hangs on that, what hangs on that in turn.
"""

from emu.engine import layout as L
from emu.engine.events import HEAP
from emu.engine.memory import (
    channels,
    counts,
    inner,
    lanes,
    links,
    messages,
    nodes,
    prefetch,
    queue_ends,
    queues,
    requests,
    route_links,
    routes,
    rows,
)

SIZE = L.QUEUE_SIZE
ENTRY, FIRST, SECOND, THIRD = 32, 16, 10, 5  # events ahead
WORTH_IT = 2048  # lanes; what fewer need fits the nearest caches


@inner("ii", inline=True)
def look_ahead(s, q):
    """Prefetch for the events of queue `q` that are some places behind its first."""
    if q == HEAP or counts(s)[L.LANE_COUNT] < WORTH_IT:
        return
    first, end = queue_ends(s)[2 * q], queue_ends(s)[2 * q + 1]
    if first + FIRST < end:
        _look(s, q, first)


@inner("iii")
def _look(s, q, first):
    queue, base = queues(s), q * SIZE
    prefetch(queue, base + ((first + ENTRY) & (SIZE - 1)), 0)
    e = queue[base + ((first + FIRST) & (SIZE - 1))]
    _subject(s, e.key >> L.KIND_SHIFT, e.what)
    e = queue[base + ((first + SECOND) & (SIZE - 1))]
    if e.key >> L.KIND_SHIFT == L.KIND_WAKE:
        _of_lane(s, e.what)
    elif e.key >> L.KIND_SHIFT == L.KIND_LINK and links(s)[e.what].group_head >= 0:
        for line in range(3):
            prefetch(messages(s), links(s)[e.what].group_head, line)
    e = queue[base + ((first + THIRD) & (SIZE - 1))]
    if e.key >> L.KIND_SHIFT == L.KIND_WAKE:
        _of_channels(s, e.what)
    elif e.key >> L.KIND_SHIFT == L.KIND_LINK and links(s)[e.what].group_head >= 0:
        _of_message(s, links(s)[e.what].group_head)


@inner("iii", inline=True)
def _subject(s, kind, what):
    """Prefetch the lane or link that an event is about."""
    if kind == L.KIND_WAKE:
        for line in range(3):
            prefetch(lanes(s), what, line)
    elif kind == L.KIND_LINK:
        prefetch(links(s), what, 0)


@inner("ii", inline=True)
def _of_lane(s, i):
    """Prefetch what a lane's row needs: the row, the channels that it used last, its next request's place."""
    lane = lanes(s)[i]
    prefetch(rows(s), lane.pc, 0)
    prefetch(rows(s), lane.pc, 1)
    prefetch(requests(s), lane.req_base + (lane.req_no & lane.req_mask), 0)
    if lane.send_chan >= 0:
        prefetch(channels(s), lane.send_chan, 0)
    if lane.recv_chan >= 0:
        prefetch(channels(s), lane.recv_chan, 0)


@inner("ii", inline=True)
def _of_channels(s, i):
    """Prefetch the partners that wait in a lane's channels, and the route of what it sends."""
    lane, channel, rl = lanes(s)[i], channels(s), route_links(s)
    if lane.recv_chan >= 0 and channel[lane.recv_chan].head >= 0:
        for line in range(3):
            prefetch(messages(s), channel[lane.recv_chan].head, line)
    if lane.send_chan >= 0:
        c = channel[lane.send_chan]
        if c.head >= 0:
            for line in range(3):
                prefetch(messages(s), c.head, line)
        r = routes(s)[c.route]
        for h in range(r.count):
            prefetch(links(s), rl[r.first + h], 0)


@inner("ii", inline=True)
def _of_message(s, m):
    """Prefetch the lanes at a message's ends and the links of its route."""
    f, rl = messages(s)[m], route_links(s)
    r = routes(s)[f.route]
    for h in range(r.count):
        prefetch(links(s), rl[r.first + h], 0)
    prefetch(nodes(s), 2 * m << counts(s)[L.NODE_SHIFT], 0)
    for line in range(2):
        if f.src_lane >= 0:
            prefetch(lanes(s), f.src_lane, line)
        if f.dst_lane >= 0:
            prefetch(lanes(s), f.dst_lane, line)
