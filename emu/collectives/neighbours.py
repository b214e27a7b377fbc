"""The order of a neighbour exchange: whom a rank meets and which pair of chunks passes. No communication."""

from collections.abc import Sequence
from functools import lru_cache


def pair_cuts(cut: Sequence[int]) -> tuple[int, ...]:
    """Join chunks 2i and 2i + 1 to pair i.

    >>> pair_cuts((0, 1, 3, 6, 10))
    (0, 3, 10)
    """
    return tuple(cut[::2])


@lru_cache(maxsize=4096)
def neighbour_steps(p: int, r: int) -> tuple[tuple[int, int, int], ...]:
    """List the steps after the first exchange within a pair: (partner, pair sent, pair received).

    p is even. A rank meets its two neighbours in turns and hands on the pair that it received last.

    >>> neighbour_steps(6, 0)
    ((5, 0, 2), (1, 2, 1))
    """
    pairs, home, way = p // 2, r // 2, 1 if r % 2 else -1
    held, steps = home, []
    for t in range(1, pairs):
        outward = t % 2 == 1
        partner = (r + way) % p if outward else r ^ 1
        received = (home + way * ((t + 1) // 2 if outward else -t // 2)) % pairs
        steps.append((partner, held, received))
        held = received
    return tuple(steps)
