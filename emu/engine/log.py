"""The engine's record of spans: one entry for each row outside templates that takes part in time."""

from emu.engine import layout as L
from emu.engine.memory import counts, inner, lanes, row_ids, rows, spans, templates


@inner("ii")
def _entry(s, i):
    """Take the next entry and fill in what the lane's row says."""
    count, lane = counts(s), lanes(s)[i]
    at = count[L.SPAN_COUNT]
    count[L.SPAN_COUNT] = at + 1
    e, r = spans(s)[at], rows(s)[lane.pc]
    e.rank, e.stream, e.op, e.flag = lane.rank, lane.stream, r.op, r.flag
    e.label, e.index, e.context = -1, -1, -1
    e.depth, e.row, e.bytes, e.launch_s = lane.depth, row_ids(s)[lane.pc], r.n, 0.0
    return at


@inner("iifff")
def log_span(s, i, start, end, launch):
    """Log the lane's row as taking from `start` to `end`."""
    if not counts(s)[L.LOG_SPANS] or counts(s)[L.LOG_STEPS]:
        return
    e, r = spans(s)[_entry(s, i)], rows(s)[lanes(s)[i].pc]
    op = r.op
    if op == L.COMPUTE or op == L.ELAPSED or op == L.COPY:
        e.label = r.b
    elif op == L.CALL:
        e.label, e.context = templates(s)[L.TEMPLATE_WIDTH * r.a + 2], r.c
    else:
        e.bytes = 0
    e.launch_s, e.start_s, e.end_s = launch, start, end


@inner("ii")
def open_span(s, i):
    """Log the BEGIN at the lane's row; its end is filled in by `close_span`."""
    lane, r = lanes(s)[i], rows(s)[lanes(s)[i].pc]
    depth = lane.depth
    lane.depth += 1
    if not counts(s)[L.LOG_SPANS] or (counts(s)[L.LOG_STEPS] and not r.flag & L.STEP):
        return
    at = _entry(s, i)
    e = spans(s)[at]
    e.depth = depth
    e.label, e.index, e.context = r.a, r.b, r.c
    e.start_s = lane.time
    e.end_s = -1.0 - lane.open  # until it closes: the span around it
    e.launch_s = lane.label
    lane.open = at
    lane.label = r.a


@inner("ii")
def close_span(s, i):
    """Close the lane's innermost open span."""
    lane = lanes(s)[i]
    lane.depth -= 1
    if lane.open >= 0 and spans(s)[lane.open].depth == lane.depth:
        e = spans(s)[lane.open]
        lane.open = int(-1.0 - e.end_s)
        lane.label = int(e.launch_s)
        e.launch_s = 0.0
        e.end_s = lane.time
