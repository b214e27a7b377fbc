"""All-reduce by exchange at distances that halve or double. In place. n is the length of x in bytes."""

from typing import Any

from emu.collectives.all_gather import double
from emu.collectives.among import Among
from emu.collectives.cuts import even_cuts
from emu.collectives.ops import finish, local_op
from emu.collectives.protocol import Peers
from emu.collectives.reduce_scatter import halve
from emu.collectives.walks import (
    binary_blocks,
    distance_doubling,
    distance_halving,
    power_of_two_core,
    swing,
)
from emu.comm.calls import collective


@collective("all_reduce", "recursive_doubling", planned=True)
def recursive_doubling_all_reduce(comm: Peers, x: Any, op: str = "sum") -> None:
    """Exchange all of x with ranks at distance 1, 2, 4, ...; both partners add in one order.

    Where p is no power of two, ranks in excess fold x into a neighbour first and get the sum last.
    Cost: log₂p(α + n/B + γn) for p = 2^k, else up to 2α + 3n/B + γn more; log₂p messages of n bytes a rank.
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations, 2005.
    """
    plain = local_op(op)
    core = fold_in(comm, x, plain)
    if core is not None:
        got = comm.empty_like(x)
        for bit in range(core.size.bit_length() - 1):
            partner = core.rank ^ (1 << bit)
            core.sendrecv(x, partner, got, partner)
            core.reduce(plain, x, got, received_first=partner < core.rank)
    fold_out(comm, x)
    finish(comm, x, op, comm.size)


@collective("all_reduce", "rabenseifner", planned=True)
def rabenseifner_all_reduce(comm: Peers, x: Any, op: str = "sum") -> None:
    """Reduce-scatter by halving x at doubling distances, then all-gather on the way back.

    Where p is no power of two, ranks in excess fold x into a neighbour first and get the sum last.
    Cost: 2log₂p·α + 2(p-1)/p·n/B + (p-1)/p·γn for p = 2^k, else up to 2α + 2.5n/B
    + γn more.
    Source: Rabenseifner, Optimization of collective reduction operations, 2004.
    """
    plain = local_op(op)
    core = fold_in(comm, x, plain)
    if core is not None:
        cut, walk = even_cuts(x.size, core.size), distance_doubling(core.size, core.rank)
        halve(core, x, cut, plain, walk)
        double(core, x, cut, walk)
    fold_out(comm, x)
    finish(comm, x, op, comm.size)


@collective("all_reduce", "swing", planned=True)
def swing_all_reduce(comm: Peers, x: Any, op: str = "sum") -> None:
    """Halve and double with partners at distances 1, -1, 3, -5, 11, ...: short hops on a ring or torus.

    Cost: Rabenseifner's; the gain is in shared links, which every message crosses fewer of.
    Source: De Sensi et al., Swing: Short-cutting Rings for Higher Bandwidth Allreduce, NSDI 2024.
    """
    plain = local_op(op)
    core = fold_in(comm, x, plain)
    if core is not None:
        cut, walk = even_cuts(x.size, core.size), swing(core.size, core.rank)
        halve(core, x, cut, plain, walk)
        double(core, x, cut, walk)
    fold_out(comm, x)
    finish(comm, x, op, comm.size)


