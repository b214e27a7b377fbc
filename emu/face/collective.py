"""mpi4py's buffer collectives, each a call of one of the hand-written algorithms.

Every function takes the communicator to run on first, so that the blocking, non-blocking and persistent variants
are the same code. Nothing here knows an algorithm: `auto` chooses by size, ranks and cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from emu.comm.communicator import Comm
from emu.errors import ConfigError
from emu.face.buffers import IN_PLACE, Buffer, blocks_of, buffer_of
from emu.face.ops import Op
from emu.face.scans import (
    chain_exclusive_scan,
    chain_scan,
    direct_gather_v,
    direct_scatter_v,
    in_order_reduce,
)


def barrier(comm: Comm) -> None:
    """Return when every rank has called."""
    _named("barrier")(comm)


def bcast(comm: Comm, buf: Any, root: int = 0) -> None:
    """Make every rank's buffer the root's."""
    _check_root(comm, "Bcast", root)
    buffer = buffer_of(buf, "Bcast")
    _named("broadcast")(comm, buffer.x, root)
    if comm.rank != root:
        buffer.unpack()


def scatter(comm: Comm, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
    """Leave block r of the root's buffer in rank r's."""
    _check_root(comm, "Scatter", root)
    if comm.rank != root:
        out = buffer_of(recvbuf, "Scatter recvbuf")
        _named("scatter")(comm, None, out.x, root)
        out.unpack()
        return
    blocks = blocks_of(sendbuf, comm.size, "Scatter sendbuf")
    mine = recvbuf is IN_PLACE
    out = blocks.block(root) if mine else buffer_of(recvbuf, "Scatter recvbuf")
    x = blocks.whole().x
    _fits("Scatter", x.size, comm.size * out.x.size)
    _named("scatter")(comm, x, out.x, root)
    out.unpack()


def scatterv(comm: Comm, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
    """Leave block r of the root's buffer, of counts[r] items, in rank r's."""
    _check_root(comm, "Scatterv", root)
    mine = recvbuf is IN_PLACE
    out = None if mine else buffer_of(recvbuf, "Scatterv recvbuf")
    if comm.rank != root:
        assert out is not None
        direct_scatter_v(comm, None, out.x, None, root)
    else:
        blocks = blocks_of(sendbuf, comm.size, "Scatterv sendbuf")
        counts = [n * blocks.datatype.elements for n in blocks.counts]
        if out is not None:
            _enough("Scatterv", out.x.size, counts[root])
        into = None if out is None else out.x[: counts[root]]
        direct_scatter_v(comm, blocks.whole().x, into, counts, root)
    if out is not None:
        out.unpack()


def gather(comm: Comm, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
    """Leave every rank's buffer in the root's, in rank order."""
    _check_root(comm, "Gather", root)
    if comm.rank != root:
        _named("gather")(comm, buffer_of(sendbuf, "Gather sendbuf").x, None, root)
        return
    blocks = blocks_of(recvbuf, comm.size, "Gather recvbuf")
    out = blocks.whole()
    x = blocks.block(root).x.copy() if sendbuf is IN_PLACE else buffer_of(sendbuf, "Gather sendbuf").x
    _fits("Gather", out.x.size, comm.size * x.size)
    _named("gather")(comm, x, out.x, root)
    out.unpack()


def gatherv(comm: Comm, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
    """Leave every rank's buffer in the root's, rank r's of counts[r] items where displs[r] says."""
    _check_root(comm, "Gatherv", root)
    mine = sendbuf is IN_PLACE
    x = None if mine else buffer_of(sendbuf, "Gatherv sendbuf").x
    if comm.rank != root:
        direct_gather_v(comm, x, None, None, root)
        return
    blocks = blocks_of(recvbuf, comm.size, "Gatherv recvbuf")
    out = blocks.whole()
    counts = [n * blocks.datatype.elements for n in blocks.counts]
    if x is not None:
        _fits("Gatherv", x.size, counts[root])
    direct_gather_v(comm, x, out.x, counts, root)
    out.unpack()


