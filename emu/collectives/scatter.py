"""Scatter: rank r ends with chunk r of the root's x.

x is read on the root only (elsewhere it may be None); out takes my chunk. Chunks are equal, or, in the
`_v` variants, as `counts` says. Volumes: n is the length of x in bytes.
"""

from collections.abc import Sequence
from typing import Any

from emu.collectives.among import Among
from emu.collectives.cuts import checked_counts, cuts_for, cuts_for_part, cuts_of, rotated
from emu.collectives.protocol import Peers
from emu.collectives.root import checked_root
from emu.collectives.walks import binomial_node
from emu.comm.calls import collective


@collective("scatter", "linear", agree=("out",), planned=True)
def linear_scatter(comm: Peers, x: Any, out: Any, root: int = 0) -> None:
    """Send each rank its chunk straight from the root.

    Cost: α + (p-1)/p·n/B; p-1 messages.
    Source: Open MPI coll/basic, linear.
    """
    _linear(comm, x, out, _even("linear_scatter", comm, x, out, root), root)


@collective("scatter", "binomial", agree=("out",), planned=True)
def binomial_scatter(comm: Peers, x: Any, out: Any, root: int = 0) -> None:
    """Send half of the chunks to the rank that scatters them on, a quarter to the next, and so on.

    Cost: ⌈log₂p⌉α + (p-1)/p·n/B; p-1 messages.
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations, 2005.
    """
    _binomial(comm, x, out, _even("binomial_scatter", comm, x, out, root), root)


@collective("scatter_v", "linear", agree=("counts",), planned=True)
def linear_scatter_v(comm: Peers, x: Any, out: Any, counts: Sequence[int], root: int = 0) -> None:
    """Send each rank its chunk of counts[rank] elements straight from the root.

    Cost: α + (n - own)/B; p-1 messages.
    Source: Open MPI coll/basic, linear.
    """
    _linear(comm, x, out, _uneven("linear_scatter_v", comm, x, out, counts, root), root)


@collective("scatter_v", "binomial", agree=("counts",), planned=True)
def binomial_scatter_v(comm: Peers, x: Any, out: Any, counts: Sequence[int], root: int = 0) -> None:
    """Send chunks of counts[rank] elements down a binomial tree.

    Cost: at most ⌈log₂p⌉α + ⌈log₂p⌉n/B, as the chunks fall; p-1 messages.
    Source: Träff, Hierarchical gather/scatter algorithms with graceful degradation, 2004.
    """
    _binomial(comm, x, out, _uneven("binomial_scatter_v", comm, x, out, counts, root), root)


def binomial_spread(comm: Peers, x: Any, cut: Sequence[int], start: int) -> None:
    """Leave chunk r of rank 0's x on rank r, sent down a binomial tree under rank 0.

    x holds the chunks of my subtree at their places, less `start` elements; what is not mine stays.
    """
    p, r = comm.size, comm.rank
    node = binomial_node(p, r)
    end = min(p, r + (r & -r)) if r else p
    if node.parent is not None:
        comm.waitall([comm.irecv(x[cut[r] - start : cut[end] - start], node.parent)])
    for child in node.children:
        below = min(p, child + (child & -child))
        comm.waitall([comm.isend(x[cut[child] - start : cut[below] - start], child)])


def _linear(comm: Peers, x: Any, out: Any, cut: Sequence[int], root: int) -> None:
    if comm.rank != root:
        comm.waitall([comm.irecv(out, root)])
        return
    others = [(root + i) % comm.size for i in range(1, comm.size)]
    sends = [comm.isend(x[cut[q] : cut[q + 1]], q) for q in others]
    comm.copy(out, x[cut[root] : cut[root + 1]])
    comm.waitall(sends)


def _binomial(comm: Peers, x: Any, out: Any, cut: Sequence[int], root: int) -> None:
    """Scatter in the order of ranks from the root on; the root rotates its x if that is not rank 0."""
    p = comm.size
    group = comm if root == 0 else Among(comm, [(root + i) % p for i in range(p)])
    v, turned = group.rank, rotated(cut, root)
    if v == 0 and root == 0:
        held = x
    elif v == 0:
        held = comm.empty_like(x)
        comm.copy(held[: x.size - cut[root]], x[cut[root] :])
        comm.copy(held[x.size - cut[root] :], x[: cut[root]])
    elif v % 2:
        held = out  # a leaf: nothing to send on
    else:
        held = comm.empty(turned[min(p, v + (v & -v))] - turned[v], out.dtype, like=out)
    binomial_spread(group, held, turned, turned[v])
    if held is not out:
        comm.copy(out, held[: out.size])


def _even(where: str, comm: Peers, x: Any, out: Any, root: int) -> tuple[int, ...]:
    checked_root(where, root, comm.size)
    if comm.rank == root:
        return cuts_for(where, out, x, comm.size, root, None)
    return cuts_of([out.size] * comm.size)


def _uneven(
    where: str, comm: Peers, x: Any, out: Any, counts: Sequence[int], root: int
) -> tuple[int, ...]:
    checked_root(where, root, comm.size)
    if comm.rank == root:
        return cuts_for(where, out, x, comm.size, root, counts)
    return cuts_for_part(where, out, checked_counts(where, counts, comm.size), comm.rank)
