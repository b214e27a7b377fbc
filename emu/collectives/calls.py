"""The collectives by their plain names, with the algorithm as an argument.

`algorithm="auto"` takes what the formulas call fastest for the size, the number of ranks and the cluster.
`accumulate="float32"` sums fp16 and bf16 in fp32: values travel as fp32 then, twice the bytes, and are
rounded once, at the end. Further keywords go to the algorithm.
"""

from collections.abc import Callable, Sequence
from typing import Any

from emu.collectives.choose import algorithm_named, chosen
from emu.errors import ConfigError

HALVES = ("float16", "bfloat16")


def all_reduce(
    comm: Any, x: Any, op: str = "sum", algorithm: str = "auto", accumulate: str | None = None, **options: Any
) -> None:
    """Make every rank's x the sum (prod, max, min, avg) of all. In place."""
    wide = _wide(x, accumulate)
    function = chosen(comm, "all_reduce", algorithm, _nbytes(x) * (2 if wide else 1))
    if wide:
        _in_float32(comm, x, lambda y: function(comm, y, op, **options))
    else:
        function(comm, x, op, **options)


def reduce(
    comm: Any,
    x: Any,
    root: int = 0,
    op: str = "sum",
    algorithm: str = "auto",
    accumulate: str | None = None,
    **options: Any,
) -> None:
    """Make the root's x the sum of all; other ranks' x stays as it was."""
    wide = _wide(x, accumulate)
    function = chosen(comm, "reduce", algorithm, _nbytes(x) * (2 if wide else 1))
    if wide:
        _in_float32(comm, x, lambda y: function(comm, y, root, op, **options), back=comm.rank == root)
    else:
        function(comm, x, root, op, **options)


def reduce_scatter(
    comm: Any,
    x: Any,
    out: Any,
    op: str = "sum",
    counts: Sequence[int] | None = None,
    algorithm: str = "auto",
    accumulate: str | None = None,
) -> None:
    """Leave chunk r of the sum of everybody's x in rank r's out."""
    wide = _wide(x, accumulate)
    function = chosen(comm, "reduce_scatter", algorithm, _nbytes(x) * (2 if wide else 1))
    if not wide:
        function(comm, x, out, op, counts)
        return
    total = comm.empty(out.size, "float32", like=x)
    _in_float32(comm, x, lambda y: function(comm, y, total, op, counts), back=False)
    comm.copy(out, total)


def broadcast(comm: Any, x: Any, root: int = 0, algorithm: str = "auto", **options: Any) -> None:
    """Make every rank's x the root's. In place."""
    chosen(comm, "broadcast", algorithm, _nbytes(x))(comm, x, root, **options)


def all_gather(
    comm: Any, x: Any, out: Any, counts: Sequence[int] | None = None, algorithm: str = "auto"
) -> None:
    """Leave the chunks of all ranks in every rank's out, in rank order."""
    chosen(comm, "all_gather", algorithm, _nbytes(out))(comm, x, out, counts)


def scatter(
    comm: Any, x: Any, out: Any, root: int = 0, counts: Sequence[int] | None = None, algorithm: str = "auto"
) -> None:
    """Leave chunk r of the root's x in rank r's out."""
    if counts is None:
        chosen(comm, "scatter", algorithm, _nbytes(out) * comm.size)(comm, x, out, root)
    else:
        _uneven("scatter_v", algorithm)(comm, x, out, counts, root)


def gather(
    comm: Any,
    x: Any,
    out: Any = None,
    root: int = 0,
    counts: Sequence[int] | None = None,
    algorithm: str = "auto",
) -> None:
    """Leave the chunks of all ranks in the root's out, in rank order."""
    if counts is None:
        chosen(comm, "gather", algorithm, _nbytes(x) * comm.size)(comm, x, out, root)
    else:
        _uneven("gather_v", algorithm)(comm, x, out, counts, root)


def all_to_all(
    comm: Any,
    x: Any,
    out: Any,
    send_counts: Sequence[int] | None = None,
    receive_counts: Sequence[int] | None = None,
    algorithm: str = "auto",
) -> None:
    """Send chunk q of x to rank q, which keeps it as chunk r of its out."""
    if send_counts is None and receive_counts is None:
        chosen(comm, "all_to_all", algorithm, _nbytes(x))(comm, x, out)
    elif send_counts is None or receive_counts is None:
        raise ConfigError("all_to_all: send_counts and receive_counts go together, got one of them; give both")
    else:
        _uneven("all_to_all_v", algorithm)(comm, x, out, send_counts, receive_counts)


def barrier(comm: Any, algorithm: str = "auto") -> None:
    """Return when every rank has called."""
    chosen(comm, "barrier", algorithm, 0)(comm)


def find(collective: str, algorithm: str) -> Callable[..., Any]:
    """Return the function of an algorithm, or for "auto" the one that chooses at each call.

    Raises ConfigError, listing what there is, if there is none.
    """
    plain: dict[str, Callable[..., Any]] = {
        "all_reduce": all_reduce,
        "broadcast": broadcast,
        "reduce": reduce,
        "all_gather": all_gather,
        "reduce_scatter": reduce_scatter,
        "scatter": scatter,
        "gather": gather,
        "all_to_all": all_to_all,
        "barrier": barrier,
    }
    return plain[collective] if algorithm == "auto" and collective in plain else algorithm_named(collective, algorithm)


def _uneven(collective: str, algorithm: str) -> Callable[..., Any]:
    return algorithm_named(collective, "linear" if algorithm == "auto" else algorithm)


def _nbytes(x: Any) -> int:
    try:
        return x.nbytes
    except AttributeError:
        raise ConfigError(f"collective: an array is expected, got {type(x).__name__}") from None


def _wide(x: Any, accumulate: str | None) -> bool:
    if accumulate not in (None, "float32"):
        raise ConfigError(f"accumulate: must be 'float32' or None, got {accumulate!r}; choose one of these")
    return accumulate is not None and x.dtype.name in HALVES


def _in_float32(comm: Any, x: Any, call: Callable[[Any], None], back: bool = True) -> None:
    wide = comm.empty(x.size, "float32", like=x)
    comm.copy(wide, x)
    call(wide)
    if back:
        comm.copy(x, wide)
