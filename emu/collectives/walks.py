"""Who meets whom in the algorithms that halve and double. Nothing here communicates.

A walk tells a rank of a group of q = 2^k its partner in each step and the chunk that it owns in the end.
In step s, the ranks that still share a window of chunks split it in two: a rank keeps the half that
holds its place and its partner keeps the other. Any walk gives a reduce-scatter (forward) and an
all-gather (backward) of k steps; they differ in how far the large messages travel.
"""

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Walk:
    """`partners[s]`: whom I meet in step s; `place`: which chunk is mine in the end."""

    partners: tuple[int, ...]
    place: int


def distance_halving(q: int, r: int) -> Walk:
    """Meet the farthest rank first; rank r ends with chunk r.

    >>> distance_halving(8, 3)
    Walk(partners=(7, 1, 2), place=3)
    """
    steps = q.bit_length() - 1
    return Walk(tuple(r ^ (q >> (s + 1)) for s in range(steps)), r)


def distance_doubling(q: int, r: int) -> Walk:
    """Meet the nearest rank first, when messages are largest; places are bit-reversed ranks.

    >>> distance_doubling(8, 3)
    Walk(partners=(2, 1, 7), place=6)
    """
    steps = q.bit_length() - 1
    place = sum(1 << (steps - 1 - s) for s in range(steps) if r >> s & 1)
    return Walk(tuple(r ^ (1 << s) for s in range(steps)), place)


def swing(q: int, r: int) -> Walk:
    """Meet ranks at the distances 1, -1, 3, -5, 11, ...: short hops on a ring or torus.

    Source: De Sensi et al., Swing: Short-cutting Rings for Higher Bandwidth Allreduce, NSDI 2024.
    """
    steps = q.bit_length() - 1
    return Walk(tuple(_swing_partner(q, r, s) for s in range(steps)), _swing_places(q)[r])


def _swing_partner(q: int, r: int, step: int) -> int:
    hop = (1 - (-2) ** (step + 1)) // 3
    return (r + hop if r % 2 == 0 else r - hop) % q


@lru_cache(maxsize=64)
def _swing_places(q: int) -> tuple[int, ...]:
    """Give the q chunks an order in which every window that a rank keeps is contiguous.

    The ranks that can still meet after step s form a class. Classes nest, so sorting ranks by their
    classes, the coarse ones first, puts each class in one piece.
    """
    steps = q.bit_length() - 1
    classes = [list(range(q))]
    for s in reversed(range(steps)):
        finer = classes[-1]
        classes.append([min(finer[r], finer[_swing_partner(q, r, s)]) for r in range(q)])
    order = sorted(range(q), key=lambda r: tuple(level[r] for level in reversed(classes)))
    places = [0] * q
    for place, r in enumerate(order):
        places[r] = place
    return tuple(places)


@lru_cache(maxsize=1024)
def power_of_two_core(p: int) -> tuple[int, ...]:
    """List the 2^⌊log₂ p⌋ ranks that go on when p is folded to a power of two.

    Of the first 2·(p - q) ranks each even one hands its part to the odd one after it.

    >>> power_of_two_core(6)
    (1, 3, 4, 5)
    """
    q = 1 << (p.bit_length() - 1)
    folded = p - q
    return (*range(1, 2 * folded, 2), *range(2 * folded, p))


def binary_blocks(p: int) -> list[tuple[int, int]]:
    """Split p ranks into blocks of powers of two, the largest first: (first rank, size).

    >>> binary_blocks(13)
    [(0, 8), (8, 4), (12, 1)]
    """
    blocks, start = [], 0
    for bit in reversed(range(p.bit_length())):
        if p >> bit & 1:
            blocks.append((start, 1 << bit))
            start += 1 << bit
    return blocks


@dataclass(frozen=True)
class TreeNode:
    """My place in a tree: parent (None at the root) and children, as ranks."""

    parent: int | None
    children: tuple[int, ...]


def binomial_node(p: int, r: int, root: int = 0) -> TreeNode:
    """Place rank r in the binomial tree under `root`; the child with the largest subtree first.

    >>> binomial_node(8, 0).children, binomial_node(8, 4)
    ((4, 2, 1), TreeNode(parent=0, children=(6, 5)))
    """
    v = (r - root) % p
    low = v & -v if v else 1 << (p - 1).bit_length()
    parent = None if v == 0 else (v - low + root) % p
    hops = [1 << b for b in reversed(range(low.bit_length() - 1))]
    return TreeNode(parent, tuple((v + hop + root) % p for hop in hops if v + hop < p))


def binary_tree_node(p: int, r: int, shift: int) -> TreeNode:
    """Place rank r in the in-order binary tree over the ranks, rotated by `shift`.

    Inner nodes of the unshifted tree are odd ranks; rotated by one they are even ranks, so that no
    rank is an inner node of both. Source: Sanders, Speck, Träff, Two-tree algorithms for full
    bandwidth broadcast, reduction and scan, 2009.

    >>> binary_tree_node(7, 3, 0), binary_tree_node(7, 0, 0)
    (TreeNode(parent=None, children=(1, 5)), TreeNode(parent=1, children=()))
    """
    i = (r + shift) % p + 1
    low = i & -i
    up = (i - low) | (low << 1)
    if up > p:
        up = i - low
    below = []
    if low > 1:
        below.append(i - low // 2)
        step = low // 2
        while step and i + step > p:
            step //= 2
        if step:
            below.append(i + step)
    return TreeNode((up - 1 - shift) % p if up else None, tuple((c - 1 - shift) % p for c in below))
