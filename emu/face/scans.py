"""Collectives that only the mpi4py face needs: scans, folds of operations of the user's, blocks known to one side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from emu.comm.calls import collective
from emu.comm.communicator import Comm, dtype_code
from emu.face.datatypes import Datatype
from emu.face.ops import Op


def cuts_of(counts: Sequence[int]) -> list[int]:
    """Return where blocks of these lengths begin, and where the last one ends."""
    return [0, *accumulate(counts)]


@collective("scan", "chain")
def chain_scan(comm: Comm, x: Any, op: str) -> None:
    """Make x the reduction of the ranks up to mine: take what comes from the left, add mine, pass it on.

    Cost: (p-1)(α + n/B + γn); p-1 messages.
    Source: Open MPI coll/base, linear scan.
    """
    if comm.rank > 0:
        received = comm.empty_like(x)
        comm.waitall([comm.irecv(received, comm.rank - 1)])
        comm.reduce(op, x, received, received_first=True)
    if comm.rank + 1 < comm.size:
        comm.waitall([comm.isend(x, comm.rank + 1)])


@collective("exclusive_scan", "chain")
def chain_exclusive_scan(comm: Comm, x: Any, out: Any, op: str) -> None:
    """Make out the reduction of the ranks before mine; rank 0's out stays as it was.

    Cost: (p-1)(α + n/B + γn); p-1 messages.
    Source: Open MPI coll/base, linear exscan.
    """
    if comm.rank > 0:
        comm.waitall([comm.irecv(out, comm.rank - 1)])
    if comm.rank + 1 < comm.size:
        passed = comm.empty_like(x)
        comm.copy(passed, x)
        if comm.rank > 0:
            comm.reduce(op, passed, out, received_first=True)
        comm.waitall([comm.isend(passed, comm.rank + 1)])


@collective("scatter_v", "direct", agree=("root",))
def direct_scatter_v(comm: Comm, x: Any, out: Any, counts: Sequence[int] | None, root: int) -> None:
    """Send each rank its block, whose size only the root and that rank know.

    Cost: α + (n - own)/B; p-1 messages.
    Source: Open MPI coll/basic, linear.
    """
    if comm.rank != root:
        comm.waitall([comm.irecv(out, root)])
        return
    assert counts is not None
    cut = cuts_of(counts)
    sends = [comm.isend(x[cut[q] : cut[q + 1]], q) for q in range(comm.size) if q != root]
    if out is not None:
        comm.copy(out, x[cut[root] : cut[root + 1]])
    comm.waitall(sends)


@collective("gather_v", "direct", agree=("root",))
def direct_gather_v(comm: Comm, x: Any, out: Any, counts: Sequence[int] | None, root: int) -> None:
    """Receive each rank's block, whose size only the root and that rank know.

    Cost: α + (n - own)/B; p-1 messages.
    Source: Open MPI coll/basic, linear.
    """
    if comm.rank != root:
        comm.waitall([comm.isend(x, root)])
        return
    assert counts is not None
    cut = cuts_of(counts)
    receives = [comm.irecv(out[cut[q] : cut[q + 1]], q) for q in range(comm.size) if q != root]
    if x is not None:
        comm.copy(out[cut[root] : cut[root + 1]], x)
    comm.waitall(receives)


@collective("reduce", "in_order", agree=("x", "root"))
def in_order_reduce(comm: Comm, x: Any, total: Any, op: Op, datatype: Datatype, root: int) -> None:
    """Gather everybody's x at the root, which folds them in rank order: for operations of the user's.

    Cost: α + (p-1)(n/B + γn); p-1 messages.
    Source: MPI 4.0, 6.9.1: the canonical order of evaluation.
    """
    if comm.rank != root:
        comm.waitall([comm.isend(x, root)])
        return
    parts = [x if q == root else comm.empty_like(x) for q in range(comm.size)]
    comm.waitall([comm.irecv(part, q) for q, part in enumerate(parts) if q != root])
    comm.copy(total, parts[-1])
    for part in parts[-2::-1]:
        op.fold(part, total, datatype)
        comm.log.compute(dtype_code(x), comm.log.tables.label("reduce"), 3 * x.nbytes, float(x.size))
