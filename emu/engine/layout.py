"""How the engine's state lies in memory: record types, and the numbers by which compiled code finds them.

State is a set of numpy arrays owned by Python (`state.py`). Compiled code gets one integer, the address of
a table of addresses: a function call then costs one register however much state there is, and Python may
grow an array between two calls by writing its new address into the table.
"""

from typing import Any

import numpy as np

# Rows of a trace (the numbers of `emu.trace.Op`).
COMPUTE, ELAPSED, SEND, RECV, WAIT, COPY, RECORD, AWAIT, BEGIN, END, CALL, SYNC = range(1, 13)
CACHE_LINE = 64
COLLECTIVE = 1  # flag bit 0
STEP = 2  # flag bit 1 of BEGIN
WAY_SHIFT = 18  # a collective's tag from here up: which of a pair's routes a message takes

ROW = np.dtype([("op", "u1"), ("stream", "u1"), ("flag", "u2"), ("a", "i4"), ("b", "i4"), ("c", "i4"),
                ("n", "i8"), ("x", "f8")])

SPAN = np.dtype([("rank", "i4"), ("stream", "u1"), ("op", "u1"), ("flag", "u2"), ("label", "i4"),
                 ("index", "i4"), ("context", "i4"), ("depth", "i4"), ("row", "i8"), ("bytes", "i8"),
                 ("launch_s", "f8"), ("start_s", "f8"), ("end_s", "f8")])

FLOW = np.dtype([("src", "i4"), ("dst", "i4"), ("route", "i4"), ("bytes", "i8"), ("stream", "u1"),
                 ("label", "i4"), ("posted_s", "f8"), ("start_s", "f8"), ("end_s", "f8"),
                 ("arrival_s", "f8")])

