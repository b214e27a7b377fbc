"""A lane walks its rows: what each operation of a trace means in time.

A lane's clock may run ahead of the engine's while it only computes. What others can see (sends, receives,
copies) happens when the engine's clock has come to the lane's, in an event of the lane's own: lanes that act
in one instant then act in the order of their ranks and streams, whoever woke them first.
"""

from math import inf

import numpy as np

from emu.engine import layout as L
from emu.engine.events import push
from emu.engine.faults import after_pauses
from emu.engine.log import close_span, log_span, open_span
from emu.engine.matching import find_channel, post_any, post_receive, post_send
from emu.engine.memory import (
    channels,
    codes,
    columns,
    counts,
    gpus,
    groups,
    host_routes,
    inner,
    lanes,
    lengths,
    members,
    messages,
    ranks,
    reals,
    requests,
    routes,
    rows,
    segments,
    templates,
)
from emu.engine.noise import spread
from emu.engine.streams import GO_ON, STOP, order_streams
from emu.engine.transfer import start_message, stretched, take_message


@inner("ii")
def walk(s, i):
    """Let lane `i` walk until it has to wait; return 0, or what it needs before it can go on."""
    lane, row = lanes(s)[i], rows(s)
    if lane.state != L.READY:
        _resume(s, i)
    while True:
        if lane.pc == lane.end:
            if lane.in_call:
                _leave_template(s, i)
            elif not _next_segment(s, i):
                lane.awake = 0
                return 0
            continue
        r = row[lane.pc]
        op = r.op
        if op == L.WAIT:
            done = _wait(s, i, r.a, r.b)
        elif op == L.SEND or op == L.RECV or op == L.COPY:
            done = _visible(s, i, op)
        elif op == L.COMPUTE or op == L.ELAPSED:
            done = _compute(s, i)
        elif op == L.BEGIN or op == L.END or op == L.CALL:
            done = _mark(s, i, op)
        else:
            done = order_streams(s, i, op)
        if done != GO_ON:
            if done == STOP:
                lane.awake = 0
            return max(done, 0)


@inner("ii", inline=True)
def _next_segment(s, i):
    """Go on to the lane's next stretch of rows; without one, the lane has ended (for now)."""
    lane = lanes(s)[i]
    if lane.seg >= 0:
        following = segments(s)[lane.seg].next
        if following >= 0:
            lane.seg = following
            lane.pc, lane.end = segments(s)[following].first, segments(s)[following].end
            return True
    lane.state = L.ENDED
    if lane.asks:
        reals(s)[L.HORIZON] = min(reals(s)[L.HORIZON], lane.time)
    return False


@inner("ii", inline=True)
def _resume(s, i):
    """Finish the row that the lane waited in."""
    lane = lanes(s)[i]
    if lane.state != L.TIMED:
        if lane.state == L.WAITING:
            _forget(s, i, lane.wait_lo, lane.wait_hi)
        if not lane.in_call and lane.state != L.SYNCING:
            log_span(s, i, lane.start, lane.time, 0.0)
        lane.pc += 1
    lane.state = L.READY


@inner("iiii", inline=True)
def _forget(s, i, low, high):
    """Requests that were waited for leave their places to new ones."""
    lane, done = lanes(s)[i], requests(s)
    for q in range(low, high):
        done[lane.req_base + (q & lane.req_mask)] = -1.0


@inner("iiii", inline=True)
def _wait(s, i, back, number):
    lane, done = lanes(s)[i], requests(s)
    low = lane.req_no - back
    high = low + number
    lane.start = lane.time
    pending = 0
    time = lane.time
    for q in range(low, high):
        at = done[lane.req_base + (q & lane.req_mask)]
        if at == inf:
            pending += 1
        elif at > time:
            time = at
    lane.time = time
    if pending > 0:
        lane.state, lane.pending = L.WAITING, pending
        lane.wait_lo, lane.wait_hi = low, high
        return STOP
    _forget(s, i, low, high)
    if not lane.in_call:
        log_span(s, i, lane.start, lane.time, 0.0)
    lane.pc += 1
    return GO_ON


