"""Sizes and bandwidths as nccl-tests count them.

The size S is the whole buffer's: of all ranks' chunks together for all-gather, reduce-scatter, all-to-all,
gather and scatter. algbw = S/t; busbw = algbw × factor, which makes one number of a link's use comparable over
collectives and numbers of ranks. Source: nccl-tests, doc/PERFORMANCE.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from emu.errors import ConfigError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def bus_factor(collective: str, p: int) -> float:
    """Return by what busbw exceeds algbw.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    if collective in ("broadcast", "reduce"):
        return 1.0
    if collective == "all_reduce":
        return 2 * (p - 1) / p
    return (p - 1) / p


def parse_size(where: str, text: str) -> int:
    """Read a size as nccl-tests writes it: 8, 4K, 32M, 1G, in powers of 1024.

    >>> parse_size("-b", "4K")
    4096
    """
    number, unit = text.strip().upper().removesuffix("B"), ""
    if number and number[-1] in _UNITS:
        number, unit = number[:-1], number[-1]
    if not number.isdigit():
        raise ConfigError(f"{where}: a size such as 8, 4K, 32M or 1G is expected, got {text!r}")
    return int(number) * _UNITS[unit]


def sizes(first: int, last: int, step: int, factor: int | None) -> Iterator[int]:
    """List sizes from first to last: by a factor, or by a step.

    >>> list(sizes(8, 40, 0, 2)), list(sizes(8, 24, 8, None))
    ([8, 16, 32], [8, 16, 24])
    """
    if first > last:
        raise ConfigError(f"-b, -e: the first size must not exceed the last one, got {first} and {last}")
    if factor is not None and (factor < 2 or first == 0 < last):
        raise ConfigError(f"-f: a factor from 2 on and a first size above 0 are expected, got {factor} and {first}")
    if factor is None and step <= 0 and first < last:
        raise ConfigError(f"-i: a step above 0 is expected, got {step}")
    size = first
    while size <= last:
        yield size
        if size == last:
            return
        size = size * factor if factor is not None else size + step


@dataclass(frozen=True)
class Measured:
    """One way of calling a collective: emulated and measured seconds a call, bandwidths, wrong elements."""

    time_s: float
    algbw_bytes_per_s: float
    busbw_bytes_per_s: float
    wrong: int | None
    wall_s: float | None


@dataclass(frozen=True)
class Row:
    """One size: out of place, and in place where the collective has that."""

    size_bytes: int
    count: int
    type: str
    redop: str
    root: int
    out_of_place: Measured
    in_place: Measured | None
