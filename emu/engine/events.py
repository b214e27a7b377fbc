"""What happens next: monotone queues in front of a heap, ordered by (time, kind, rank or link).

Most events of a regular program are made in the order in which they happen; such an event goes to the end
of a queue in constant time, any other to the heap. An event can be stale (its flow has another rate by
now); who takes it off checks that against the state.
"""

from emu.engine import layout as L
from emu.engine.memory import counts, heap, inner, queue_ends, queues

SIZE = L.QUEUE_SIZE
QUEUES = L.QUEUES


@inner("ifii")
def push(s, time, key, what):
    """Put an event where it belongs."""
    queue, ends = queues(s), queue_ends(s)
    for q in range(QUEUES):
        first, end = ends[2 * q], ends[2 * q + 1]
        if first < end:
            last = queue[q * SIZE + ((end - 1) & (SIZE - 1))]
            if last.time > time or (last.time == time and last.key > key) or end - first == SIZE:
                continue
        e = queue[q * SIZE + (end & (SIZE - 1))]
        e.time, e.key, e.what = time, key, what
        ends[2 * q + 1] = end + 1
        return
    _heap_push(s, time, key, what)


@inner("ifii")
def _heap_push(s, time, key, what):
    h, count = heap(s), counts(s)
    i = count[L.HEAP_COUNT]
    count[L.HEAP_COUNT] = i + 1
    while i > 0:
        up = (i - 1) >> 1
        if h[up].time < time or (h[up].time == time and h[up].key <= key):
            break
        h[i].time, h[i].key, h[i].what = h[up].time, h[up].key, h[up].what
        i = up
    h[i].time, h[i].key, h[i].what = time, key, what


@inner("i")
def _heap_drop(s):
    """Remove the heap's first event."""
    h, count = heap(s), counts(s)
    n = count[L.HEAP_COUNT] - 1
    count[L.HEAP_COUNT] = n
    time, key, what = h[n].time, h[n].key, h[n].what
    i = 0
    while True:
        down = 2 * i + 1
        if down >= n:
            break
        if down + 1 < n and (h[down + 1].time < h[down].time or (
                h[down + 1].time == h[down].time and h[down + 1].key < h[down].key)):
            down += 1
        if time < h[down].time or (time == h[down].time and key <= h[down].key):
            break
        h[i].time, h[i].key, h[i].what = h[down].time, h[down].key, h[down].what
        i = down
    h[i].time, h[i].key, h[i].what = time, key, what


@inner("i")
def first_queue(s):
    """Return which queue holds the next event: -2 none, -1 the heap."""
    queue, ends = queues(s), queue_ends(s)
    best, time, key = -2, 0.0, 0
    if counts(s)[L.HEAP_COUNT] > 0:
        e = heap(s)[0]
        best, time, key = -1, e.time, e.key
    for q in range(QUEUES):
        first = ends[2 * q]
        if first < ends[2 * q + 1]:
            e = queue[q * SIZE + (first & (SIZE - 1))]
            if best == -2 or e.time < time or (e.time == time and e.key < key):
                best, time, key = q, e.time, e.key
    return best


@inner("ii")
def head(s, q):
    """Return time, key and subject of the next event of queue `q`."""
    if q == -1:
        e = heap(s)[0]
        return e.time, e.key, e.what
    e = queues(s)[q * SIZE + (queue_ends(s)[2 * q] & (SIZE - 1))]
    return e.time, e.key, e.what


@inner("ii")
def drop(s, q):
    """Remove the next event of queue `q`."""
    if q == -1:
        _heap_drop(s)
    else:
        queue_ends(s)[2 * q] += 1
