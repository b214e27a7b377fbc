"""Broadcast: every rank ends with the root's x. In place. Volumes: n is the length of x in bytes."""

from collections.abc import Sequence
from typing import Any

from emu.collectives.all_gather import ring_gather
from emu.collectives.among import Among
from emu.collectives.cuts import even_cuts, segment_count, segments
from emu.collectives.protocol import Peers
from emu.collectives.root import checked_root
from emu.collectives.scatter import binomial_spread
from emu.collectives.walks import binomial_node
from emu.comm.calls import collective

CHAIN_SEGMENT_BYTES = 128 * 1024


@collective("broadcast", "linear", planned=True)
def linear_broadcast(comm: Peers, x: Any, root: int = 0) -> None:
    """Send x from the root to every other rank: the root's port carries all copies.

    Cost: α + (p-1)n/B; p-1 messages of n bytes, all from the root.
    Source: Open MPI coll/basic, linear.
    """
    checked_root("linear_broadcast", root, comm.size)
    if comm.rank == root:
        comm.waitall([comm.isend(x, (root + i) % comm.size) for i in range(1, comm.size)])
    else:
        comm.waitall([comm.irecv(x, root)])


@collective("broadcast", "binomial", planned=True)
def binomial_broadcast(comm: Peers, x: Any, root: int = 0) -> None:
    """Whoever has x sends it to a rank that has not: twice as many have it after each step.

    Cost: ⌈log₂p⌉(α + n/B); p-1 messages of n bytes.
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations, 2005.
    """
    checked_root("binomial_broadcast", root, comm.size)
    node = binomial_node(comm.size, comm.rank, root)
    if node.parent is not None:
        comm.waitall([comm.irecv(x, node.parent)])
    for child in node.children:
        comm.waitall([comm.isend(x, child)])


@collective("broadcast", "scatter_all_gather", planned=True)
def scatter_all_gather_broadcast(comm: Peers, x: Any, root: int = 0) -> None:
    """Scatter x down a binomial tree, then pass the chunks round the ring.

    Cost: (⌈log₂p⌉ + p-1)α + 2(p-1)/p·n/B; p-1 + p(p-1) messages.
    Source: van de Geijn; Thakur, Rabenseifner, Gropp, 2005.
    """
    p = comm.size
    checked_root("scatter_all_gather_broadcast", root, p)
    from_root = Among(comm, _from(root, p))
    cut = even_cuts(x.size, p)
    binomial_spread(from_root, x, cut, 0)
    ring_gather(from_root, x, cut)


@collective("broadcast", "chain", planned=True)
def chain_broadcast(comm: Peers, x: Any, root: int = 0, segment_bytes: int = CHAIN_SEGMENT_BYTES) -> None:
    """Pass x down a chain of all ranks in segments; a segment is sent on while the next one arrives.

    Cost: (p-1)α + (p-2+k)n/(kB) with k segments; k(p-1) messages.
    Source: Open MPI coll/base, pipeline; NCCL's ring broadcast.
    """
    p, r = comm.size, comm.rank
    checked_root("chain_broadcast", root, p)
    place = (r - root) % p
    pieces = segments(0, x.size, segment_count(x.size, x.itemsize, segment_bytes))
    arriving = comm.irecv(_piece(x, pieces, 0), (r - 1) % p) if place > 0 else None
    leaving: list[Any] = []
    for i in range(len(pieces)):
        if arriving is not None:
            current, arriving = arriving, None
            if i + 1 < len(pieces):
                arriving = comm.irecv(_piece(x, pieces, i + 1), (r - 1) % p)
            comm.waitall([current])
        if place < p - 1:
            comm.waitall(leaving)  # one send at a time, or segments share the port and none is early
            leaving = [comm.isend(_piece(x, pieces, i), (r + 1) % p)]
    comm.waitall(leaving)


def _piece(x: Any, pieces: Sequence[tuple[int, int]], i: int) -> Any:
    return x[pieces[i][0] : pieces[i][1]]


def _from(root: int, p: int) -> Sequence[int]:
    return range(p) if root == 0 else [(root + i) % p for i in range(p)]
