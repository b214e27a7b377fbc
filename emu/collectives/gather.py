"""Gather: the root ends with the chunks of all ranks, in rank order.

x is my chunk; out is written on the root only (elsewhere it may be None). Chunks are equal, or, in the
`_v` variants, as `counts` says. Volumes: n is the length of out in bytes.
"""

from collections.abc import Sequence
from typing import Any

from emu.collectives.among import Among
from emu.collectives.cuts import checked_counts, cuts_for, cuts_for_part, cuts_of, rotated
from emu.collectives.protocol import Peers
from emu.collectives.root import checked_root
from emu.collectives.walks import binomial_node
from emu.comm.calls import collective


@collective("gather", "linear", agree=("x",), planned=True)
def linear_gather(comm: Peers, x: Any, out: Any = None, root: int = 0) -> None:
    """Send my chunk straight to the root.

    Cost: α + (p-1)/p·n/B; p-1 messages.
    Source: Open MPI coll/basic, linear.
    """
    _linear(comm, x, out, _even("linear_gather", comm, x, out, root), root)


@collective("gather", "binomial", agree=("x",), planned=True)
def binomial_gather(comm: Peers, x: Any, out: Any = None, root: int = 0) -> None:
    """Collect the chunks of my subtree, then send them to my parent in one message.

    Cost: ⌈log₂p⌉α + (p-1)/p·n/B; p-1 messages.
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations, 2005.
    """
    _binomial(comm, x, out, _even("binomial_gather", comm, x, out, root), root)


@collective("gather_v", "linear", agree=("counts",), planned=True)
def linear_gather_v(comm: Peers, x: Any, out: Any, counts: Sequence[int], root: int = 0) -> None:
    """Send my chunk of counts[rank] elements straight to the root.

    Cost: α + (n - own)/B; p-1 messages.
    Source: Open MPI coll/basic, linear.
    """
    _linear(comm, x, out, _uneven("linear_gather_v", comm, x, out, counts, root), root)


@collective("gather_v", "binomial", agree=("counts",), planned=True)
def binomial_gather_v(comm: Peers, x: Any, out: Any, counts: Sequence[int], root: int = 0) -> None:
    """Collect chunks of counts[rank] elements up a binomial tree.

    Cost: at most ⌈log₂p⌉α + ⌈log₂p⌉n/B, as the chunks fall; p-1 messages.
    Source: Träff, Hierarchical gather/scatter algorithms with graceful degradation, 2004.
    """
    _binomial(comm, x, out, _uneven("binomial_gather_v", comm, x, out, counts, root), root)


def _linear(comm: Peers, x: Any, out: Any, cut: Sequence[int], root: int) -> None:
    if comm.rank != root:
        comm.waitall([comm.isend(x, root)])
        return
    others = [(root + i) % comm.size for i in range(1, comm.size)]
    receives = [comm.irecv(out[cut[q] : cut[q + 1]], q) for q in others]
    comm.copy(out[cut[root] : cut[root + 1]], x)
    comm.waitall(receives)


def _binomial(comm: Peers, x: Any, out: Any, cut: Sequence[int], root: int) -> None:
    """Gather in the order of ranks from the root on; the root rotates the result if that is not rank 0."""
    p = comm.size
    group = comm if root == 0 else Among(comm, [(root + i) % p for i in range(p)])
    v, turned = group.rank, rotated(cut, root)
    end = min(p, v + (v & -v)) if v else p
    node, start = binomial_node(p, v), turned[v]
    if v == 0 and root == 0:
        held = out
    elif not node.children:
        held = x
    else:
        held = comm.empty(turned[end] - start, x.dtype, like=x)
    receives = []
    for child in node.children:
        below = min(p, child + (child & -child))
        receives.append(group.irecv(held[turned[child] - start : turned[below] - start], child))
    if held is not x:
        comm.copy(held[: x.size], x)
    group.waitall(receives)
    if node.parent is not None:
        group.waitall([group.isend(held, node.parent)])
    elif held is not out:
        comm.copy(out[cut[root] :], held[: out.size - cut[root]])
        comm.copy(out[: cut[root]], held[out.size - cut[root] :])


def _even(where: str, comm: Peers, x: Any, out: Any, root: int) -> tuple[int, ...]:
    checked_root(where, root, comm.size)
    if comm.rank == root:
        return cuts_for(where, x, out, comm.size, root, None)
    return cuts_of([x.size] * comm.size)


def _uneven(
    where: str, comm: Peers, x: Any, out: Any, counts: Sequence[int], root: int
) -> tuple[int, ...]:
    checked_root(where, root, comm.size)
    if comm.rank == root:
        return cuts_for(where, x, out, comm.size, root, counts)
    return cuts_for_part(where, x, checked_counts(where, counts, comm.size), comm.rank)
