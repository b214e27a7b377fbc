"""All-reduce along trees: every rank's x becomes the sum of all. In place. n is the length of x in bytes."""

from collections import deque
from collections.abc import Sequence
from typing import Any

from emu.collectives.broadcast import binomial_broadcast
from emu.collectives.cuts import even_cuts, segment_count, segments
from emu.collectives.ops import finish, local_op
from emu.collectives.protocol import Peers
from emu.collectives.reduce import binomial_collect
from emu.collectives.walks import TreeNode, binary_tree_node
from emu.comm.calls import collective

SEGMENT_BYTES = 64 * 1024
TURNS = 2  # of a message on its way


@collective("all_reduce", "tree", planned=True)
def tree_all_reduce(comm: Peers, x: Any, op: str = "sum") -> None:
    """Add up a binomial tree to rank 0, then broadcast down the same tree.

    Cost: 2⌈log₂p⌉(α + n/B) + ⌈log₂p⌉γn; 2(p-1) messages of n bytes in all.
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations, 2005.
    """
    binomial_collect(comm, x, local_op(op))
    if comm.rank == 0:
        finish(comm, x, op, comm.size)
    binomial_broadcast(comm, x)


@collective("all_reduce", "double_tree", planned=True)
def double_tree_all_reduce(
    comm: Peers, x: Any, op: str = "sum", segment_bytes: int = SEGMENT_BYTES
) -> None:
    """Add up and broadcast down two binary trees, half of x each, in segments.

    No rank is an inner node of both trees, so each port carries about n in and n out for either way.
    Cost: about 4log₂p(α + n/(kB)) + 2n/B with k segments a half; 4k(p-1) messages, 2(p-1)n bytes in all.
    Source: Sanders, Speck, Träff, Two-tree algorithms, 2009; NCCL's double binary tree.
    """
    p = comm.size
    plain = local_op(op)
    cut = even_cuts(x.size, 2)
    k = segment_count(cut[1], x.itemsize, segment_bytes)
    trees = []
    for t in (0, 1):
        node = binary_tree_node(p, comm.rank, t)
        pieces = [x[a:b] for a, b in segments(cut[t], cut[t + 1], k)]
        trees.append(Tree(comm, pieces, t, node, _depth(p, node, t), p.bit_length()))
    for turn in range(k + max(tree.falls_at for tree in trees) if p > 1 else 0):
        for tree in trees:
            tree.up(turn - tree.rises_at, plain)
        for tree in trees:
            tree.down(turn - tree.falls_at)
    for tree in trees:
        tree.drain()
    finish(comm, x, op, p)


class Tree:
    """One of the trees as this rank sees it: its place, and the segments that pass through.

    All ranks work in turns, for a rank near the root of one tree is a leaf of the other and cannot run
    behind or ahead of it. A message has some turns to arrive (None: TURNS): of trees of depth D, a rank at depth d
    adds up segment 0 in turn (D - d)·turns and takes its total in turn (D + d)·turns.
    """

    def __init__(
        self, comm: Peers, pieces: Sequence[Any], number: int, node: TreeNode, depth: int, deepest: int,
        turns: int | None = None,
    ):  # fmt: skip
        self.comm, self.pieces, self.node, self.turns = comm, pieces, node, turns or TURNS
        self.up_tag, self.down_tag = 2 * number, 2 * number + 1
        self.rises_at, self.falls_at = (deepest - depth) * self.turns, (deepest + depth) * self.turns
        self.spare = [[comm.empty_like(pieces[0]) for _ in self.node.children] for _ in range(2)]
        self.arriving: list[list[Any]] = []  # of each segment, posted one segment ahead
        self.rising: deque[tuple[int, Any]] = deque()  # the send to the parent, which posts a turn later
        self.falling: deque[list[Any]] = deque()  # the sends to the children, which post so many turns later
        self._post(0)

    def up(self, i: int, plain: str) -> None:
        """Add my children's segment i to mine and start it on its way to my parent."""
        if not 0 <= i < len(self.pieces):
            return
        self._post(i + 1)
        piece = self.pieces[i]
        for got, request in zip(self.spare[i % 2], self.arriving[i], strict=True):
            self.comm.waitall([request])
            self.comm.reduce(plain, piece, got[: piece.size])
        self._risen(i - 1)
        if self.node.parent is not None:
            self.rising.append((i, self.comm.isend(piece, self.node.parent, self.up_tag)))

    def down(self, i: int) -> None:
        """Replace my partial sum by the total from my parent and start it to my children."""
        if not 0 <= i < len(self.pieces):
            return
        if self.node.parent is not None:
            self._risen(i)
            self.comm.waitall([self.comm.irecv(self.pieces[i], self.node.parent, self.down_tag)])
        if len(self.falling) == self.turns:
            self.comm.waitall(self.falling.popleft())
        children = self.node.children
        self.falling.append([self.comm.isend(self.pieces[i], child, self.down_tag) for child in children])

    def drain(self) -> None:
        """Wait for what is still on its way down; what went up has been answered."""
        for sends in self.falling:
            self.comm.waitall(sends)

    def _risen(self, i: int) -> None:
        """Wait until my partial sums up to segment i have left."""
        while self.rising and self.rising[0][0] <= i:
            self.comm.waitall([self.rising.popleft()[1]])

    def _post(self, i: int) -> None:
        if i < len(self.pieces) and i == len(self.arriving):
            into = [got[: self.pieces[i].size] for got in self.spare[i % 2]]
            pairs = zip(into, self.node.children, strict=True)
            self.arriving.append([self.comm.irecv(got, child, self.up_tag) for got, child in pairs])


def _depth(p: int, node: TreeNode, shift: int) -> int:
    depth = 0
    while node.parent is not None:
        node = binary_tree_node(p, node.parent, shift)
        depth += 1
    return depth
