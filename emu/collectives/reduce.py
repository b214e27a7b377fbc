"""Reduce: the root's x becomes the sum of everybody's x; other ranks' x stays as it was.

Volumes: n is the length of x in bytes.
"""

from typing import Any

from emu.collectives.among import Among
from emu.collectives.cuts import even_cuts, segment_count, segments
from emu.collectives.ops import finish, local_op
from emu.collectives.protocol import Peers
from emu.collectives.reduce_scatter import ring_reduce
from emu.collectives.root import checked_root
from emu.collectives.walks import binomial_node
from emu.comm.calls import collective

CHAIN_SEGMENT_BYTES = 128 * 1024


@collective("reduce", "linear", planned=True)
def linear_reduce(comm: Peers, x: Any, root: int = 0, op: str = "sum") -> None:
    """Send x from every rank to the root, which adds in the order of ranks after it.

    Cost: α + (p-1)n/B + (p-1)γn, the sums partly hidden; p-1 messages of n bytes, all to the root.
    Source: Open MPI coll/basic, linear.
    """
    checked_root("linear_reduce", root, comm.size)
    collect(comm, x, root, local_op(op))
    if comm.rank == root:
        finish(comm, x, op, comm.size)


@collective("reduce", "binomial", planned=True)
def binomial_reduce(comm: Peers, x: Any, root: int = 0, op: str = "sum") -> None:
    """Add up what my children send and hand it to my parent.

    Cost: ⌈log₂p⌉(α + n/B + γn); p-1 messages of n bytes.
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations, 2005.
    """
    plain = local_op(op)
    checked_root("binomial_reduce", root, comm.size)
    node = binomial_node(comm.size, comm.rank, root)
    acc = x
    for child in reversed(node.children):
        got = comm.empty_like(x)
        comm.waitall([comm.irecv(got, child)])
        if node.parent is None:
            comm.reduce(plain, x, got)
        else:  # what was received becomes the sum, so that x stays as it was
            comm.reduce(plain, got, acc)
            acc = got
    if node.parent is not None:
        comm.waitall([comm.isend(acc, node.parent)])
    else:
        finish(comm, x, op, comm.size)


@collective("reduce", "scatter_gather", planned=True)
def scatter_gather_reduce(comm: Peers, x: Any, root: int = 0, op: str = "sum") -> None:
    """Reduce-scatter round the ring, then send the finished chunks to the root.

    Cost: (p-1)(α + n/(pB) + γn/p) + α + (p-1)/p·n/B; p(p-1) + p-1 messages.
    Source: Rabenseifner, Optimization of collective reduction operations, 2004 (with a ring).
    """
    p, r = comm.size, comm.rank
    checked_root("scatter_gather_reduce", root, p)
    cut = even_cuts(x.size, p)
    own = x[cut[r] : cut[r + 1]]
    mine = own if r == root else comm.empty_like(own)
    ring_reduce(comm, x, cut, local_op(op), None if r == root else mine)
    if r == root:
        others = [(root + i) % p for i in range(1, p)]
        comm.waitall([comm.irecv(x[cut[q] : cut[q + 1]], q) for q in others])
        finish(comm, x, op, p)
    else:
        comm.waitall([comm.isend(mine, root)])


@collective("reduce", "chain", planned=True)
def chain_reduce(
    comm: Peers, x: Any, root: int = 0, op: str = "sum", segment_bytes: int = CHAIN_SEGMENT_BYTES
) -> None:
    """Add along a chain that ends at the root, in segments; one is added while the next arrives.

    Cost: (p-1)(α + γn/k) + (p-2+k)n/(kB) with k segments, while sums are faster than the wire; k(p-1) messages.
    Source: Open MPI coll/base, pipeline; NCCL's ring reduce.
    """
    plain = local_op(op)
    p = comm.size
    checked_root("chain_reduce", root, p)
    chain = Among(comm, [(root + i) % p for i in range(p)])  # rank 0 is the root, the last one begins
    pieces = segments(0, x.size, segment_count(x.size, x.itemsize, segment_bytes))
    inner = chain.rank < p - 1
    received = [comm.empty_like(x[start:stop]) for start, stop in pieces] if inner else []
    arriving = [chain.irecv(received[0], chain.rank + 1)] if inner else []
    leaving: list[Any] = []
    for i, (start, stop) in enumerate(pieces):
        part = x[start:stop]
        if inner:
            if i + 1 < len(pieces):
                arriving.append(chain.irecv(received[i + 1], chain.rank + 1))
            comm.waitall([arriving[i]])
            if chain.rank == 0:
                comm.reduce(plain, part, received[i])
            else:
                comm.reduce(plain, received[i], part)
                part = received[i]
        if chain.rank > 0:
            comm.waitall(leaving)
            leaving = [chain.isend(part, chain.rank - 1)]
    comm.waitall(leaving)
    if comm.rank == root:
        finish(comm, x, op, p)


def collect(comm: Peers, x: Any, root: int, plain: str) -> None:
    """Add everybody's x to the root's, all senders at once, in the order of ranks after the root."""
    if comm.rank != root:
        comm.waitall([comm.isend(x, root)])
        return
    others = [(root + i) % comm.size for i in range(1, comm.size)]
    received = [comm.empty_like(x) for _ in others]
    arriving = [comm.irecv(got, q) for got, q in zip(received, others, strict=True)]
    for got, request in zip(received, arriving, strict=True):
        comm.waitall([request])
        comm.reduce(plain, x, got)


def binomial_collect(comm: Peers, x: Any, plain: str) -> None:
    """Add everybody's x into rank 0's, up a binomial tree; inner ranks' x become partial sums."""
    node = binomial_node(comm.size, comm.rank)
    got = comm.empty_like(x) if node.children else None
    for child in reversed(node.children):
        comm.waitall([comm.irecv(got, child)])
        comm.reduce(plain, x, got)
    if node.parent is not None:
        comm.waitall([comm.isend(x, node.parent)])