def allgather(comm: Comm, sendbuf: Any, recvbuf: Any) -> None:
    """Leave every rank's buffer in everybody's, in rank order."""
    out = blocks_of(recvbuf, comm.size, "Allgather recvbuf")
    whole = out.whole()
    x = out.block(comm.rank).x if sendbuf is IN_PLACE else buffer_of(sendbuf, "Allgather sendbuf").x
    _fits("Allgather", whole.x.size, comm.size * x.size)
    _named("all_gather")(comm, x, whole.x)
    whole.unpack()


def allgatherv(comm: Comm, sendbuf: Any, recvbuf: Any) -> None:
    """Leave every rank's buffer in everybody's, rank r's of counts[r] items where displs[r] says."""
    out = blocks_of(recvbuf, comm.size, "Allgatherv recvbuf")
    whole = out.whole()
    counts = [n * out.datatype.elements for n in out.counts]
    x = out.block(comm.rank).x if sendbuf is IN_PLACE else buffer_of(sendbuf, "Allgatherv sendbuf").x
    _fits("Allgatherv", x.size, counts[comm.rank])
    _named("all_gather")(comm, x, whole.x, counts)
    whole.unpack()


def alltoall(comm: Comm, sendbuf: Any, recvbuf: Any) -> None:
    """Send block q to rank q, which keeps it as its block r."""
    out = blocks_of(recvbuf, comm.size, "Alltoall recvbuf").whole()
    x = out.x.copy() if sendbuf is IN_PLACE else blocks_of(sendbuf, comm.size, "Alltoall sendbuf").whole().x
    _fits("Alltoall", x.size, out.x.size)
    _named("all_to_all")(comm, x, out.x)
    out.unpack()


def alltoallv(comm: Comm, sendbuf: Any, recvbuf: Any) -> None:
    """Send block q, of counts[q] items, to rank q, which keeps it as its block r."""
    takes = blocks_of(recvbuf, comm.size, "Alltoallv recvbuf")
    out = takes.whole()
    gives = takes if sendbuf is IN_PLACE else blocks_of(sendbuf, comm.size, "Alltoallv sendbuf")
    x = out.x.copy() if sendbuf is IN_PLACE else gives.whole().x
    counts = [[n * each.datatype.elements for n in each.counts] for each in (gives, takes)]
    _named("all_to_all")(comm, x, out.x, counts[0], counts[1])
    out.unpack()


def reduce(comm: Comm, sendbuf: Any, recvbuf: Any, op: Op, root: int = 0) -> None:
    """Leave the reduction of all buffers in the root's recvbuf."""
    _check_root(comm, "Reduce", root)
    at_root = comm.rank == root
    out = buffer_of(recvbuf, "Reduce recvbuf") if at_root else None
    x = _contribution("Reduce", sendbuf, out)
    op.check(x.x.dtype)
    if op.word is None:
        in_order_reduce(comm, x.x, out.x if out else None, op, x.datatype, root)
    elif out is not None:
        _named("reduce")(comm, out.x, root, op.word)
    else:
        _named("reduce")(comm, x.x.copy(), root, op.word)
    if out is not None:
        out.unpack()


def allreduce(comm: Comm, sendbuf: Any, recvbuf: Any, op: Op) -> None:
    """Leave the reduction of all buffers in everybody's recvbuf."""
    out = buffer_of(recvbuf, "Allreduce recvbuf")
    x = _contribution("Allreduce", sendbuf, out)
    op.check(x.x.dtype)
    if op.word is None:
        in_order_reduce(comm, x.x, out.x, op, x.datatype, 0)
        _named("broadcast")(comm, out.x, 0)
    else:
        _named("all_reduce")(comm, out.x, op.word)
    out.unpack()


def reduce_scatter_block(comm: Comm, sendbuf: Any, recvbuf: Any, op: Op) -> None:
    """Leave block r of the reduction in rank r's recvbuf."""
    _reduce_scatter(comm, "Reduce_scatter_block", sendbuf, recvbuf, None, op)


