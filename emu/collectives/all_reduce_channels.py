"""All-reduce over several rings or trees at once, each with its part of x. In place. n is the length of x in bytes."""

from collections.abc import Sequence
from typing import Any

from emu.collectives.all_reduce_tree import Tree
from emu.collectives.channels import deepest, heads, ring_orders, tree_place
from emu.collectives.cuts import even_cuts, segment_count, segments
from emu.collectives.ops import finish, local_op
from emu.collectives.protocol import Peers
from emu.comm.at_once import Table
from emu.comm.calls import collective

BUFFER_BYTES, BUFFER_STEPS = 4 << 20, 8  # of a channel, as NCCL has them
CHUNKS_A_LEVEL = ((8, 128 << 10), (4, 64 << 10), (1, 32 << 10))  # so many for each level of a tree, down to that size


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
        ring = Table(ring)
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
    comm: Any, x: Any, op: str = "sum", nodes: Sequence[Sequence[int]] | None = None,
    chains: Sequence[Sequence[int]] = (), segment_bytes: int | None = None,
) -> None:
    """Add up and broadcast down pairs of trees, one a NIC: binary between nodes, chains within. In segments.

    `nodes` lists the ranks of each node; each of `chains` orders the places in a node, the head of a pair of trees
    first. None: as the cluster has them, a head for each NIC, and segments as NCCL cuts them.
    Cost for m nodes of g: about 2(g + log₂m)(α + n/(kB)) + 2n/B with k segments; 2(p-1)n bytes in all.
    Source: NCCL's double binary trees.
    """  # fmt: skip
    if nodes is None:
        nodes, chains = heads(getattr(comm, "cluster", None), _group(comm))
    nodes, chains = tuple(tuple(node) for node in nodes), tuple(tuple(chain) for chain in chains)
    if segment_bytes is None:
        depth, part = max(deepest(nodes, t) for t in (0, 1)), x.nbytes // (2 * len(chains))
        segment_bytes = tree_chunk_bytes(part, depth, *_settings(comm))
    _channel_tree(comm, x, op, nodes, chains, segment_bytes)


def tree_chunk_bytes(nbytes: int, depth: int, buffer_bytes: int = BUFFER_BYTES, least_bytes: int = 0) -> int:
    """Return how NCCL cuts a tree's part of so many bytes: smaller, the deeper the tree, so that it fills sooner.

    >>> tree_chunk_bytes(64 << 20, 8) >> 10, tree_chunk_bytes(1 << 20, 8) >> 10
    (512, 64)
    """
    chunk = buffer_bytes // BUFFER_STEPS
    for levels, least in CHUNKS_A_LEVEL:
        while chunk > max(least, least_bytes) and nbytes // chunk < levels * depth:
            chunk //= 2
    return chunk


def _settings(comm: Any) -> tuple[int, int]:
    """Return the bytes of a channel's buffer and of the least chunk, as the cluster's transport sets them."""
    spec = getattr(getattr(comm, "cluster", None), "spec", None)
    transport = getattr(spec, "transport", None)
    if transport is None:
        return BUFFER_BYTES, 0
    return transport.nccl_buffer_bytes, transport.nccl_chunk_bytes


@collective("all_reduce", "channel_tree", planned=True)
def _channel_tree(
    comm: Peers, x: Any, op: str, nodes: Sequence[Sequence[int]], chains: Sequence[Sequence[int]], segment_bytes: int
) -> None:
    plain = local_op(op)
    cut = even_cuts(x.size, 2 * len(chains))
    k = segment_count(cut[1], x.itemsize, segment_bytes)
    trees = []
    for t in range(2 * len(chains)):
        pieces = [x[a:b] for a, b in segments(cut[t], cut[t + 1], k)]
        node, depth = tree_place(nodes, comm.rank, chains[t // 2], t % 2)
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
