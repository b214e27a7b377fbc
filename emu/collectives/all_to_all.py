"""All-to-all: rank r's chunk q goes to rank q, which keeps it as its chunk r.

x holds one chunk for each rank, out takes one from each. Chunks are equal, or, in the `_v` variants, as
`send_counts` and `receive_counts` say. Volumes: n is the length of x in bytes.
"""

from collections.abc import Sequence
from typing import Any

from emu.collectives.cuts import checked_counts, cuts_of, even_cuts
from emu.collectives.protocol import Peers
from emu.comm.calls import collective
from emu.errors import ConfigError

Cuts = Sequence[int]


@collective("all_to_all", "linear", planned=True)
def linear_all_to_all(comm: Peers, x: Any, out: Any) -> None:
    """Start all sends and receives at once.

    Cost: α + (p-1)/p·n/B on an idle full-duplex network; p-1 messages a rank in one step.
    Source: Open MPI coll/basic, linear; NCCL's grouped send and receive.
    """
    cut = _even("linear_all_to_all", comm, x, out)
    _linear(comm, x, out, cut, cut)


@collective("all_to_all", "pairwise", planned=True)
def pairwise_all_to_all(comm: Peers, x: Any, out: Any) -> None:
    """In step s send to the rank s further on and receive from s back: one message a port at a time.

    Cost: (p-1)(α + n/(pB)); p-1 messages a rank.
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations, 2005.
    """
    cut = _even("pairwise_all_to_all", comm, x, out)
    _pairwise(comm, x, out, cut, cut)


@collective("all_to_all", "bruck", planned=True)
def bruck_all_to_all(comm: Peers, x: Any, out: Any) -> None:
    """In step s pass on all chunks whose way has bit s set: ⌈log₂p⌉ steps, each of about half of x.

    Cost: ⌈log₂p⌉(α + n/(2B)) for p = 2^k; ⌈log₂p⌉ messages a rank, and every chunk is packed each time.
    Source: Bruck et al., Efficient algorithms for all-to-all communications, 1997.
    """
    p, r = comm.size, comm.rank
    cut = _even("bruck_all_to_all", comm, x, out)
    c = cut[1]
    held = comm.empty_like(x)  # chunk i of `held` is still i ranks away from where it goes
    comm.copy(held[: x.size - cut[r]], x[cut[r] :])
    comm.copy(held[x.size - cut[r] :], x[: cut[r]])
    for hop in (1 << s for s in range((p - 1).bit_length())):
        moving = [i for i in range(p) if i & hop]
        packed, got = (comm.empty(len(moving) * c, x.dtype, like=x) for _ in range(2))
        for place, i in enumerate(moving):
            comm.copy(packed[place * c : (place + 1) * c], held[i * c : (i + 1) * c])
        comm.sendrecv(packed, (r + hop) % p, got, (r - hop) % p)
        for place, i in enumerate(moving):
            comm.copy(held[i * c : (i + 1) * c], got[place * c : (place + 1) * c])
    for i in range(p):  # what came i ranks far is from rank r - i
        source = (r - i) % p
        comm.copy(out[source * c : (source + 1) * c], held[i * c : (i + 1) * c])


@collective("all_to_all_v", "linear", agree=(), planned=True)
def linear_all_to_all_v(
    comm: Peers, x: Any, out: Any, send_counts: Sequence[int], receive_counts: Sequence[int]
) -> None:
    """Start all sends and receives at once; send_counts[q] elements go to rank q.

    Cost: α + the largest number of bytes that a rank sends or receives / B; p-1 messages a rank.
    Source: Open MPI coll/basic, linear.
    """
    _linear(comm, x, out, *_uneven("linear_all_to_all_v", comm, x, out, send_counts, receive_counts))


@collective("all_to_all_v", "pairwise", agree=(), planned=True)
def pairwise_all_to_all_v(
    comm: Peers, x: Any, out: Any, send_counts: Sequence[int], receive_counts: Sequence[int]
) -> None:
    """In step s send send_counts[r + s] elements to the rank s further on, and receive from s back.

    Cost: (p-1)α + the sum over steps of the longest message / B; p-1 messages a rank.
    Source: Thakur, Rabenseifner, Gropp, 2005.
    """
    _pairwise(comm, x, out, *_uneven("pairwise_all_to_all_v", comm, x, out, send_counts, receive_counts))


def _linear(comm: Peers, x: Any, out: Any, give: Cuts, take: Cuts) -> None:
    p, r = comm.size, comm.rank
    others = [(r + step) % p for step in range(1, p)]
    requests = [comm.irecv(out[take[q] : take[q + 1]], q) for q in reversed(others)]
    requests += [comm.isend(x[give[q] : give[q + 1]], q) for q in others]
    comm.copy(out[take[r] : take[r + 1]], x[give[r] : give[r + 1]])
    comm.waitall(requests)


def _pairwise(comm: Peers, x: Any, out: Any, give: Cuts, take: Cuts) -> None:
    p, r = comm.size, comm.rank
    comm.copy(out[take[r] : take[r + 1]], x[give[r] : give[r + 1]])
    for step in range(1, p):
        to, source = (r + step) % p, (r - step) % p
        comm.sendrecv(x[give[to] : give[to + 1]], to, out[take[source] : take[source + 1]], source)


def _even(where: str, comm: Peers, x: Any, out: Any) -> Cuts:
    if x.size != out.size or x.size % comm.size or x.dtype != out.dtype:
        raise ConfigError(
            f"{where}: x and out must hold {comm.size} equal chunks of one dtype, got {x.size} {x.dtype} and"
            f" {out.size} {out.dtype}; make both a multiple of {comm.size} long, or use the _v variant"
        )
    return even_cuts(x.size, comm.size)


def _uneven(
    where: str, comm: Peers, x: Any, out: Any, send_counts: Sequence[int], receive_counts: Sequence[int]
) -> tuple[Cuts, Cuts]:
    p, r = comm.size, comm.rank
    give = cuts_of(checked_counts(f"{where} send_counts", send_counts, p))
    take = cuts_of(checked_counts(f"{where} receive_counts", receive_counts, p))
    if give[p] > x.size or take[p] > out.size or x.dtype != out.dtype:
        raise ConfigError(
            f"{where}: counts must fit the buffers, got sums {give[p]} and {take[p]} for x of {x.size} {x.dtype}"
            f" and out of {out.size} {out.dtype}; make lengths, dtypes and counts agree"
        )
    if send_counts[r] != receive_counts[r]:
        raise ConfigError(
            f"{where}: what I keep must have one length, got send_counts[{r}] = {send_counts[r]} and"
            f" receive_counts[{r}] = {receive_counts[r]}; make them equal"
        )
    return give, take
