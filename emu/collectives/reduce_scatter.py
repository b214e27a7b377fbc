"""Reduce-scatter: rank r ends with chunk r of the sum of everybody's x.

x holds one chunk for each rank and is left as it was; out takes my chunk and may be its place in x.
Chunks are equal, or as `counts` says. Below the algorithms stand the phases they share with all-reduce,
which work on cuts. Volumes: n is the length of x in bytes.
"""

from collections.abc import Sequence
from typing import Any

from emu.collectives.among import Among
from emu.collectives.cuts import cuts_for, rotated
from emu.collectives.neighbours import neighbour_steps, pair_cuts
from emu.collectives.ops import finish, local_op
from emu.collectives.protocol import Peers
from emu.collectives.walks import Walk, distance_halving, power_of_two_core
from emu.comm.calls import collective


@collective("reduce_scatter", "ring", agree=("x", "counts"), planned=True)
def ring_reduce_scatter(comm: Peers, x: Any, out: Any, op: str = "sum", counts: Sequence[int] | None = None) -> None:
    """Pass partial sums round the ring; each chunk arrives complete at its owner.

    Cost: (p-1)(α + n/(pB) + γn/p); every rank sends all of x but its own chunk, p-1 messages.
    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.
    """
    cut = cuts_for("ring_reduce_scatter", out, x, comm.size, comm.rank, counts)
    ring_reduce(comm, x, cut, op, out)
    finish(comm, out, op, comm.size)


@collective("reduce_scatter", "pairwise", agree=("x", "counts"), planned=True)
def pairwise_reduce_scatter(
    comm: Peers, x: Any, out: Any, op: str = "sum", counts: Sequence[int] | None = None
) -> None:
    """In step s send its chunk straight to the rank s further on, and receive mine from s back.

    Cost: (p-1)(α + n/(pB) + γn/p); p-1 messages a rank, nothing is sent on.
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations, 2005.
    """
    p, r = comm.size, comm.rank
    plain = local_op(op)
    cut = cuts_for("pairwise_reduce_scatter", out, x, p, r, counts)
    comm.copy(out, x[cut[r] : cut[r + 1]])
    got = comm.empty_like(out)
    for step in range(1, p):
        to = (r + step) % p
        comm.sendrecv(x[cut[to] : cut[to + 1]], to, got, (r - step) % p)
        comm.reduce(plain, out, got)
    finish(comm, out, op, p)


@collective("reduce_scatter", "recursive_halving", agree=("x", "counts"), planned=True)
def recursive_halving_reduce_scatter(
    comm: Peers, x: Any, out: Any, op: str = "sum", counts: Sequence[int] | None = None
) -> None:
    """Exchange half of what is left with the rank half as far away, until one chunk is left.

    Where p is no power of two, ranks in excess first fold all of x into a neighbour.
    Cost: log₂p·α + (p-1)/p·n(1/B + γ) for p = 2^k; else two steps, n and a chunk more.
    Source: Thakur, Rabenseifner, Gropp, 2005.
    """
    p, r = comm.size, comm.rank
    plain = local_op(op)
    cut = cuts_for("recursive_halving_reduce_scatter", out, x, p, r, counts)
    core = power_of_two_core(p)
    folded = p - len(core)
    if r < 2 * folded and r % 2 == 0:
        comm.waitall([comm.isend(x, r + 1)])
        comm.waitall([comm.irecv(out, r + 1)])
    elif r < 2 * folded:
        both = comm.empty_like(x)
        comm.waitall([comm.irecv(both, r - 1)])
        comm.reduce(plain, both, x)
        pair = comm.empty_like(x[cut[r - 1] : cut[r + 1]])
        _halve_in_core(comm, both, core, cut, plain, pair)
        kept = cut[r] - cut[r - 1]
        comm.waitall([comm.isend(pair[:kept], r - 1)])
        comm.copy(out, pair[kept:])
    else:
        _halve_in_core(comm, x, core, cut, plain, out)
    finish(comm, out, op, p)


@collective("reduce_scatter", "bruck", agree=("x", "counts"), planned=True)
def bruck_reduce_scatter(
    comm: Peers, x: Any, out: Any, op: str = "sum", counts: Sequence[int] | None = None
) -> None:
    """Run Bruck's all-gather backwards: ⌈log₂p⌉ steps for any p, at the price of a rotated copy.

    Cost: ⌈log₂p⌉α + (p-1)/p·n(1/B + γ); ⌈log₂p⌉ messages a rank.
    Source: Bruck et al., Efficient algorithms for all-to-all communications, 1997 (transposed).
    """
    p, r = comm.size, comm.rank
    plain = local_op(op)
    cut = cuts_for("bruck_reduce_scatter", out, x, p, r, counts)
    acc = comm.empty_like(x)
    mine = rotated(cut, r)  # my chunk first, then those of the ranks after me
    comm.copy(acc[: x.size - cut[r]], x[cut[r] :])
    comm.copy(acc[x.size - cut[r] :], x[: cut[r]])
    for hop in reversed([1 << s for s in range((p - 1).bit_length())]):
        blocks = min(hop, p - hop)
        got = comm.empty_like(acc[: mine[blocks]])
        comm.sendrecv(acc[mine[hop] : mine[hop + blocks]], (r + hop) % p, got, (r - hop) % p)
        comm.reduce(plain, acc[: mine[blocks]], got)
    comm.copy(out, acc[: mine[1]])
    finish(comm, out, op, p)


