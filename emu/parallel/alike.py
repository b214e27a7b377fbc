"""Dry runs of thousands of ranks: ranks that do the same record it once.

Replicas differ in whom they talk to and in nothing else. The first rank of each class runs; the others take its rows
and put their own communicators' contexts, groups, neighbours and templates in. Only a dry run in one process can do
so: there nothing depends on data.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emu.collectives import find
from emu.collectives.table import TABLE
from emu.comm.calls import group_number
from emu.comm.recording import Log
from emu.errors import ConfigError
from emu.gpu import DryArray
from emu.trace import COLLECTIVE, ROW, Op


@dataclass(frozen=True)
class _Told:
    """What the first rank of a kind did: its rows, its communicators' places, and what it called.

    `calls` are its CALL rows; call i is of `called[which[i]]`: (label, terms, context, requests that it makes).
    """

    rows: np.ndarray
    places: list[tuple[int, tuple[int, ...], int]]
    calls: np.ndarray
    called: list[tuple[str, Any, int, int]]
    which: np.ndarray
    events: int
    result: Any


def run_alike(comms: Sequence[Any], kind: Hashable, program: Callable[[], Any]) -> Any:
    """Run `program()` on the first rank of each kind; return its result on all ranks of that kind. Collective.

    `comms` are the communicators that the program uses, the first being of all ranks; each rank's stand in one order.
    The program must not ask other ranks for values.
    """
    world, log = comms[0], comms[0].log
    firsts = world.wire.exchange(kind, _firsts)
    leader = firsts[kind]
    told = world.wire.exchange(_lead(comms, program) if world.rank == leader else None)[leader]
    if world.rank != leader:
        _take(log, comms, told)
    return told.result


def _firsts(kinds: Sequence[Hashable]) -> dict[Hashable, int]:
    """Return the first rank of each kind."""
    return {kind: rank for rank, kind in reversed(list(enumerate(kinds)))}


def _lead(comms: Sequence[Any], program: Callable[[], Any]) -> _Told:
    """Run the program on this rank; return what the others of its kind need to know."""
    log = comms[0].log
    begin, events = len(log.data), log.events
    checks = [comm.checks for comm in comms]
    for comm in comms:
        comm.checks = False  # the others do not call
    log.signatures = []
    result = program()
    signatures, log.signatures = log.signatures, None
    for comm, before in zip(comms, checks, strict=True):
        comm.checks = before
    rows = np.frombuffer(bytes(log.data[begin:]), ROW)
    calls = np.flatnonzero(rows["op"] == Op.CALL)
    numbers: dict[tuple[str, Any, int, int], int] = {}
    which = [
        numbers.setdefault((*signature, context, log.tables.requests[template]), len(numbers))
        for signature, template, context in zip(
            signatures, rows["a"][calls].tolist(), rows["c"][calls].tolist(), strict=True
        )
    ]
    places = [(comm.context, comm.group, comm.rank) for comm in comms]
    return _Told(rows, places, calls, list(numbers), np.array(which, np.int64), log.events - events, result)


def _take(log: Log, comms: Sequence[Any], told: _Told) -> None:
    """Append the leader's rows as mine."""
    rows, calls, which = told.rows.copy(), told.calls, told.which
    by_context = {place[0]: comm for place, comm in zip(told.places, comms, strict=True)}
    op = rows["op"]
    mine = np.zeros((len(told.called), 4), np.int32)
    for i, (label, terms, context, _) in enumerate(told.called):
        comm = by_context[context]
        template = _template(log, comm, label, terms)
        mine[i] = template, group_number(comm), comm.context, log.tables.requests[template]
    theirs = np.array([requests for *_, requests in told.called], np.int64)
    posted = _renumber(rows, calls, theirs[which], mine[which, 3])
    rows["a"][calls], rows["b"][calls], rows["c"][calls] = mine[which, :3].T
    messages = (op == Op.SEND) | (op == Op.RECV) | ((op == Op.BEGIN) & (rows["flag"] & COLLECTIVE != 0))
    for comm, (context, members, _) in zip(comms, told.places, strict=True):
        here = np.flatnonzero(messages & (told.rows["c"] == context))
        if not len(here):
            continue
        rows["c"][here] = comm.context
        plain = here[op[here] != Op.BEGIN]
        peers = np.array([comm.group[members.index(peer)] for peer in rows["a"][plain].tolist()], np.int32)
        rows["a"][plain] = peers
    log.data += rows.tobytes()
    log.posted = [n + more for n, more in zip(log.posted, posted, strict=True)]
    log.events += told.events


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


def _template(log: Log, comm: Any, label: str, terms: tuple) -> int:
    """Return my template of a call; record it where it is not known yet."""
    found = log.tables.template_of(label, comm.size, comm.rank, terms)
    return _record(log, comm, label, terms) if found is None else found


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
