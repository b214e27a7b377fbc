"""All-gather and reduce-scatter over several rings at once, each with its part of every chunk."""

from collections.abc import Sequence
from typing import Any

from emu.collectives.all_gather import ring_all_gather
from emu.collectives.channels import ring_orders
from emu.collectives.cuts import cuts_for, even_cuts
from emu.collectives.ops import finish, local_op
from emu.collectives.protocol import Peers
from emu.collectives.reduce_scatter import ring_reduce_scatter
from emu.comm.at_once import Table
from emu.comm.calls import collective

Rings = Sequence[Sequence[int]]


def channel_ring_all_gather(
    comm: Any, x: Any, out: Any, counts: Sequence[int] | None = None, rings: Rings | None = None
) -> None:
    """Pass chunks round several rings (None: those that the links allow). Uneven chunks go round one.

    Cost with c rings over links of their own: (p-1)(α + n/(cpB)); (p-1)c messages a rank.
    Source: NCCL's channels.
    """
    if counts is not None:
        ring_all_gather(comm, x, out, counts)
        return
    _all_gather(comm, x, out, _orders(comm, rings))


def channel_ring_reduce_scatter(
    comm: Any, x: Any, out: Any, op: str = "sum", counts: Sequence[int] | None = None, rings: Rings | None = None
) -> None:
    """Pass partial sums round several rings (None: those that the links allow). Uneven chunks go round one.

    Cost with c rings over links of their own: (p-1)(α + n/(cpB) + γn/p); (p-1)c messages a rank.
    Source: NCCL's channels.
    """
    if counts is not None:
        ring_reduce_scatter(comm, x, out, op, counts)
        return
    _reduce_scatter(comm, x, out, op, _orders(comm, rings))


def _orders(comm: Any, rings: Rings | None) -> Rings:
    if rings is None:
        rings = ring_orders(getattr(comm, "cluster", None), getattr(comm, "group", range(comm.size)))
    return tuple(tuple(ring) for ring in rings)


class _Round:
    """Ring `number` as one rank sees it: its neighbours, and who stands how far behind."""

    def __init__(self, ring: Sequence[int], rank: int, number: int):
        self.ring, self.number, self.p = Table(ring), number, len(ring)
        self.place = self.ring.index(rank)
        self.left, self.right = self.behind(1), self.behind(-1)

    def behind(self, steps: int) -> int:
        """Return the rank that stands so many places before this one."""
        return self.ring[(self.place - steps) % self.p]


@collective("all_gather", "channel_ring", planned=True)
def _all_gather(comm: Peers, x: Any, out: Any, rings: Rings) -> None:
    p = comm.size
    cut = cuts_for("channel_ring_all_gather", x, out, p, comm.rank, None)
    comm.copy(out[cut[comm.rank] : cut[comm.rank + 1]], x)
    part = even_cuts(x.size, len(rings))
    rounds = [_Round(ring, comm.rank, c) for c, ring in enumerate(rings)]
    for step in range(p - 1):
        requests = []
        for ring in rounds:
            c, give, take = ring.number, ring.behind(step), ring.behind(step + 1)
            requests.append(comm.irecv(out[cut[take] + part[c] : cut[take] + part[c + 1]], ring.left, c))
            requests.append(comm.isend(out[cut[give] + part[c] : cut[give] + part[c + 1]], ring.right, c))
        comm.waitall(requests)


@collective("reduce_scatter", "channel_ring", planned=True)
def _reduce_scatter(comm: Peers, x: Any, out: Any, op: str, rings: Rings) -> None:
    p, plain = comm.size, local_op(op)
    cut = cuts_for("channel_ring_reduce_scatter", out, x, p, comm.rank, None)
    part = even_cuts(out.size, len(rings))
    spare = [[comm.empty(part[c + 1] - part[c], x.dtype, like=x) for _ in range(2)] for c in range(len(rings))]

    def mine(owner: int, c: int) -> Any:
        return x[cut[owner] + part[c] : cut[owner] + part[c + 1]]

    rounds = [_Round(ring, comm.rank, c) for c, ring in enumerate(rings)]
    partial = [mine(ring.left, ring.number) for ring in rounds]
    for step in range(p - 1):
        requests = []
        for ring in rounds:
            c = ring.number
            requests.append(comm.irecv(spare[c][step % 2], ring.left, c))
            requests.append(comm.isend(partial[c], ring.right, c))
        comm.waitall(requests)
        for ring in rounds:
            c = ring.number
            comm.reduce(plain, spare[c][step % 2], mine(ring.behind(step + 2), c))
            partial[c] = spare[c][step % 2]
    for c, got in enumerate(partial):
        comm.copy(out[part[c] : part[c + 1]], got)
    finish(comm, out, op, p)