def _lines(*fields: tuple[str, str]) -> np.dtype:
    """Return a record type of whole lines of the processor's cache, 64 bytes each: what is used together comes first.

    Thousands of lanes and messages do not fit the nearest cache; what counts then is how many lines a message meets.
    """
    plain: Any = np.dtype(list(fields), align=True)
    size = -(-plain.itemsize // CACHE_LINE) * CACHE_LINE
    record: Any = {"names": plain.names, "formats": [kind for _, kind in fields], "itemsize": size,
                   "offsets": [plain.fields[name][1] for name in plain.names], "aligned": True}
    return np.dtype(record)


# A lane is one stream of one rank. `time` is its own clock, which may run ahead of the engine's.
LANE = _lines(
    ("time", "f8"), ("pc", "i8"), ("end", "i8"), ("key", "i8"), ("start", "f8"), ("state", "i4"), ("rank", "i4"),
    ("wait_lo", "i4"), ("wait_hi", "i4"), ("pending", "i4"), ("next", "i4"),
    ("req_base", "i8"), ("req_mask", "i4"), ("req_no", "i4"), ("group_off", "i4"), ("group_size", "i4"), ("me", "i4"),
    ("context", "i4"), ("send_chan", "i4"), ("recv_chan", "i4"), ("stream", "i4"), ("label", "i4"), ("posts", "i4"),
    ("in_call", "u1"), ("paid", "u1"), ("awake", "u1"), ("asks", "u1"),
    ("back_pc", "i8"), ("back_end", "i8"), ("call_start", "f8"), ("noise", "i8"), ("posted", "f8"), ("seg", "i4"),
    ("group", "i4"), ("open", "i4"), ("depth", "i4"), ("last_seg", "i4"), ("back_label", "i4"), ("back_req", "i4"),
    ("next_waiter", "i4"))

# States of a lane.
READY, TIMED, WAITING, AWAITING, SYNCING, COPYING, ENDED, DEAD = range(8)

# A message (or a copy): its bytes on the way, and who waits for it.
MSG = _lines(
    ("left", "f8"), ("rate", "f8"), ("last", "f8"), ("finish", "f8"), ("level", "f8"), ("cap", "f8"),
    ("arrival", "f8"), ("start", "f8"), ("posted", "f8"), ("bytes", "i8"), ("route", "i4"),
    ("src_lane", "i4"), ("dst_lane", "i4"), ("src_req", "i4"), ("dst_req", "i4"), ("next", "i4"),
    ("neck", "i4"), ("new_neck", "i4"), ("group_next", "i4"), ("group_prev", "i4"), ("mark", "i4"),
    ("status", "i4"), ("label", "i4"), ("chan", "i4"), ("src", "i4"), ("dst", "i4"), ("near_next", "i4"),
    ("near_prev", "i4"), ("tcp", "i4"), ("number", "i4"), ("order", "i4"), ("heap_child", "i4"), ("heap_next", "i4"),
    ("envelope", "f8"))

# Flags of a message.
SENT, RECEIVED, STARTED, FINISHED, IS_COPY, FLYING, NEAR = 1, 2, 4, 8, 16, 32, 64
NO_NECK, OWN_CAP = -2, -1

# A directed link: who is on it, and the flows it holds back (its group).
LINK = _lines(
    ("rate", "f8"), ("load", "f8"), ("group_finish", "f8"), ("scheduled", "f8"), ("carried", "f8"), ("flows", "i4"),
    ("head", "i4"), ("group", "i4"), ("group_head", "i4"), ("dirty", "i4"), ("hub", "i4"),
    ("room", "f8"), ("stamp", "i4"), ("open", "i4"), ("inside", "i4"), ("group_inside", "i4"), ("regroup", "i4"),
    ("stale", "i4"))

# What a fan knows beside its hub's entry in the links: see `fans`.
FAN = np.dtype([("volume", "f8"), ("since", "f8"), ("level", "f8"), ("limit", "f8"), ("top", "i4"),
                ("common", "i4"), ("left", "i8")], align=True)

ROUTE = np.dtype([
    ("latency", "f8"), ("cap", "f8"), ("rate", "f8"), ("send_s", "f8"), ("receive_s", "f8"),
    ("eager", "i8"), ("first", "i4"), ("count", "i4"), ("neck", "i4"), ("connection", "i4"),
    ("wire", "f8"), ("knots", "i4"), ("knot_count", "i4")], align=True)

# All messages of equal (context, stream or -1, source, destination, tag) meet in one channel, in order.
CHANNEL = _lines(
    ("context", "i4"), ("stream", "i4"), ("src", "i4"), ("dst", "i4"), ("tag", "i4"), ("route", "i4"),
    ("head", "i4"), ("tail", "i4"), ("sends", "i4"), ("next", "i4"),
    ("sent", "i4"), ("asked", "i4"), ("ordered", "i4"))

# Columns of the fault table: the next change, the link, the rate it gets then; then, for a flap, the time until
# the change after that, the rate it gets then, and the time until the one after that.
(FAULT_NEXT_S, FAULT_LINK, FAULT_RATE, FAULT_HOLD_S, FAULT_OTHER_RATE, FAULT_OTHER_HOLD_S) = range(6)
FAULT_WIDTH = 6

# A TCP connection, its parameters included; a switch port; what one round does to a message.
CONNECTION = np.dtype([
    ("window", "f8"), ("threshold", "f8"), ("last", "f8"), ("blocked", "f8"), ("planned", "f8"), ("recovers", "f8"),
    ("rtt", "f8"), ("segment", "f8"), ("initial", "f8"), ("limit", "f8"), ("rto", "f8"), ("rto_min", "f8"),
    ("rto_max", "f8"), ("marks", "f8"), ("gain", "f8"), ("order", "i8"), ("route", "i4"), ("head", "i4"),
    ("active", "i4"), ("recovering", "i4"), ("backoff", "i4"), ("dctcp", "i4"), ("src", "i4"), ("dst", "i4"),
    ("waits", "i4"), ("pad", "i4")], align=True)
PORT = np.dtype([("buffer", "f8"), ("threshold", "f8"), ("queue", "f8"), ("rtt", "f8"), ("stepped", "f8"),
                 ("planned", "f8"), ("rounds", "i8")])
LOST = np.dtype([("seen", "i4"), ("lost", "i4"), ("later", "i4"), ("again", "i4"), ("listed", "i4"), ("before", "i4")])
SHUFFLE = 1 << 16  # segments of one round at one port; where there are more, several go as one

ROUND, LOSS, TIMEOUT, RESTART = range(4)  # what a line of the window log tells
WINDOW = np.dtype([("time_s", "f8"), ("src", "i4"), ("dst", "i4"), ("cwnd_bytes", "f8"), ("ssthresh_bytes", "f8"),
                   ("what", "i4"), ("until_s", "f8")])
QUEUE = np.dtype([("time_s", "f8"), ("link", "i4"), ("bytes", "f8"), ("dropped", "i4")])

EVENT = np.dtype([("time", "f8"), ("key", "i8"), ("what", "i8")])
KIND_LINK, KIND_FLOW, KIND_FAULT, KIND_ENVELOPE, KIND_WAKE, KIND_ROUND, KIND_PORT = range(7)  # in this order
KIND_SHIFT = 58

RANK = np.dtype([
    ("sync_time", "f8"), ("sync_max", "f8"), ("speed", "f8"), ("slow_until", "f8"), ("death", "f8"),
    ("sync_done", "i4"), ("sync_count", "i4"), ("gpu", "i4"), ("waiting", "i4"), ("wild_head", "i4"),
    ("wild_tail", "i4"), ("near_head", "i4"), ("near_tail", "i4"), ("probes", "i4"), ("first_pause", "i4"),
    ("pauses", "i4"), ("pad", "i4")],
    align=True)

# Of the table of templates: first row, end, label, whether all its requests are waited for in it; then, where lengths
# differ between its ranks: the first code less one line of them, a line's length, the first value, the first column.
TEMPLATE_WIDTH = 8
SEGMENT = np.dtype([("first", "i8"), ("end", "i8"), ("next", "i8")])

GPU_DTYPES = 32
# A row of the GPU table: launch_s, memory bytes/s, its first knot and how many, then achieved FLOP/s by dtype code.
GPU_LAUNCH, GPU_MEMORY, GPU_KNOTS, GPU_KNOT_COUNT, GPU_FLOPS = 0, 1, 2, 3, 4

# Counters of the whole engine (int64) ...
(READY_HEAD, READY_TAIL, FREE, EPOCH, SET_COUNT, DIRTY_COUNT, HEAP_COUNT, SPAN_COUNT, FLOW_COUNT,
 CHANNEL_COUNT, CHANNEL_MASK, MESSAGES, NODE_SHIFT, LOG_SPANS, LOG_FLOWS, FREE_SUMS, ALL_EAGER, SEED,
 REGROUP_COUNT, PAIR_COUNT, WORLD, COPIES, EVENTS, REFILLS, REFILLED, IN_FLIGHT, LINK_COUNT, LANE_COUNT,
 WILD, STUCK_LANE, MSG_CAPACITY, HEAP_CAPACITY, TOUCHED_COUNT, EDGES, CHANNEL_CAPACITY, NEW_COUNT,
 FAULT_COUNT, FAULT_NEXT, TCP_COUNT, REQUEST_COUNT, SPANS_EXPECTED, FLOWS_EXPECTED,
 SEGMENT_COUNT, ROUTE_LINK_COUNT, CROWDED, ON_LINKS, TCP_ROUNDS, TCP_LOST,
 TCP_TIMEOUTS, WINDOW_LOG, QUEUE_LOG, LOG_CAPACITY, PERTURBATION_SEED, ROW_COUNT, LOG_STEPS,
 QUEUES_USED) = range(56)
COUNTERS = 56

# ... and its real numbers.
(NOW, HORIZON, JITTER, PERTURB, NETWORK_JITTER, NEXT_FAULT) = range(6)
REALS = 8

# Where each array's address stands in the table.
(T_LANE, T_MSG, T_LINK, T_ROUTE, T_CHANNEL, T_CHANNEL_HASH, T_REQUEST, T_HEAP, T_QUEUE, T_QUEUE_ENDS,
 T_ROWS, T_ROW_ID, T_SEGMENT, T_TEMPLATE, T_GROUP, T_MEMBER, T_SPAN, T_FLOW, T_GPU, T_RANK, T_EVENT_TIME,
 T_EVENT_WAITER, T_COUNT, T_REAL, T_NODE, T_ROUTE_LINKS, T_SET, T_FILL_HEAP, T_TOUCHED, T_DIRTY, T_REGROUP,
 T_PAIR_KEY, T_PAIR_ROUTE, T_HOST_ROUTE, T_NEW, T_REQUEST_PEER, T_FAULT, T_TCP, T_PORT, T_PAUSE, T_FAN,
 T_LOST, T_SHUFFLE, T_WINDOW_LOG, T_QUEUE_LOG, T_QUEUE_TIMES, T_CODE, T_LENGTH, T_COLUMN,
 T_KNOT) = range(50)
TABLE = 56

# What `run` returns.
IDLE, AT_HORIZON, NEED_MESSAGES, NEED_CHANNELS, NEED_REQUESTS, NEED_HEAP, NEED_LOG = range(7)

QUEUES, QUEUE_SIZE = 16, 8192  # monotone queues in front of the heap; a power of two each