@collective("reduce_scatter", "neighbour", agree=("x", "counts"), planned=True)
def neighbour_reduce_scatter(
    comm: Peers, x: Any, out: Any, op: str = "sum", counts: Sequence[int] | None = None
) -> None:
    """Run the neighbour exchange backwards: partial sums of pairs go left and right in turns.

    With an odd p the last rank folds all of x into the one before it.
    Cost: p/2·α + (p-1)/p·n(1/B + γ) for even p; p/2 messages a rank, all to the two neighbours.
    Source: Chen et al., Performance evaluation of allgather algorithms on terascale Linux cluster, 2005.
    """
    p, r = comm.size, comm.rank
    plain = local_op(op)
    cut = cuts_for("neighbour_reduce_scatter", out, x, p, r, counts)
    even = p - p % 2
    if r == even:  # p is odd and I am the last; also p = 1
        _fold_last(comm, x, out)
    else:
        acc = comm.empty_like(x)
        if p % 2 and r == even - 1:
            comm.waitall([comm.irecv(acc, even)])
            comm.reduce(plain, acc, x)
        else:
            comm.copy(acc, x)
        chunks = cut if p % 2 == 0 else (*cut[:even], cut[p])
        _neighbour_reduce(Among(comm, range(even)), acc, chunks, plain)
        if p % 2 and r == even - 1:
            comm.waitall([comm.isend(acc[cut[even] :], even)])
        comm.copy(out, acc[cut[r] : cut[r + 1]])
    finish(comm, out, op, p)


def ring_reduce(comm: Peers, x: Any, cut: Sequence[int], op: str, out: Any = None) -> None:
    """Leave the sum of chunk r in `out`, or in its place in x; the rest of x stays as it was.

    Partial sums live in the buffers they were received in, so that x is only read.
    """
    p, r = comm.size, comm.rank
    plain = local_op(op)
    own = x[cut[r] : cut[r + 1]]
    if out is not None:
        comm.copy(out, own)
    longest = max(cut[i + 1] - cut[i] for i in range(p))
    spare = [comm.empty(longest, x.dtype, like=x) for _ in range(min(2, p - 1))]
    left, right = (r - 1) % p, (r + 1) % p
    partial = x[cut[left] : cut[left + 1]]
    for step in range(p - 1):
        c = (r - 2 - step) % p
        mine = x[cut[c] : cut[c + 1]]
        got = spare[step % 2][: mine.size]
        comm.sendrecv(partial, right, got, left)
        if step == p - 2:  # my own chunk has come round
            comm.reduce(plain, own if out is None else out, got)
        else:
            comm.reduce(plain, got, mine)
        partial = got


def halve(comm: Peers, x: Any, cut: Sequence[int], plain: str, walk: Walk, out: Any = None) -> None:
    """Leave the sum of chunk `walk.place` in `out` and x as it was; without `out`, in its place in x.

    Invariant: `part` holds the sums of chunks [first, first + size) over the ranks met so far; it
    begins with chunk `first`.
    """
    part, first, size = x, 0, len(cut) - 1
    for partner in walk.partners:
        size //= 2
        keep = first + size if walk.place & size else first
        give = 2 * first + size - keep
        start = cut[first]
        mine = part[cut[keep] - start : cut[keep + size] - start]
        got = comm.empty_like(mine)
        comm.sendrecv(part[cut[give] - start : cut[give + size] - start], partner, got, partner)
        if out is None:
            comm.reduce(plain, mine, got)
            part = mine
        else:
            comm.reduce(plain, got, mine)
            part = got
        first = keep
    if out is not None:
        comm.copy(out, part)


def _halve_in_core(
    comm: Peers, x: Any, core: Sequence[int], cut: Sequence[int], plain: str, out: Any
) -> None:
    """Halve among the core; a core rank that took in a neighbour owns that one's chunk and its own."""
    folded = comm.size - len(core)
    chunks = (*cut[: 2 * folded : 2], *cut[2 * folded :])
    group = Among(comm, core)
    halve(group, x, chunks, plain, distance_halving(group.size, group.rank), out)


def _fold_last(comm: Peers, x: Any, out: Any) -> None:
    if comm.size == 1:
        comm.copy(out, x)
        return
    comm.waitall([comm.isend(x, comm.rank - 1)])
    comm.waitall([comm.irecv(out, comm.rank - 1)])


def _neighbour_reduce(comm: Peers, acc: Any, cut: Sequence[int], plain: str) -> None:
    """Leave the sum of chunk r in its place in `acc`; comm.size is even."""
    pairs = pair_cuts(cut)
    got = comm.empty(max(pairs[i + 1] - pairs[i] for i in range(len(pairs) - 1)), acc.dtype, like=acc)
    for partner, sent, received in reversed(neighbour_steps(comm.size, comm.rank)):
        take = acc[pairs[sent] : pairs[sent + 1]]
        comm.sendrecv(acc[pairs[received] : pairs[received + 1]], partner, got[: take.size], partner)
        comm.reduce(plain, take, got[: take.size])
    partner = comm.rank ^ 1
    take = acc[cut[comm.rank] : cut[comm.rank + 1]]
    comm.sendrecv(acc[cut[partner] : cut[partner + 1]], partner, got[: take.size], partner)
    comm.reduce(plain, take, got[: take.size])