@inner("iii", inline=True)
def _visible(s, i, op):
    """Post a send, a receive or a copy, at its time."""
    lane, count = lanes(s)[i], counts(s)
    rank = ranks(s)[lane.rank]
    if rank.pauses > 0:
        lane.time = after_pauses(s, lane.rank, lane.time)
    if lane.time >= rank.death:
        lane.state = L.DEAD
        return STOP
    if lane.time > reals(s)[L.NOW] or not lane.awake:
        lane.state = L.TIMED
        push(s, lane.time, (L.KIND_WAKE << L.KIND_SHIFT) | lane.key, i)
        return STOP
    if messages(s)[count[L.FREE]].next < 0:
        return L.NEED_MESSAGES
    if op == L.COPY:
        return _copy(s, i)
    slot = lane.req_base + (lane.req_no & lane.req_mask)
    if requests(s)[slot] != -1.0:
        count[L.STUCK_LANE] = i
        return L.NEED_REQUESTS
    if count[L.CHANNEL_COUNT] == count[L.CHANNEL_CAPACITY]:
        return L.NEED_CHANNELS
    if op == L.SEND:
        return _send(s, i, slot)
    return _receive(s, i, slot)


@inner("ii", inline=True)
def _peer(s, i):
    """Return the other rank, the context and the matching stream of the lane's row."""
    lane, r = lanes(s)[i], rows(s)[lanes(s)[i].pc]
    if lane.in_call:
        who = r.a + lane.me
        if who >= lane.group_size:
            who -= lane.group_size
        return members(s)[lane.group_off + who], lane.context, lane.stream
    if r.flag & L.COLLECTIVE:
        return r.a, r.c, lane.stream
    return r.a, r.c, np.int32(-1)


@inner("iii")
def _elements(s, i, number):
    """Return how many elements the lane's own lengths have at `number` of the template that it is in."""
    lane = lanes(s)[i]
    t = L.TEMPLATE_WIDTH * rows(s)[lane.back_pc].a + 4
    table = templates(s)
    column = columns(s)[table[t + 3] + lane.me]
    return lengths(s)[table[t + 2] + codes(s)[table[t] + number * table[t + 1] + column]]


@inner("iii", inline=True)
def _send(s, i, slot):
    lane, r = lanes(s)[i], rows(s)[lanes(s)[i].pc]
    peer, context, stream = _peer(s, i)
    chan = lane.send_chan
    known = chan >= 0
    if known:
        c = channels(s)[chan]
        known = c.dst == peer and c.tag == r.b and c.context == context and c.stream == stream
    if not known:
        chan = find_channel(s, context, stream, lane.rank, peer, r.b)
        lane.send_chan = chan
    overhead = routes(s)[channels(s)[chan].route].send_s
    if overhead > 0.0 and not lane.paid:
        lane.paid = 1
        lane.posted = lane.time
        lane.time += overhead
        return GO_ON
    posted = lane.posted if lane.paid else lane.time
    lane.paid = 0
    requests(s)[slot] = inf
    lane.pc += 1
    nbytes = r.n
    if lane.in_call and r.c > 0:
        nbytes *= _elements(s, i, r.c)
    post_send(s, i, chan, nbytes, lane.label, posted, reals(s)[L.NOW], int(r.x))
    lane.req_no += 1
    lane.posts += 1
    return GO_ON


@inner("iii", inline=True)
def _receive(s, i, slot):
    lane, r = lanes(s)[i], rows(s)[lanes(s)[i].pc]
    requests(s)[slot] = inf
    lane.pc += 1
    if not lane.in_call and (r.a < 0 or r.b < 0) and not r.flag & L.COLLECTIVE:
        post_any(s, i, r.a, r.b, r.c, reals(s)[L.NOW])
        lane.req_no += 1
        lane.posts += 1
        return GO_ON
    lane.pc -= 1
    peer, context, stream = _peer(s, i)
    lane.pc += 1
    chan = lane.recv_chan
    known = chan >= 0
    if known:
        c = channels(s)[chan]
        known = c.src == peer and c.tag == r.b and c.context == context and c.stream == stream
    if not known:
        chan = find_channel(s, context, stream, peer, lane.rank, r.b)
        lane.recv_chan = chan
    post_receive(s, i, chan, reals(s)[L.NOW], int(r.x))
    lane.req_no += 1
    lane.posts += 1
    return GO_ON


@inner("ii")
def _copy(s, i):
    """Copy within the device in the time its memory takes, or over the link to the host as a flow."""
    lane, r = lanes(s)[i], rows(s)[lanes(s)[i].pc]
    now = reals(s)[L.NOW]
    lane.start = lane.time if not lane.paid else lane.posted
    if r.a == 2:
        rank = ranks(s)[lane.rank]
        lane.time += _memory_time(s, rank.gpu, 2.0 * r.n) / rank.speed
        if not lane.in_call:
            log_span(s, i, lane.start, lane.time, 0.0)
        lane.pc += 1
        return GO_ON
    route = host_routes(s)[2 * lane.rank + r.a]
    if routes(s)[route].send_s > 0.0 and not lane.paid:
        lane.paid = 1
        lane.posted = lane.time
        lane.time += routes(s)[route].send_s
        return GO_ON
    m = take_message(s)
    f = messages(s)[m]
    f.status = L.IS_COPY | L.SENT | L.RECEIVED
    f.route, f.src, f.dst, f.bytes = route, lane.rank, lane.rank, r.n
    f.src_lane = f.dst_lane = i
    f.src_req, f.number = lane.pc & 0x7FFFFFFF, lane.posts
    lane.posts += 1
    f.label, f.posted = r.b, lane.start
    lane.paid = 0
    lane.state = L.COPYING
    start_message(s, m, now)
    return STOP