@collective("all_reduce", "halving_doubling", planned=True)
def halving_doubling_all_reduce(comm: Peers, x: Any, op: str = "sum") -> None:
    """Halve in blocks of 2^k ranks, carry the chunks from small blocks to large ones and back, double.

    No rank sends all of x to be folded in; p = 13 works in blocks of 8, 4 and 1.
    Cost: 2log₂p·α + 2(p-1)/p·n/B + (p-1)/p·γn for p = 2^k; else at most 2(number of blocks - 1) steps
    more; 2(p-1)n bytes in all.
    Source: Rabenseifner's binary blocks; Gloo allreduce_halving_doubling.
    """
    plain = local_op(op)
    blocks = binary_blocks(comm.size)
    mine = next(i for i, (start, size) in enumerate(blocks) if start <= comm.rank < start + size)
    start, size = blocks[mine]
    largest = even_cuts(x.size, blocks[0][1])
    cut = largest[:: blocks[0][1] // size]
    group = Among(comm, range(start, start + size))
    walk = distance_halving(size, group.rank)
    halve(group, x, cut, plain, walk)
    if mine + 1 < len(blocks):
        _meet_smaller(comm, x, largest, blocks[mine], blocks[mine + 1], plain)
    if mine > 0:
        _meet_larger(comm, x, largest, blocks[mine], blocks[mine - 1])
    if mine + 1 < len(blocks):
        _answer_smaller(comm, x, largest, blocks[mine], blocks[mine + 1])
    double(group, x, cut, walk)
    finish(comm, x, op, comm.size)


def fold_in(comm: Peers, x: Any, plain: str) -> Peers | None:
    """Add the x of ranks in excess of a power of two to a neighbour's; return the group that goes on."""
    core = power_of_two_core(comm.size)
    folded = comm.size - len(core)
    if not folded:
        return comm
    if comm.rank < 2 * folded:
        if comm.rank % 2 == 0:
            comm.waitall([comm.isend(x, comm.rank + 1)])
            return None
        got = comm.empty_like(x)
        comm.waitall([comm.irecv(got, comm.rank - 1)])
        comm.reduce(plain, x, got)
    return Among(comm, core)


def fold_out(comm: Peers, x: Any) -> None:
    """Give the result to the ranks that were folded in."""
    folded = comm.size - len(power_of_two_core(comm.size))
    if comm.rank < 2 * folded:
        if comm.rank % 2 == 0:
            comm.waitall([comm.irecv(x, comm.rank + 1)])
        else:
            comm.waitall([comm.isend(x, comm.rank - 1)])


Block = tuple[int, int]  # first rank, size


def _holder(larger: Block, smaller: Block, rank_in_larger: int) -> int:
    """Return the rank of the smaller block whose chunk contains that of `rank_in_larger`."""
    return smaller[0] + rank_in_larger * smaller[1] // larger[1]


def _meet_smaller(comm: Peers, x: Any, largest: tuple[int, ...], me: Block, smaller: Block, plain: str) -> None:
    """Add what the smaller block (with all blocks below it) has summed of my chunk."""
    mine = _chunk(largest, me, comm.rank - me[0])
    part = x[mine[0] : mine[1]]
    got = comm.empty_like(part)
    comm.waitall([comm.irecv(got, _holder(me, smaller, comm.rank - me[0]))])
    comm.reduce(plain, part, got)


def _meet_larger(comm: Peers, x: Any, largest: tuple[int, ...], me: Block, larger: Block) -> None:
    """Hand my chunk to the ranks of the larger block that own its parts, and take the totals back."""
    ratio = larger[1] // me[1]
    owners = range((comm.rank - me[0]) * ratio, (comm.rank - me[0] + 1) * ratio)
    cuts = [_chunk(largest, larger, owner) for owner in owners]
    comm.waitall([comm.isend(x[a:b], larger[0] + owner) for owner, (a, b) in zip(owners, cuts, strict=True)])
    comm.waitall([comm.irecv(x[a:b], larger[0] + owner) for owner, (a, b) in zip(owners, cuts, strict=True)])


def _answer_smaller(comm: Peers, x: Any, largest: tuple[int, ...], me: Block, smaller: Block) -> None:
    """Give the total of my chunk back to the smaller block."""
    a, b = _chunk(largest, me, comm.rank - me[0])
    comm.waitall([comm.isend(x[a:b], _holder(me, smaller, comm.rank - me[0]))])


def _chunk(largest: tuple[int, ...], block: Block, rank_in_block: int) -> tuple[int, int]:
    """Return where the chunk of a rank of `block` begins and ends."""
    chunks = (len(largest) - 1) // block[1]
    return largest[rank_in_block * chunks], largest[(rank_in_block + 1) * chunks]