def reduce_scatter(
    comm: Comm, sendbuf: Any, recvbuf: Any, op: Op, recvcounts: Sequence[int] | None = None
) -> None:
    """Leave block r, of recvcounts[r] items, of the reduction in rank r's recvbuf."""
    if recvcounts is None and comm.size > 1 and sendbuf is not IN_PLACE:
        recvcounts = [int(n) for n in comm.wire.exchange(buffer_of(recvbuf, "Reduce_scatter recvbuf").x.size)]
    _reduce_scatter(comm, "Reduce_scatter", sendbuf, recvbuf, recvcounts, op)


def scan(comm: Comm, sendbuf: Any, recvbuf: Any, op: Op) -> None:
    """Leave the reduction of ranks 0 to r in rank r's recvbuf."""
    out = buffer_of(recvbuf, "Scan recvbuf")
    x = _contribution("Scan", sendbuf, out)
    chain_scan(comm, out.x, _word("Scan", op, x))
    out.unpack()


def exscan(comm: Comm, sendbuf: Any, recvbuf: Any, op: Op) -> None:
    """Leave the reduction of ranks 0 to r-1 in rank r's recvbuf; rank 0's stays as it was."""
    out = buffer_of(recvbuf, "Exscan recvbuf")
    x = Buffer(out.x.copy(), out.datatype) if sendbuf is IN_PLACE else buffer_of(sendbuf, "Exscan sendbuf")
    _fits("Exscan", x.x.size, out.x.size)
    chain_exclusive_scan(comm, x.x, out.x, _word("Exscan", op, x))
    if comm.rank > 0:
        out.unpack()


def _named(name: str) -> Callable[..., None]:
    import emu.collectives.calls as calls

    return getattr(calls, name)


def _contribution(where: str, sendbuf: Any, out: Buffer | None) -> Buffer:
    """Return what this rank gives; `out`, where there is one, begins with a copy of it."""
    if sendbuf is IN_PLACE:
        if out is None:
            raise ConfigError(f"{where}: IN_PLACE is for ranks that receive, got it on another one; give a buffer")
        return Buffer(out.x.copy(), out.datatype)
    x = buffer_of(sendbuf, f"{where} sendbuf")
    if out is not None:
        if x.x.dtype != out.x.dtype:
            raise ConfigError(f"{where}: both buffers must have one dtype, got {x.x.dtype} and {out.x.dtype}")
        _enough(where, out.x.size, x.x.size)
        if out.x.size > x.x.size:
            out.x = out.x[: x.x.size]
        out.x[...] = x.x
    return x


def _reduce_scatter(comm: Comm, where: str, sendbuf: Any, recvbuf: Any, counts: Any, op: Op) -> None:
    out = buffer_of(recvbuf, f"{where} recvbuf")
    x = Buffer(out.x.copy(), out.datatype) if sendbuf is IN_PLACE else buffer_of(sendbuf, f"{where} sendbuf")
    word = _word(where, op, x)
    if counts is None and x.x.size % comm.size:
        raise ConfigError(f"{where}: a multiple of {comm.size} items is expected, got {x.x.size}; give recvcounts")
    mine = x.x.size // comm.size if counts is None else int(counts[comm.rank])
    _enough(where, out.x.size, mine)
    counts = None if counts is None else [int(n) for n in counts]
    _named("reduce_scatter")(comm, x.x.copy(), out.x[:mine], word, counts)
    out.unpack(mine * out.x.itemsize)


def _word(where: str, op: Op, x: Buffer) -> str:
    op.check(x.x.dtype)
    if op.word is None:
        raise ConfigError(f"{where}: MPI.{op.name} is not supported here by emu; use Reduce or Allreduce with it")
    return op.word


def _check_root(comm: Comm, where: str, root: int) -> None:
    if not 0 <= root < comm.size:
        raise ConfigError(f"{where}: a root from 0 to {comm.size - 1} is expected, got {root}")


def _fits(where: str, got: int, expected: int) -> None:
    if got != expected:
        raise ConfigError(f"{where}: buffers that fit are expected, got {got} elements where {expected} belong")


def _enough(where: str, there: int, needed: int) -> None:
    if there < needed:
        raise ConfigError(f"{where}: a receive buffer of at least {needed} elements is expected, got {there}")


