"""What each collective owes: how it is called, on which buffers, and what each rank must hold in the end.

Plain numpy says what is right; nothing here communicates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emu.errors import ConfigError

Arrays = Sequence[np.ndarray]
UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


@dataclass(frozen=True)
class Contract:
    """One collective. A chunk has n elements; a whole is one chunk for each rank.

    `expected(inputs, rank, root, op)` returns what the rank must hold, or None where that is undefined.
    """

    takes: str  # "chunk", "whole" or "nothing"
    gives: str  # "in place", "chunk", "whole" or "nothing"
    expected: Callable[[Arrays, int, int, str], np.ndarray | None]
    rooted: bool = False
    reduces: bool = False

    def input_size(self, p: int, n: int) -> int:
        """Return how many elements x has."""
        return {"chunk": n, "whole": p * n, "nothing": 0}[self.takes]

    def output_size(self, p: int, n: int) -> int:
        """Return how many elements out has; 0 in place."""
        return {"in place": 0, "nothing": 0, "chunk": n, "whole": p * n}[self.gives]

    def total_size(self, p: int, n: int) -> int:
        """Return the elements that sizes and bandwidths are told for: the larger of x and out."""
        return max(self.input_size(p, n), self.output_size(p, n))

    def call(
        self, function: Callable[..., Any], comm: Any, x: Any, out: Any, root: int, op: str, options: dict[str, Any]
    ) -> Any:
        """Call function(comm, …) as its collective is called, and return what it returns."""
        if self.takes == "nothing":
            return function(comm, **options)
        terms: dict[str, Any] = {}
        if self.rooted:
            terms["root"] = root
        if self.reduces and op != "sum":  # a function that only sums need not take `op`
            terms["op"] = op
        buffers = (x,) if self.gives == "in place" else (x, out)
        return function(comm, *buffers, **terms, **options)


def reduced(inputs: Arrays, op: str) -> np.ndarray:
    """Reduce arrays one after the other, in rank order; an average of integers rounds down."""
    total = inputs[0].copy()
    for rank in range(1, len(inputs)):
        UFUNCS["sum" if op == "avg" else op](total, inputs[rank], out=total)
    if op == "avg":
        total = total // len(inputs) if total.dtype.kind in "iu" else total / total.dtype.type(len(inputs))
    return total


def chunk_of(whole: np.ndarray, p: int, rank: int) -> np.ndarray:
    """Return one rank's chunk of a whole."""
    n = len(whole) // p
    return whole[rank * n : (rank + 1) * n]


CONTRACTS = {
    "all_reduce": Contract("chunk", "in place", lambda x, r, root, op: reduced(x, op), reduces=True),
    "broadcast": Contract("chunk", "in place", lambda x, r, root, op: x[root], rooted=True),
    "reduce": Contract(
        "chunk",
        "in place",
        lambda x, r, root, op: reduced(x, op) if r == root else None,
        rooted=True,
        reduces=True,
    ),
    "all_gather": Contract("chunk", "whole", lambda x, r, root, op: np.concatenate(x)),
    "reduce_scatter": Contract(
        "whole", "chunk", lambda x, r, root, op: chunk_of(reduced(x, op), len(x), r), reduces=True
    ),
    "scatter": Contract("whole", "chunk", lambda x, r, root, op: chunk_of(x[root], len(x), r), rooted=True),
    "gather": Contract(
        "chunk", "whole", lambda x, r, root, op: np.concatenate(x) if r == root else None, rooted=True
    ),
    "all_to_all": Contract(
        "whole", "whole", lambda x, r, root, op: np.concatenate([chunk_of(each, len(x), r) for each in x])
    ),
    "barrier": Contract("nothing", "nothing", lambda x, r, root, op: None),
}


def contract_of(collective: str) -> Contract:
    """Return a collective's contract; raise ConfigError, listing what there is, for an unknown name."""
    if collective not in CONTRACTS:
        raise ConfigError(
            f"collective: must be one of {', '.join(CONTRACTS)}, got {collective!r}; choose one of these"
        )
    return CONTRACTS[collective]
