"""Dry runs of thousands of ranks: ranks that do the same record it once.

Replicas differ in whom they talk to and in nothing else. The first rank of each class runs; the others take its rows
and put their own communicators' contexts, groups, neighbours and templates in. Only a dry run in one process can do
so: there nothing depends on data.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from emu.collectives import find
from emu.collectives.table import TABLE
from emu.comm.recording import Log
from emu.errors import ConfigError
from emu.gpu import DryArray
from emu.trace import COLLECTIVE, ROW, Op


def run_alike(comms: Sequence[Any], kind: Hashable, program: Callable[[], Any]) -> Any:
    """Run `program()` on the first rank of each kind; return its result on all ranks of that kind. Collective.

    `comms` are the communicators that the program uses, the first being of all ranks; each rank's stand in one order.
    The program must not ask other ranks for values.
    """
    world, log = comms[0], comms[0].log
    kinds = world.wire.exchange(kind)
    leader = kinds.index(kind)
    told = None
    if world.rank == leader:
        begin, events = len(log.data), log.events
        checks = [comm.checks for comm in comms]
        for comm in comms:
            comm.checks = False  # the others do not call
        result = program()
        for comm, before in zip(comms, checks, strict=True):
            comm.checks = before
        told = bytes(log.data[begin:]), _places(comms), log.events - events, result
    told = world.wire.exchange(told)[leader]
    if world.rank != leader:
        _take(log, comms, *told[:3])
    return told[3]


def _places(comms: Sequence[Any]) -> list[tuple[int, tuple[int, ...], int]]:
    return [(comm.context, comm.group, comm.rank) for comm in comms]


def _take(
    log: Log, comms: Sequence[Any], data: bytes, places: list[tuple[int, tuple[int, ...], int]], events: int
) -> None:  # fmt: skip
    """Append the leader's rows as mine."""
    rows = np.frombuffer(data, ROW).copy()
    by_context = {place[0]: i for i, place in enumerate(places)}
    op = rows["op"]
    calls = np.flatnonzero(op == Op.CALL)
    told = rows["a"][calls].astype(np.int64) << 32 | rows["c"][calls].astype(np.uint32)
    kinds, which = np.unique(told, return_inverse=True)
    theirs = (kinds >> 32).tolist()
    mine = np.zeros((len(kinds), 3), np.int32)
    for i, (template, context) in enumerate(zip(theirs, kinds.astype(np.int32).tolist(), strict=True)):
        comm, place = comms[by_context[context]], places[by_context[context]]
        groups = log.tables.groups
        number = groups.setdefault(comm.group, len(groups))
        mine[i] = _template(log, comm, place[2], template), number, comm.context
    posts = [[log.tables.requests[t] for t in each] for each in (theirs, mine[:, 0].tolist())]
    posted = _renumber(rows, calls, *(np.array(each, np.int64)[which] for each in posts))
    rows["a"][calls], rows["b"][calls], rows["c"][calls] = mine[which].T
    messages = (op == Op.SEND) | (op == Op.RECV) | ((op == Op.BEGIN) & (rows["flag"] & COLLECTIVE != 0))
    for comm, (context, group, _) in zip(comms, places, strict=True):
        here = np.flatnonzero(messages & (rows["c"] == context))
        if not len(here):
            continue
        rows["c"][here] = comm.context
        plain = here[op[here] != Op.BEGIN]
        peers = np.array([comm.group[group.index(peer)] for peer in rows["a"][plain].tolist()], np.int32)
        rows["a"][plain] = peers
    log.data += rows.tobytes()
    log.posted = [n + more for n, more in zip(log.posted, posted, strict=True)]
    log.events += events


def _renumber(rows: np.ndarray, calls: np.ndarray, theirs: np.ndarray, mine: np.ndarray) -> list[int]:
    """Let waits count back over my calls, which may post other numbers of messages; return how many, a stream."""
    posts = ((rows["op"] == Op.SEND) | (rows["op"] == Op.RECV)).astype(np.int64)
    totals = [0] * 256
    for stream in np.unique(rows["stream"]).tolist():
        here = np.flatnonzero(rows["stream"] == stream)
        counts = []
        for own in (theirs, mine):
            each = posts.copy()
            each[calls] = own
            counts.append(np.concatenate([[0], np.cumsum(each[here])]))
        totals[stream] = int(counts[1][-1])
        waits = np.flatnonzero(rows["op"][here] == Op.WAIT)
        first = counts[0][waits] - rows["a"][here][waits]  # the request's number, by the leader's count
        posted_by = np.searchsorted(counts[0], first, side="right") - 1
        rows["a"][here[waits]] = counts[1][waits] - counts[1][posted_by]
    return totals


def _template(log: Log, comm: Any, leader: int, template: int) -> int:
    """Return my template of the call that is the leader's `template`; record it where it is not known yet."""
    known = log.tables.template_ids
    label, _, _, terms = _signature(log, template, comm.size, leader)
    found = known.get((label, comm.size, comm.rank, terms))
    if found is None:
        found = _record(log, comm, label, terms)
    return found


def _signature(log: Log, template: int, size: int, rank: int) -> Any:
    """Return what a template was recorded for, by a rank of a communicator's size."""
    for key, number in log.tables.template_ids.items():
        if number == template and key[1] == size and key[2] == rank:
            return key
    raise ConfigError(f"dry run: template {template} of rank {rank} of {size} is unknown")


def _record(log: Log, comm: Any, label: str, terms: tuple) -> int:
    """Make the call once, into a log that is thrown away, for its template."""
    before = log.data, list(log.posted), log.stream, comm.checks, comm.calls_begun
    log.data, log.stream, comm.checks = bytearray(), 0, False
    try:
        _function(label)(comm, **{name: _argument(value) for name, value in terms})
        row = np.frombuffer(bytes(log.data), ROW)[-1]
    finally:
        log.data, log.posted, log.stream, comm.checks, comm.calls_begun = before
    if row["op"] != Op.CALL:
        raise ConfigError(f"dry run: {label} has no template; use another algorithm")
    return int(row["a"])


def _argument(value: Any) -> Any:
    """Return an array of the size and dtype that a signature names, or the plain argument itself."""
    if isinstance(value, str) and " " in value:
        size, dtype = value.split(" ")
        return DryArray.of((int(size),), _dtype(dtype))
    return value


def _dtype(name: str) -> Any:
    from emu.gpu.arrays import dtype_of

    return dtype_of(name)


def _function(label: str) -> Any:
    for operation in sorted(TABLE, key=len, reverse=True):  # all_gather before gather
        if label.endswith(f"_{operation}"):
            return find(operation, label[: -len(operation) - 1])
    raise ConfigError(f"dry run: collective {label} is unknown")
