"""All-reduce over several rings or trees at once, each with its part of x. In place. n is the length of x in bytes."""

from collections.abc import Sequence
from typing import Any

from emu.collectives.all_reduce_tree import Tree
from emu.collectives.channels import deepest, heads, ring_orders, tree_place
from emu.collectives.cuts import even_cuts, segment_count, segments
from emu.collectives.ops import finish, local_op
from emu.collectives.protocol import Peers
from emu.comm.calls import collective

SLICE_BYTES = 1024 * 1024  # NCCL: two of the eight steps of a buffer of 4 MiB


def channel_ring_all_reduce(
    comm: Any, x: Any, op: str = "sum", rings: Sequence[Sequence[int]] | None = None
) -> None:
    """Go round several rings at once, each with its part of x; None: the rings that the cluster's links allow.

    Cost with c rings over links of their own: 2(p-1)(α + n/(cpB)); each sends 2(p-1)c messages a rank, 2(p-1)/p·n
    bytes in all. Source: NCCL's channels.
    """
    orders = ring_orders(getattr(comm, "cluster", None), _group(comm)) if rings is None else rings
    _channel_ring(comm, x, op, tuple(tuple(ring) for ring in orders))


@collective("all_reduce", "channel_ring", planned=True)
def _channel_ring(comm: Peers, x: Any, op: str, rings: Sequence[Sequence[int]]) -> None:
    p, plain = comm.size, local_op(op)
    part = even_cuts(x.size, len(rings))
    travels = [_Ring(comm, x[part[c] : part[c + 1]], ring) for c, ring in enumerate(rings)]
    for step in range(2 * (p - 1)):
        requests = [request for number, ring in enumerate(travels) for request in ring.start(step, number)]
        comm.waitall(requests)
        if step < p - 1:
            for ring in travels:
                ring.add(step, plain)
    finish(comm, x, op, p)


class _Ring:
    """One ring as this rank sees it. In step s it sends chunk place - s and receives the one before."""

    def __init__(self, comm: Peers, x: Any, ring: Sequence[int]):
        self.comm, self.x, self.p = comm, x, comm.size
        self.place = ring.index(comm.rank)
        self.left, self.right = ring[(self.place - 1) % self.p], ring[(self.place + 1) % self.p]
        self.cut = even_cuts(x.size, self.p)
        self.spare = comm.empty(self.cut[1], x.dtype, like=x)

    def start(self, step: int, tag: int) -> list[Any]:
        """Post the messages of a step."""
        into = self._chunk(step + 1)
        if step < self.p - 1:
            into = self.spare[: into.size]
        return [
            self.comm.irecv(into, self.left, tag),
            self.comm.isend(self._chunk(step), self.right, tag),
        ]

    def add(self, step: int, plain: str) -> None:
        """Add what came in a step of the first round."""
        chunk = self._chunk(step + 1)
        self.comm.reduce(plain, chunk, self.spare[: chunk.size])

    def _chunk(self, behind: int) -> Any:
        i = (self.place - behind) % self.p
        return self.x[self.cut[i] : self.cut[i + 1]]


def channel_tree_all_reduce(
    comm: Any, x: Any, op: str = "sum", nodes: Sequence[Sequence[int]] | None = None, lanes: int = 1,
    segment_bytes: int = SLICE_BYTES,
) -> None:
    """Add up and broadcast down pairs of trees, one a NIC: binary between nodes, chains within. In segments.

    `nodes` lists the ranks of each node (None: as the cluster has them, with as many lanes as its NICs allow).
    Cost for m nodes of g: about 2(g + log₂m)(α + n/(kB)) + 2n/B with k segments; 2(p-1)n bytes in all.
    Source: NCCL's double binary trees.
    """  # fmt: skip
    if nodes is None:
        nodes, lanes = heads(getattr(comm, "cluster", None), _group(comm))
    _channel_tree(comm, x, op, tuple(tuple(node) for node in nodes), lanes, segment_bytes)


@collective("all_reduce", "channel_tree", planned=True)
def _channel_tree(
    comm: Peers, x: Any, op: str, nodes: Sequence[Sequence[int]], lanes: int, segment_bytes: int
) -> None:
    plain = local_op(op)
    cut = even_cuts(x.size, 2 * lanes)
    k = segment_count(cut[1], x.itemsize, segment_bytes)
    trees = []
    for t in range(2 * lanes):
        pieces = [x[a:b] for a, b in segments(cut[t], cut[t + 1], k)]
        node, depth = tree_place(nodes, comm.rank, t // 2, t % 2)
        trees.append(Tree(comm, pieces, t, node, depth, deepest(nodes, t % 2)))
    for turn in range(k + max(tree.falls_at for tree in trees) if comm.size > 1 else 0):
        for tree in trees:
            tree.up(turn - tree.rises_at, plain)
        for tree in trees:
            tree.down(turn - tree.falls_at)
    for tree in trees:
        tree.drain()
    finish(comm, x, op, comm.size)


def _group(comm: Any) -> Sequence[int]:
    return getattr(comm, "group", range(comm.size))
