"""Recording: one rank's log while its program runs.

An operation costs one `struct.pack` and one append to a bytearray; nothing is looked up, nothing allocated.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from emu.trace import ROW, ROW_FORMAT, Op, Template

_pack = struct.Struct(ROW_FORMAT).pack
_pack_peer = struct.Struct("<ii").pack_into
_pack_size = struct.Struct("<q").pack_into
_PEER_OFFSET, _SIZE_OFFSET = 4, 16  # of columns a and b, and of n, in a row
_pack3 = struct.Struct("<" + 3 * ROW_FORMAT[1:]).pack
_COMPUTE, _ELAPSED, _SEND, _RECV, _WAIT, _COPY, _RECORD, _AWAIT, _BEGIN, _END, _CALL, _SYNC = (int(op) for op in Op)


@dataclass
class Tables:
    """What rows point into. Ranks that share a process share their tables."""

    labels: dict[str, int] = field(default_factory=dict)
    groups: dict[tuple[int, ...], int] = field(default_factory=dict)
    templates: list[Template] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)  # that a template makes
    template_ids: dict[Any, int] = field(default_factory=dict)  # call signature -> template
    template_contents: dict[Any, int] = field(default_factory=dict)
    families: dict[Any, np.ndarray] = field(default_factory=dict)  # signature without rank -> each rank's template
    one_by_one: set[str] = field(default_factory=set)  # labels whose calls can't be recorded for all ranks at once
    untemplated: dict[str, str] = field(default_factory=dict)  # label -> why its calls are recorded flat
    streams: dict[str, int] = field(default_factory=lambda: {"default": 0})

    def label(self, name: str) -> int:
        """Return the number of a label, new or known."""
        return self.labels.setdefault(name, len(self.labels))

    def template_of(self, label: str, size: int, rank: int, terms: Any) -> int | None:
        """Return the template of a call that is known: of an algorithm, in a group, with such arguments."""
        number = self.template_ids.get((label, size, rank, terms))
        if number is None and (family := self.families.get((label, size, terms))) is not None:
            number = int(family[rank]) if family[rank] >= 0 else None
        return number

    def add_template(self, signature: Any, template: Template) -> int:
        """Return the template's number; equal contents are kept once. `signature` is what it is of (None: several)."""
        lengths = None if template.lengths is None else template.lengths.digest
        content = (template.name, template.group_size, template.rows.tobytes(), lengths)
        number = self.template_contents.get(content)
        if number is None:
            number = self.template_contents[content] = len(self.templates)
            self.templates.append(template)
            self.requests.append(requests_in(template.rows))
        if signature is not None:
            self.template_ids[signature] = number
        return number


