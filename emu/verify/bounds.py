"""What no algorithm of a collective can do with less: rounds, and bytes through one rank's port."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """`steps`: rounds in which a rank sends and receives one message at most. `nbytes`: in or out of one rank."""

    steps: int
    nbytes: float


_SHARES = {  # bytes that some rank must send or receive, as a share of n: of p ranks
    "all_reduce": lambda p: 2 * (p - 1) / p,
    "broadcast": lambda p: 1.0,
    "reduce": lambda p: 1.0,
    "all_gather": lambda p: (p - 1) / p,
    "reduce_scatter": lambda p: (p - 1) / p,
    "scatter": lambda p: (p - 1) / p,
    "gather": lambda p: (p - 1) / p,
    "all_to_all": lambda p: (p - 1) / p,
    "barrier": lambda p: 0.0,
}


def bounds_of(collective: str, p: int, nbytes: int) -> Bounds:
    """Return the least steps and the least bytes of the busiest rank, for n bytes in all on p ranks.

    Nobody can hear from p ranks in fewer than ⌈log₂p⌉ rounds. Source for the bytes of an all-reduce:
    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009.
    """
    if p == 1:
        return Bounds(0, 0.0)
    return Bounds((p - 1).bit_length() if nbytes or collective == "barrier" else 0, _SHARES[collective](p) * nbytes)
