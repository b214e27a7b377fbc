"""Collectives by hand: each algorithm a short function over point-to-point messages, and one table of them.

`all_reduce(comm, x, algorithm="ring")` and its kin take the algorithm by name; `ring_all_reduce(comm, x)` and
its kin, all that TABLE and UNEVEN list, are the algorithms themselves.
"""

from typing import Any

from emu.collectives.calls import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    find,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from emu.collectives.table import PLACED, TABLE, UNEVEN, Algorithm

__all__ = [
    "PLACED",
    "TABLE",
    "UNEVEN",
    "Algorithm",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "find",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]


def __getattr__(name: str) -> Any:
    """Find an algorithm by its whole name, such as ring_all_reduce."""
    known: list[tuple[str, Any]] = [*TABLE.items(), *UNEVEN.items(), *PLACED.items()]
    for collective, algorithms in known:
        algorithm = name.removesuffix(f"_{collective}")
        if algorithm != name and algorithm in algorithms:
            return find(collective, algorithm)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