class Log:
    """One rank's rows, in program order. `stream` is where the next rows go.

    `flag` is set on messages and costs while a collective runs. While a call that is known as a template
    runs, the log is `muted`: bytes move, rows are not written again.
    """

    __slots__ = ("data", "rank", "tables", "stream", "flag", "muted", "posted", "events", "sites", "base",
                 "shipped", "spilled", "about", "inner", "signatures")  # fmt: skip

    def __init__(self, rank: int, tables: Tables | None = None) -> None:
        self.data = bytearray()
        self.rank = rank
        self.tables = tables if tables is not None else Tables()
        self.stream = 0
        self.flag = 0
        self.muted = False
        self.posted = [0] * 256  # requests made so far, a stream
        self.events = 0
        self.base = self.data  # `data` is another one while a call is recorded as a template
        self.shipped = 0  # bytes that an engine has been told
        self.inner: tuple[int, int] | None = None  # label and context of the call that is recorded as a template
        self.spilled = False  # rows of that call have been told already: it can't become one
        self.signatures: list[tuple[str, Any]] | None = None  # label and terms of each call from here on, if asked for
        self.about = ""  # what the collectives that follow are about, which ranks must agree on too
        self.sites: deque[Any] = deque(maxlen=8)  # where the latest plain messages stand in the program

    def fill_in(self, at: int, peer: int, tag: int, nbytes: int | None = None) -> None:
        """Write the peer and tag, and the size, of the receive whose row begins at byte `at`.

        A row that an engine has been told stays as it is.
        """
        if at < self.shipped:
            return
        _pack_peer(self.data, at + _PEER_OFFSET, peer, tag)
        if nbytes is not None:
            _pack_size(self.data, at + _SIZE_OFFSET, nbytes)

    def send(self, peer: int, tag: int, context: int, nbytes: int) -> int:
        """Record a send; return its request's number on the current stream."""
        stream = self.stream
        number = self.posted[stream]
        self.posted[stream] = number + 1
        if not self.muted:
            self.data += _pack(_SEND, stream, self.flag, peer, tag, context, nbytes, 0.0)
        return number

    def recv(self, peer: int, tag: int, context: int, nbytes: int) -> int:
        """Record a receive (`peer` may be ANY); return its request's number on the current stream."""
        stream = self.stream
        number = self.posted[stream]
        self.posted[stream] = number + 1
        if not self.muted:
            self.data += _pack(_RECV, stream, self.flag, peer, tag, context, nbytes, 0.0)
        return number

    def wait(self, number: int, count: int = 1) -> None:
        """Record that the current stream waits for `count` of its requests, the first being `number`."""
        if not self.muted:
            stream = self.stream
            self.data += _pack(_WAIT, stream, 0, self.posted[stream] - number, count, 0, 0, 0.0)

    def exchange(self, source: int, n_in: int, to: int, n_out: int, tag: int, context: int) -> None:
        """Record a receive, a send and the wait for both, in one go."""
        stream = self.stream
        self.posted[stream] += 2
        if not self.muted:
            flag = self.flag
            self.data += _pack3(
                _RECV, stream, flag, source, tag, context, n_in, 0.0,
                _SEND, stream, flag, to, tag, context, n_out, 0.0,
                _WAIT, stream, 0, 2, 2, 0, 0, 0.0,
            )  # fmt: skip

    def compute(self, dtype_code: int, label: int, nbytes: int, flops: float) -> None:
        """Record a kernel: its FLOPs and the bytes of device memory that it touches."""
        if not self.muted:
            self.data += _pack(_COMPUTE, self.stream, self.flag, dtype_code, label, 0, nbytes, flops)

    def elapsed(self, label: int, seconds: float) -> None:
        """Record computation by its measured duration."""
        if not self.muted:
            self.data += _pack(_ELAPSED, self.stream, self.flag, 0, label, 0, 0, seconds)

    def copy(self, direction: int, label: int, nbytes: int) -> None:
        """Record a copy between host and device, or within the device."""
        if not self.muted:
            self.data += _pack(_COPY, self.stream, self.flag, direction, label, 0, nbytes, 0.0)

    def record(self) -> int:
        """Record an event on the current stream; return its ordinal."""
        self.data += _pack(_RECORD, self.stream, 0, 0, 0, 0, 0, 0.0)
        self.events += 1
        return self.events - 1

    def await_event(self, ordinal: int) -> None:
        """Record that the current stream waits for an event of this rank."""
        self.data += _pack(_AWAIT, self.stream, 0, self.events - ordinal, 0, 0, 0, 0.0)

    def begin(self, label: int, index: int = -1, flag: int = 0, context: int = 0) -> None:
        """Open a span on the current stream."""
        if not self.muted:
            self.data += _pack(_BEGIN, self.stream, flag, label, index, context, 0, 0.0)

    def end(self) -> None:
        """Close the span that was opened last on the current stream."""
        if not self.muted:
            self.data += _pack(_END, self.stream, 0, 0, 0, 0, 0, 0.0)

    def call(self, template: int, group: int, context: int, nbytes: int) -> None:
        """Record a collective by its template."""
        self.data += _pack(_CALL, self.stream, 0, template, group, context, nbytes, 0.0)

    def sync(self) -> None:
        """Record that the rank's host waits for all of its streams."""
        self.data += _pack(_SYNC, self.stream, 0, 0, 0, 0, 0, 0.0)

    def reach(self, time_s: float) -> None:
        """Record that the current stream goes on no earlier than `time_s`, which the engine has told."""
        self.data += _pack(_SYNC, self.stream, 0, 1, 0, 0, 0, time_s)

    def ship(self) -> np.ndarray:
        """Return the rows that have not been shipped yet."""
        fresh = np.frombuffer(bytes(memoryview(self.base)[self.shipped :]), dtype=ROW)
        self.shipped = len(self.base)
        return fresh

    def rows(self) -> np.ndarray:
        """Return the rows recorded so far, as a copy."""
        return np.frombuffer(bytes(self.data), dtype=ROW)


def requests_in(rows: np.ndarray) -> int:
    """Return how many requests the rows make."""
    return int(np.count_nonzero((rows["op"] == Op.SEND) | (rows["op"] == Op.RECV)))


@lru_cache(maxsize=16)
def _sorted(group: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of a group in the order of their world ranks, and those ranks."""
    order = np.argsort(group)
    return order, np.asarray(group)[order]


def relative(rows: np.ndarray, group: Sequence[int], mine: int, stream: int) -> np.ndarray | str:
    """Return one call's rows with peers relative to position `mine` of `group`, or why that cannot be."""
    op = rows["op"]
    if (rows["stream"] != stream).any():
        return "it uses several streams"
    if (op == Op.RECORD).any() or (op == Op.AWAIT).any() or (op == Op.SYNC).any():
        return "it uses events"
    messages = (op == Op.SEND) | (op == Op.RECV)
    peers = rows["a"][messages]
    order, world = _sorted(tuple(group))
    found = np.searchsorted(world, peers).clip(max=len(group) - 1)
    if (world[found] != peers).any():
        return "it sends outside its group, or receives from any source"
    rows = rows.copy()
    rows["a"][messages] = (order[found] - mine) % len(group)
    rows["c"][messages] = 0
    rows["stream"] = 0
    return rows


__all__ = ["Log", "Tables", "relative", "requests_in"]
