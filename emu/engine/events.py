"""What happens next: monotone queues in front of a heap, ordered by (time, kind, rank or link).

Most events of a regular program are made in the order in which they happen, class by class: what takes equally long
ends in the order of its begin. An event goes to the end of the first queue whose last one is before it (of all, that
is then the latest), in constant time, and to the heap where there is none. An event can be stale (its flow has
another rate by now); who takes it off checks that against the state.
"""

from math import inf

from emu.engine import layout as L
from emu.engine.memory import counts, heap, inner, queue_ends, queue_times, queues

SIZE = L.QUEUE_SIZE
QUEUES = L.QUEUES
HEAP = L.QUEUES  # the heap's number among the queues
NONE = -1
WAYS = 4  # children of a place of the heap


@inner("ifii")
def push(s, time, key, what):
    """Put an event where it belongs."""
    queue, ends, times = queues(s), queue_ends(s), queue_times(s)
    for q in range(QUEUES):
        last = times[q]
        if last > time:
            continue
        end = ends[2 * q + 1]
        if (last == time and queue[q * SIZE + ((end - 1) & (SIZE - 1))].key > key) or end - ends[2 * q] == SIZE:
            continue
        e = queue[q * SIZE + (end & (SIZE - 1))]
        e.time, e.key, e.what = time, key, what
        if end == ends[2 * q]:
            times[QUEUES + q] = time
        times[q] = time
        ends[2 * q + 1] = end + 1
        counts(s)[L.QUEUES_USED] = max(counts(s)[L.QUEUES_USED], q + 1)
        return
    _heap_push(s, time, key, what)


@inner("ifii")
def _heap_push(s, time, key, what):
    h, count = heap(s), counts(s)
    i = count[L.HEAP_COUNT]
    count[L.HEAP_COUNT] = i + 1
    while i > 0:
        up = (i - 1) // WAYS
        if h[up].time < time or (h[up].time == time and h[up].key <= key):
            break
        h[i].time, h[i].key, h[i].what = h[up].time, h[up].key, h[up].what
        i = up
    h[i].time, h[i].key, h[i].what = time, key, what
    queue_times(s)[QUEUES + HEAP] = h[0].time


@inner("i")
def _heap_drop(s):
    """Remove the heap's first event."""
    h, count = heap(s), counts(s)
    n = count[L.HEAP_COUNT] - 1
    count[L.HEAP_COUNT] = n
    time, key, what = h[n].time, h[n].key, h[n].what
    i = 0
    while True:
        down = WAYS * i + 1
        if down >= n:
            break
        least, least_time = down, h[down].time
        for other in range(down + 1, min(down + WAYS, n)):
            if h[other].time < least_time or (h[other].time == least_time and h[other].key < h[least].key):
                least, least_time = other, h[other].time
        if time < least_time or (time == least_time and key <= h[least].key):
            break
        h[i].time, h[i].key, h[i].what = least_time, h[least].key, h[least].what
        i = least
    h[i].time, h[i].key, h[i].what = time, key, what
    queue_times(s)[QUEUES + HEAP] = h[0].time if n > 0 else inf


@inner("i", inline=True)
def first_queue(s):
    """Return which queue holds the next event, or HEAP, or NONE."""
    times = queue_times(s)
    best, time = HEAP, times[QUEUES + HEAP]
    for q in range(counts(s)[L.QUEUES_USED]):
        first = times[QUEUES + q]
        if first < time:
            best, time = q, first
        elif first == time and first < inf and _key(s, q) < _key(s, best):
            best = q
    return best if time < inf else NONE


@inner("ii")
def _key(s, q):
    return heap(s)[0].key if q == HEAP else queues(s)[q * SIZE + (queue_ends(s)[2 * q] & (SIZE - 1))].key


@inner("ii", inline=True)
def head(s, q):
    """Return time, key and subject of the next event of queue `q`."""
    if q == HEAP:
        e = heap(s)[0]
        return e.time, e.key, e.what
    e = queues(s)[q * SIZE + (queue_ends(s)[2 * q] & (SIZE - 1))]
    return e.time, e.key, e.what


@inner("ii", inline=True)
def drop(s, q):
    """Remove the next event of queue `q`."""
    if q == HEAP:
        _heap_drop(s)
        return
    ends, times = queue_ends(s), queue_times(s)
    first = ends[2 * q] + 1
    ends[2 * q] = first
    if first == ends[2 * q + 1]:
        times[QUEUES + q] = inf
        times[q] = -inf
        while counts(s)[L.QUEUES_USED] > 0 and times[counts(s)[L.QUEUES_USED] - 1] == -inf:
            counts(s)[L.QUEUES_USED] -= 1
    else:
        times[QUEUES + q] = queues(s)[q * SIZE + (first & (SIZE - 1))].time
