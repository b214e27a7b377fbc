"""All-gather: every rank ends with the chunks of all ranks, in rank order.

x is my chunk, out takes all of them; x may be its own place in out. Chunks are equal, or as `counts`
says. Below the algorithms stand the phases they share with all-reduce and broadcast, which complete a
buffer in place. Volumes: n is the length of out in bytes.
"""

from collections.abc import Sequence
from typing import Any

from emu.collectives.among import Among
from emu.collectives.cuts import cuts_for, rotated
from emu.collectives.neighbours import neighbour_steps, pair_cuts
from emu.collectives.protocol import Peers
from emu.collectives.walks import Walk, distance_halving, power_of_two_core
from emu.comm.calls import collective


@collective("all_gather", "ring", agree=("out", "counts"), planned=True)
def ring_all_gather(comm: Peers, x: Any, out: Any, counts: Sequence[int] | None = None) -> None:
    """Pass every chunk once round the ring.

    Cost: (p-1)(α + n/(pB)); every rank sends all of out but its right neighbour's chunk, p-1 messages.
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations, 2005.
    """
    cut = _begin(comm, "ring_all_gather", x, out, counts)
    ring_gather(comm, out, cut)


@collective("all_gather", "linear", agree=("out", "counts"), planned=True)
def linear_all_gather(comm: Peers, x: Any, out: Any, counts: Sequence[int] | None = None) -> None:
    """Send my chunk to everybody at once.

    Cost: α + (p-1)n/(pB); p-1 messages a rank, in one step, and nothing is sent on.
    Source: Open MPI coll/basic, linear.
    """
    p, r = comm.size, comm.rank
    cut = _begin(comm, "linear_all_gather", x, out, counts)
    others = [(r + step) % p for step in range(1, p)]
    requests = [comm.irecv(out[cut[q] : cut[q + 1]], q) for q in reversed(others)]
    requests += [comm.isend(x, q) for q in others]
    comm.waitall(requests)


@collective("all_gather", "recursive_doubling", agree=("out", "counts"), planned=True)
def recursive_doubling_all_gather(comm: Peers, x: Any, out: Any, counts: Sequence[int] | None = None) -> None:
    """Exchange all that is there with the rank twice as far away, until all is there.

    Where p is no power of two, ranks in excess hand their chunk to a neighbour and get all from it.
    Cost: log₂p·α + (p-1)/p·n/B for p = 2^k; else two steps, n and a chunk more.
    Source: Thakur, Rabenseifner, Gropp, 2005.
    """
    p, r = comm.size, comm.rank
    cut = _begin(comm, "recursive_doubling_all_gather", x, out, counts)
    core = power_of_two_core(p)
    folded = p - len(core)
    if r < 2 * folded and r % 2 == 0:
        comm.waitall([comm.isend(x, r + 1)])
        comm.waitall([comm.irecv(out, r + 1)])
        return
    if r < 2 * folded:
        comm.waitall([comm.irecv(out[cut[r - 1] : cut[r]], r - 1)])
    group = Among(comm, core)
    chunks = (*cut[: 2 * folded : 2], *cut[2 * folded :])
    double(group, out, chunks, distance_halving(group.size, group.rank))
    if r < 2 * folded:
        comm.waitall([comm.isend(out, r - 1)])


@collective("all_gather", "bruck", agree=("out", "counts"), planned=True)
def bruck_all_gather(comm: Peers, x: Any, out: Any, counts: Sequence[int] | None = None) -> None:
    """Double what is there in ⌈log₂p⌉ steps for any p, starting from my chunk; rotate it at the end.

    Cost: ⌈log₂p⌉α + (p-1)/p·n/B; ⌈log₂p⌉ messages a rank.
    Source: Bruck et al., Efficient algorithms for all-to-all communications, 1997.
    """
    p, r = comm.size, comm.rank
    cut = cuts_for("bruck_all_gather", x, out, p, r, counts)
    mine = rotated(cut, r)  # my chunk first, then those of the ranks after me
    held = comm.empty_like(out)
    comm.copy(held[: x.size], x)
    for hop in (1 << s for s in range((p - 1).bit_length())):
        blocks = min(hop, p - hop)
        into = held[mine[hop] : mine[hop + blocks]]
        comm.sendrecv(held[: mine[blocks]], (r - hop) % p, into, (r + hop) % p)
    comm.copy(out[cut[r] :], held[: out.size - cut[r]])
    comm.copy(out[: cut[r]], held[out.size - cut[r] :])


@collective("all_gather", "neighbour", agree=("out", "counts"), planned=True)
def neighbour_all_gather(comm: Peers, x: Any, out: Any, counts: Sequence[int] | None = None) -> None:
    """Meet the two neighbours in turns and hand on the pair of chunks received last.

    With an odd p the last rank hands its chunk to the one before it and gets all from it.
    Cost: p/2·α + (p-1)/p·n/B for even p; p/2 messages a rank.
    Source: Chen et al., Performance evaluation of allgather algorithms on terascale Linux cluster, 2005.
    """
    p, r = comm.size, comm.rank
    cut = _begin(comm, "neighbour_all_gather", x, out, counts)
    even = p - p % 2
    if p == 1:
        return
    if r == even:
        comm.waitall([comm.isend(x, r - 1)])
        comm.waitall([comm.irecv(out, r - 1)])
        return
    carries_last = p % 2 == 1 and r == even - 1
    if carries_last:
        comm.waitall([comm.irecv(out[cut[even] :], even)])
    chunks = cut if p % 2 == 0 else (*cut[:even], cut[p])
    neighbour_gather(Among(comm, range(even)), out, chunks)
    if carries_last:
        comm.waitall([comm.isend(out, even)])


def ring_gather(comm: Peers, x: Any, cut: Sequence[int]) -> None:
    """Complete x, of which rank r holds chunk r, by passing chunks to the right."""
    p, r = comm.size, comm.rank
    left, right = (r - 1) % p, (r + 1) % p
    held = x[cut[r] : cut[r + 1]]
    for step in range(p - 1):
        take = (r - 1 - step) % p
        taken = x[cut[take] : cut[take + 1]]
        comm.sendrecv(held, right, taken, left)
        held = taken


def double(comm: Peers, x: Any, cut: Sequence[int], walk: Walk) -> None:
    """Complete x, of which this rank holds chunk `walk.place`, by walking back.

    Invariant: chunks [first, first + size) are there.
    """
    first, size = walk.place, 1
    for partner in reversed(walk.partners):
        theirs = first ^ size
        comm.sendrecv(
            x[cut[first] : cut[first + size]], partner, x[cut[theirs] : cut[theirs + size]], partner
        )
        first &= ~size
        size *= 2


def neighbour_gather(comm: Peers, x: Any, cut: Sequence[int]) -> None:
    """Complete x, of which rank r holds chunk r; comm.size is even."""
    r = comm.rank
    pairs, partner = pair_cuts(cut), r ^ 1
    comm.sendrecv(x[cut[r] : cut[r + 1]], partner, x[cut[partner] : cut[partner + 1]], partner)
    for partner, sent, received in neighbour_steps(comm.size, r):
        into = x[pairs[received] : pairs[received + 1]]
        comm.sendrecv(x[pairs[sent] : pairs[sent + 1]], partner, into, partner)


def _begin(comm: Peers, where: str, x: Any, out: Any, counts: Sequence[int] | None) -> tuple[int, ...]:
    cut = cuts_for(where, x, out, comm.size, comm.rank, counts)
    comm.copy(out[cut[comm.rank] : cut[comm.rank + 1]], x)
    return cut
