"""How a buffer is cut into one chunk a rank. Nothing here communicates.

A list of cuts has one entry more than there are chunks: chunk i is `x[cut[i]:cut[i + 1]]`.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

from emu.comm.at_once import Table
from emu.errors import ConfigError


@lru_cache(maxsize=1024)
def even_cuts(n: int, p: int) -> Table:
    """Cut n elements for p ranks; the first n % p chunks are one element longer.

    >>> even_cuts(7, 3)
    (0, 3, 5, 7)
    """
    base, longer = divmod(n, p)
    return Table(i * base + min(i, longer) for i in range(p + 1))


def cuts_of(counts: Sequence[int]) -> Table:
    """Turn the lengths of chunks into cuts.

    >>> cuts_of([2, 0, 3])
    (0, 2, 2, 5)
    """
    return _cuts_of(tuple(counts))


@lru_cache(maxsize=64)
def _cuts_of(counts: tuple[int, ...]) -> Table:
    return Table((0, *accumulate(counts)))


def rotated(cut: Sequence[int], first: int) -> tuple[int, ...]:
    """Lay the same chunks out anew, starting with chunk `first` and going round.

    >>> rotated((0, 2, 2, 5), 2)
    (0, 3, 5, 5)
    """
    p = len(cut) - 1
    return cuts_of([cut[(first + i) % p + 1] - cut[(first + i) % p] for i in range(p)])


def segments(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """Cut [start, stop) into `count` segments as even as can be; some are empty if it is shorter."""
    cut = even_cuts(stop - start, count)
    return [(start + cut[i], start + cut[i + 1]) for i in range(count)]


@lru_cache(maxsize=16)
def segment_edges(cut: tuple[int, ...], count: int) -> tuple[Table, ...]:
    """Cut each chunk into `count` segments: segment j of chunk c is x[edges[j][c] : edges[j + 1][c]].

    >>> segment_edges((0, 5, 9), 2)
    ((0, 5), (3, 7), (5, 9))
    """
    inside = [even_cuts(cut[c + 1] - cut[c], count) for c in range(len(cut) - 1)]
    return tuple(Table(cut[c] + edges[j] for c, edges in enumerate(inside)) for j in range(count + 1))


def segment_count(elements: int, itemsize: int, segment_bytes: int) -> int:
    """How many segments of at most `segment_bytes` hold `elements`; at least one.

    >>> segment_count(1000, 4, 1024)
    4
    """
    return max(1, -(-elements * itemsize // segment_bytes))


def cuts_for(
    where: str, part: Any, whole: Any, p: int, r: int, counts: Sequence[int] | None
) -> tuple[int, ...]:
    """Cut the array `whole` into p parts, of which `part` is mine: equal ones, or as `counts` says.

    Raises ConfigError, beginning with `where`, when lengths or dtypes do not fit together.
    """
    if part.dtype != whole.dtype:
        raise ConfigError(
            f"{where}: part and whole must have one dtype, got {part.dtype} and {whole.dtype}; convert one of them"
        )
    if counts is None:
        if whole.size != p * part.size:
            raise ConfigError(
                f"{where}: the whole must hold {p} parts of {part.size} elements, got {whole.size} elements;"
                f" make it {p * part.size} long, or give counts"
            )
        return even_cuts(whole.size, p)
    cut = cuts_of(checked_counts(where, counts, p))
    mine = cut[r + 1] - cut[r]
    if mine != part.size or cut[p] != whole.size:
        raise ConfigError(
            f"{where}: counts must fit the buffers, got counts[{r}] = {mine} for a part of {part.size}"
            f" and a sum of {cut[p]} for a whole of {whole.size}; make lengths and counts agree"
        )
    return cut


def checked_counts(where: str, counts: Sequence[int], p: int) -> Sequence[int]:
    """Return `counts` if it holds one length for each of p ranks; raise ConfigError otherwise."""
    if len(counts) != p or min(counts) < 0:
        raise ConfigError(f"{where}: counts must be {p} lengths, none negative, got {list(counts)}; give one a rank")
    return counts


def cuts_for_part(where: str, part: Any, counts: Sequence[int], r: int) -> tuple[int, ...]:
    """Cut as `counts` says on a rank that sees only its own part; raise ConfigError if that does not fit."""
    cut = cuts_of(counts)
    if cut[r + 1] - cut[r] != part.size:
        raise ConfigError(
            f"{where}: my part must hold counts[{r}] = {counts[r]} elements, got {part.size}; make them agree"
        )
    return cut
