"""The reductions: which there are, and what an average is made of."""

from typing import Any

from emu.collectives.protocol import Peers
from emu.errors import ConfigError

OPS = ("sum", "prod", "max", "min", "avg")
BITWISE = ("land", "lor", "lxor", "band", "bor", "bxor")  # MPI's others, for whole numbers


def local_op(op: str) -> str:
    """Name the local reduction of `op`; an average is a sum that `finish` divides.

    Raises ConfigError, listing what there is, for an unknown name.
    """
    if op not in OPS and op not in BITWISE:
        raise ConfigError(f"op: must be one of {', '.join(OPS)}, got {op!r}; choose one of these")
    return "sum" if op == "avg" else op


def finish(comm: Peers, x: Any, op: str, p: int) -> None:
    """Turn the sum over p ranks in `x` into what `op` asked for. An average of integers rounds down."""
    if op == "avg" and p > 1:
        comm.divide(x, p)
