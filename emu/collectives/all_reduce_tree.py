"""All-reduce along trees: every rank's x becomes the sum of all. In place. n is the length of x in bytes."""

from collections.abc import Sequence
from typing import Any

from emu.collectives.broadcast import binomial_broadcast
from emu.collectives.cuts import even_cuts, segment_count, segments
from emu.collectives.ops import finish, local_op
from emu.collectives.protocol import Peers
from emu.collectives.reduce import binomial_collect
from emu.collectives.walks import TreeNode, binary_tree_node
from emu.comm.calls import collective

SEGMENT_BYTES = 256 * 1024


@collective("all_reduce", "tree")
def tree_all_reduce(comm: Peers, x: Any, op: str = "sum") -> None:
    """Add up a binomial tree to rank 0, then broadcast down the same tree.

    Cost: 2⌈log₂p⌉(α + n/B) + ⌈log₂p⌉γn; 2(p-1) messages of n bytes in all.
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations, 2005.
    """
    binomial_collect(comm, x, local_op(op))
    if comm.rank == 0:
        finish(comm, x, op, comm.size)
    binomial_broadcast(comm, x)


@collective("all_reduce", "double_tree")
def double_tree_all_reduce(
    comm: Peers, x: Any, op: str = "sum", segment_bytes: int = SEGMENT_BYTES
) -> None:
    """Add up and broadcast down two binary trees, half of x each, in segments.

    No rank is an inner node of both trees, so each port carries about n in and n out.
    Cost: about 2log₂p(α + 2n/(kB)) + 2n/B with k segments a half; 4k(p-1) messages, 2(p-1)n bytes in all.
    Source: Sanders, Speck, Träff, Two-tree algorithms, 2009; NCCL's double binary tree.
    """
    p, r = comm.size, comm.rank
    plain = local_op(op)
    cut = even_cuts(x.size, 2)
    k = segment_count(cut[1], x.itemsize, segment_bytes)
    nodes = [binary_tree_node(p, r, shift) for shift in (0, 1)]
    pieces = [[x[a:b] for a, b in segments(cut[t], cut[t + 1], k)] for t in (0, 1)]
    lag = p.bit_length()  # segments that may be on their way up before the first comes down
    spare = [[comm.empty_like(pieces[t][0]) for _ in nodes[t].children] for t in (0, 1)]
    rising: list[list[Any]] = [[], []]
    falling: list[list[Any]] = [[], []]
    for i in range(k + lag if p > 1 else 0):
        for t in (0, 1):
            comm.waitall(rising[t])
            rising[t] = _up(comm, pieces[t][i], nodes[t], spare[t], plain) if i < k else []
        for t in (0, 1):
            if i >= lag:
                comm.waitall(falling[t])
                falling[t] = _down(comm, pieces[t][i - lag], nodes[t])
    comm.waitall(falling[0] + falling[1])
    finish(comm, x, op, p)


def _up(comm: Peers, piece: Any, node: TreeNode, spare: Sequence[Any], plain: str) -> list[Any]:
    """Add my children's segment to mine and start it on its way to my parent; return that send."""
    into = [got[: piece.size] for got in spare]
    arriving = [comm.irecv(got, child) for got, child in zip(into, node.children, strict=True)]
    for got, request in zip(into, arriving, strict=True):
        comm.waitall([request])
        comm.reduce(plain, piece, got)
    return [] if node.parent is None else [comm.isend(piece, node.parent)]


def _down(comm: Peers, piece: Any, node: TreeNode) -> list[Any]:
    """Replace my partial sum by the total from my parent and start it to my children; return the sends.

    The partial sum has left: it was waited for before the next one rose.
    """
    if node.parent is not None:
        comm.waitall([comm.irecv(piece, node.parent)])
    return [comm.isend(piece, child) for child in node.children]
