"""All-reduce round a ring: every rank's x becomes the sum of all. In place. n is the length of x in bytes."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from emu.collectives.all_gather import ring_gather
from emu.collectives.cuts import even_cuts, segment_count, segment_edges
from emu.collectives.ops import finish, local_op
from emu.collectives.protocol import Peers
from emu.collectives.reduce_scatter import ring_reduce
from emu.comm.calls import collective

SEGMENT_BYTES = 1024 * 1024


@collective("all_reduce", "ring", planned=True)
def ring_all_reduce(comm: Peers, x: Any, op: str = "sum") -> None:
    """Reduce-scatter round the ring, then all-gather round the ring.

    Cost: 2(p-1)(α + n/(pB)) + (p-1)γn/p; every rank sends 2(p-1) messages, 2(p-1)/p·n bytes.
    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.
    """
    cut = even_cuts(x.size, comm.size)
    ring_reduce(comm, x, cut, local_op(op))
    ring_gather(comm, x, cut)
    finish(comm, x, op, comm.size)


@collective("all_reduce", "segmented_ring", planned=True)
def segmented_ring_all_reduce(
    comm: Peers, x: Any, op: str = "sum", segment_bytes: int = SEGMENT_BYTES
) -> None:
    """Go round the ring in segments of a chunk: one is added and sent on while the next is under way.

    Cost: α + n/(pB) + (2p-3)·max(n/(pB), α + n/(pkB)) with k segments a chunk, so that latency and sums
    hide behind the wire; every rank sends 2(p-1)k messages, 2(p-1)/p·n bytes.
    Source: Open MPI coll/base, ring_segmented; Gloo's ring.
    """
    p, r = comm.size, comm.rank
    plain = local_op(op)
    if p > 1:
        cut = even_cuts(x.size, p)
        k = segment_count(cut[1], x.itemsize, segment_bytes)
        edges = segment_edges(cut, k)
        chunks = [(r - 1 - step) % p for step in range(2 * p - 1)]
        route = [x[edges[j][c] : edges[j + 1][c]] for c in chunks for j in range(k)]
        longest = edges[1][0] - edges[0][0]
        _go_round(comm, route, (p - 1) * k, k, longest, plain)
    finish(comm, x, op, p)


def _go_round(comm: Peers, route: Sequence[Any], adds: int, k: int, longest: int, plain: str) -> None:
    """Send route[i] on once arrival i - k is in it; arrival i belongs to route[i + k].

    The first `adds` arrivals are added, later ones replace what is there: route[i + k] was sent as item
    i - adds then, which must have left. One send is under way at a time; receives stand a chunk ahead, so
    that a send never waits for a rank that is itself sending its first chunk.
    """
    left, right, total = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size, len(route) - k
    ahead = k + 1
    spare = [comm.empty(longest, route[0].dtype, like=route[0]) for _ in range(ahead)]
    arriving: deque[Any] = deque()
    leaving: list[Any] = []
    posted = sent = 0
    for done in range(-k, total):  # arrival `done` is handled, then item done + k is sent
        while posted < min(total, max(0, done) + ahead) and posted - adds < sent:
            if posted - adds == sent - 1:
                comm.waitall(leaving)
                leaving = []
            into = route[posted + k] if posted >= adds else spare[posted % ahead][: route[posted + k].size]
            arriving.append(comm.irecv(into, left))
            posted += 1
        if done >= 0:
            comm.waitall([arriving.popleft()])
            if done < adds:
                comm.reduce(plain, route[done + k], spare[done % ahead][: route[done + k].size])
        if sent < total:
            comm.waitall(leaving)
            leaving = [comm.isend(route[done + k], right)]
            sent += 1
    comm.waitall(leaving)