@inner("iif", inline=True)
def _memory_time(s, number, touched):
    """Return what kernels that touch so many bytes of a GPU's memory take."""
    gpu = gpus(s)
    base = number * (L.GPU_FLOPS + L.GPU_DTYPES)
    if gpu[base + L.GPU_KNOT_COUNT] > 0:
        touched = stretched(s, int(gpu[base + L.GPU_KNOTS]), int(gpu[base + L.GPU_KNOT_COUNT]), touched)
    return touched / gpu[base + L.GPU_MEMORY]


@inner("ii")
def _compute(s, i):
    """Take the roofline's time: the slower of arithmetic and memory, and the launch before it."""
    lane, r = lanes(s)[i], rows(s)[lanes(s)[i].pc]
    start = lane.time
    launch = 0.0
    if ranks(s)[lane.rank].pauses > 0:
        start = lane.time = after_pauses(s, lane.rank, lane.time)
    if lane.time >= ranks(s)[lane.rank].death:
        lane.state = L.DEAD
        return STOP
    elements = _elements(s, i, r.c) if lane.in_call and r.c > 0 else 1
    if r.op == L.ELAPSED:
        lane.time += r.n * elements / r.x if r.n > 0 else r.x
    elif not (r.flag & L.COLLECTIVE and counts(s)[L.FREE_SUMS]):
        rank, gpu = ranks(s)[lane.rank], gpus(s)
        base = rank.gpu * (L.GPU_FLOPS + L.GPU_DTYPES)
        time = max(_memory_time(s, rank.gpu, r.n * elements),
                   r.x * elements / gpu[base + L.GPU_FLOPS + r.a] if r.x > 0.0 else 0.0) / rank.speed
        launch = gpu[base + L.GPU_LAUNCH]
        if reals(s)[L.JITTER] > 0.0:
            time *= spread(s, lane.key, lane.noise, reals(s)[L.JITTER])
            lane.noise += 1
        lane.time += launch + time
    if not lane.in_call:
        log_span(s, i, start, lane.time, launch)
    lane.pc += 1
    return GO_ON


@inner("iii")
def _mark(s, i, op):
    lane, r = lanes(s)[i], rows(s)[lanes(s)[i].pc]
    if op == L.CALL:
        _enter_template(s, i, r.a, r.b, r.c)
    elif lane.in_call:
        lane.pc += 1
    elif op == L.BEGIN:
        open_span(s, i)
        lane.pc += 1
    else:
        close_span(s, i)
        lane.pc += 1
    return GO_ON


@inner("iiiii")
def _enter_template(s, i, template, group, context):
    lane, t, member = lanes(s)[i], templates(s), members(s)
    if lane.group != group:
        lane.group = group
        lane.group_off, lane.group_size = groups(s)[2 * group], groups(s)[2 * group + 1]
        me = 0
        while me < lane.group_size and member[lane.group_off + me] != lane.rank:
            me += 1
        lane.me = me
    lane.context, lane.call_start, lane.in_call = context, lane.time, 1
    lane.back_pc, lane.back_end = lane.pc, lane.end
    lane.back_label = lane.label
    lane.back_req = lane.req_no
    lane.label = t[L.TEMPLATE_WIDTH * template + 2]
    lane.time += rows(s)[lane.pc].x  # the call's launch
    lane.pc, lane.end = t[L.TEMPLATE_WIDTH * template], t[L.TEMPLATE_WIDTH * template + 1]


@inner("ii")
def _leave_template(s, i):
    lane = lanes(s)[i]
    lane.in_call = 0
    lane.pc, lane.end = lane.back_pc, lane.back_end
    if templates(s)[L.TEMPLATE_WIDTH * rows(s)[lane.pc].a + 3]:
        lane.req_no = lane.back_req
    log_span(s, i, lane.call_start, lane.time, rows(s)[lane.pc].x)
    lane.label = lane.back_label
    lane.pc += 1
