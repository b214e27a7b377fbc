"""Broadcast and reduce along chains, one in each ring of the cluster's links, each with its part of x.

Volumes: n is the length of x in bytes.
"""

from collections.abc import Sequence
from typing import Any

from emu.collectives.channels import ring_orders
from emu.collectives.cuts import even_cuts, segment_count, segments
from emu.collectives.ops import finish, local_op
from emu.collectives.protocol import Peers
from emu.collectives.root import checked_root
from emu.comm.calls import collective

Rings = Sequence[Sequence[int]]

SEGMENT_BYTES = 128 * 1024
MOST_SEGMENTS = 4096  # of a chain
TURNS = 8  # that a message may take from rank to rank: as many steps as NCCL's buffer has


def channel_chain_broadcast(
    comm: Any, x: Any, root: int = 0, rings: Rings | None = None, segment_bytes: int = SEGMENT_BYTES
) -> None:
    """Pass x from the root along several rings (None: those that the links allow), each with its part, in segments.

    Cost with c rings over links of their own: (p-1)α + (p-2+k)n/(ckB) with k segments; k(p-1) messages a ring.
    Source: NCCL's channels.
    """
    checked_root("channel_chain_broadcast", root, comm.size)
    _broadcast(comm, x, root, _orders(comm, rings), segment_bytes)


def channel_chain_reduce(
    comm: Any, x: Any, root: int = 0, op: str = "sum", rings: Rings | None = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> None:
    """Add along several rings that end at the root (None: those that the links allow), each with its part of x.

    Cost with c rings over links of their own: (p-1)(α + γn/(ck)) + (p-2+k)n/(ckB) with k segments; k(p-1) messages
    a ring. Source: NCCL's channels.
    """  # fmt: skip
    checked_root("channel_chain_reduce", root, comm.size)
    _reduce(comm, x, root, op, _orders(comm, rings), segment_bytes)


def _orders(comm: Any, rings: Rings | None) -> Rings:
    if rings is None:
        rings = ring_orders(getattr(comm, "cluster", None), getattr(comm, "group", range(comm.size)))
    return tuple(tuple(ring) for ring in rings)


@collective("broadcast", "channel_chain", planned=True)
def _broadcast(comm: Peers, x: Any, root: int, rings: Rings, segment_bytes: int) -> None:
    chains = []
    for tag, (ring, part) in enumerate(zip(rings, _parts(x, rings, segment_bytes), strict=True)):
        at = ring.index(root)
        chains.append(_Chain(comm, (*ring[at:], *ring[:at]), part, part, tag))
    for turn in range(max(chain.turns for chain in chains)):
        for chain in chains:
            i = turn - chain.place * TURNS
            if chain.take(i):
                chain.give(i, chain.pieces[i])
    for chain in chains:
        chain.drain()


@collective("reduce", "channel_chain", planned=True)
def _reduce(comm: Peers, x: Any, root: int, op: str, rings: Rings, segment_bytes: int) -> None:
    plain, chains = local_op(op), []
    for tag, (ring, part) in enumerate(zip(rings, _parts(x, rings, segment_bytes), strict=True)):
        at = ring.index(root) + 1
        order = (*ring[at:], *ring[:at])
        first = order[0] == comm.rank
        into = part if first else [comm.empty_like(piece) for piece in part]
        chains.append(_Chain(comm, order, part, into, tag))
    for turn in range(max(chain.turns for chain in chains)):
        for chain in chains:
            i = turn - chain.place * TURNS
            if not chain.take(i):
                continue
            own, got = chain.pieces[i], chain.into[i]
            if chain.place == 0:
                chain.give(i, own)
            elif comm.rank == root:
                comm.reduce(plain, own, got)
            else:  # what was received becomes the sum, so that x stays as it was
                comm.reduce(plain, got, own)
                chain.give(i, got)
    for chain in chains:
        chain.drain()
    if comm.rank == root:
        finish(comm, x, op, comm.size)


def _parts(x: Any, rings: Rings, segment_bytes: int) -> list[list[Any]]:
    """Cut x into a part a ring, each into as many segments."""
    cut = even_cuts(x.size, len(rings))
    k = segment_count(cut[1], x.itemsize, max(segment_bytes, cut[1] * x.itemsize // MOST_SEGMENTS))
    return [[x[a:b] for a, b in segments(cut[c], cut[c + 1], k)] for c in range(len(rings))]


class _Chain:
    """One chain as this rank sees it: its place, and the segments that pass through.

    Ranks work in turns, for one near the start of a chain may be near the end of another: a rank at place q passes
    on segment i in turn i + q·TURNS.
    """

    def __init__(self, comm: Peers, order: Sequence[int], pieces: Sequence[Any], into: Sequence[Any], tag: int):
        self.comm, self.pieces, self.into, self.tag = comm, pieces, into, tag
        self.place, last = order.index(comm.rank), len(order) - 1
        self.left = order[self.place - 1] if self.place > 0 else None
        self.right = order[self.place + 1] if self.place < last else None
        self.turns = len(pieces) + self.place * TURNS
        self.arriving: list[Any] = []  # posted TURNS segments ahead
        self.leaving: list[Any] = []
        for i in range(TURNS):
            self._post(i)

    def take(self, i: int) -> bool:
        """Wait until segment i has arrived; False if there is none."""
        if not 0 <= i < len(self.pieces):
            return False
        if self.left is not None:
            self.comm.waitall([self.arriving[i]])
            self._post(i + TURNS)
        return True

    def give(self, i: int, piece: Any) -> None:
        """Send segment i on, if there is somebody; one at a time, or segments share the port and none is early."""
        if self.right is not None:
            self.comm.waitall(self.leaving)
            self.leaving = [self.comm.isend(piece, self.right, self.tag)]

    def drain(self) -> None:
        """Wait for what is still leaving."""
        self.comm.waitall(self.leaving)

    def _post(self, i: int) -> None:
        if self.left is not None and i < len(self.pieces):
            self.arriving.append(self.comm.irecv(self.into[i], self.left, self.tag))
