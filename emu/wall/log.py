"""A log under the wall clock: what it records it also says to the referee, and its stream waits as long as that takes.

Messages are said by the wire, which knows them better; see `wire`.
"""

from __future__ import annotations

import struct
import threading
from typing import Any

from emu.comm.recording import Log, Tables
from emu.trace import ROW_FORMAT, Op, Template
from emu.wall import frames as F
from emu.wall.seat import Seat

_pack = struct.Struct(ROW_FORMAT).pack
_COMPUTE = int(Op.COMPUTE)


class SharedTables(Tables):
    """Tables that several threads add to."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def label(self, name: str) -> int:
        """Return the number of a label, new or known."""
        with self._lock:
            return super().label(name)

    def add_template(self, signature: Any, template: Template) -> int:
        """Return the template's number; equal contents are kept once."""
        with self._lock:
            return super().add_template(signature, template)

    def __reduce__(self) -> Any:
        return _plain_tables, (dict(self.__dict__, _lock=None),)


def _plain_tables(fields: dict[str, Any]) -> Tables:
    tables = Tables()
    tables.__dict__.update({name: value for name, value in fields.items() if name != "_lock"})
    return tables


class WallLog(Log):
    """One stream's log. The host's is the rank's whole log: other streams write into gaps that it leaves for them."""

    __slots__ = ("seat", "free_sums", "gaps", "given", "pieces", "called")

    def __init__(self, rank: int, tables: Tables, seat: Seat, free_sums: bool) -> None:
        super().__init__(rank, tables)
        self.seat = seat
        self.stream = seat.stream
        self.free_sums = free_sums  # the sums of collectives take no emulated time
        self.gaps: list[tuple[int, WallLog, int]] = []  # where another stream's piece goes: my byte, its log, which
        self.called = False  # the latest collective stands in the log as one row
        self.given = 0  # pieces of work that this stream was given
        self.pieces: list[int] = []  # where each piece of work on this stream began in its log

    def compute(self, dtype_code: int, label: int, nbytes: int, flops: float) -> None:
        """Record a kernel; the next operation of this stream waits until it is done."""
        super().compute(dtype_code, label, nbytes, flops)
        if self.flag and self.free_sums:
            self.seat.did(_COMPUTE)
        else:
            row = _pack(_COMPUTE, self.seat.stream, self.flag, dtype_code, label, 0, nbytes, flops)
            self._take_time(_COMPUTE, row)

    def elapsed(self, label: int, seconds: float) -> None:
        """Record computation of a given time."""
        self.measured(label, seconds, self.seat.stamp())

    def measured(self, label: int, seconds: float, began: float) -> None:
        """Record computation that has been done since `began` of the referee's clock."""
        super().elapsed(label, seconds)
        row = _pack(Op.ELAPSED, self.seat.stream, self.flag, 0, label, 0, 0, seconds)
        self._take_time(int(Op.ELAPSED), row, began)

    def copy(self, direction: int, label: int, nbytes: int) -> None:
        """Record a copy; the next operation of this stream waits until it is done."""
        super().copy(direction, label, nbytes)
        self._take_time(int(Op.COPY), _pack(Op.COPY, self.seat.stream, self.flag, direction, label, 0, nbytes, 0.0))

    def record(self) -> int:
        """Record an event; it happens when this stream has done all before it."""
        event = super().record()
        self.happen(event)
        return event

    def await_event(self, ordinal: int) -> None:
        """Record the wait for an event, and wait for it."""
        super().await_event(ordinal)
        self.wait_for(ordinal)

    def wait(self, number: int, count: int = 1) -> None:
        """Record the wait for requests; the wire has waited."""
        super().wait(number, count)
        self.seat.did(int(Op.WAIT))

    def exchange(self, source: int, n_in: int, to: int, n_out: int, tag: int, context: int) -> None:
        """Record a receive, a send and the wait for both, in one go."""
        super().exchange(source, n_in, to, n_out, tag, context)
        self.seat.did(int(Op.WAIT))

    def call(self, template: int, group: int, context: int, nbytes: int) -> None:
        """Record a collective by its template."""
        super().call(template, group, context, nbytes)
        self.called = True

    def happen(self, event: int) -> None:
        """Let an event happen when this stream has done all before it; nothing is recorded."""
        self.seat.say(F.RECORD, number=event)
        self.seat.flush()

    def wait_for(self, event: int) -> None:
        """Wait for an event; nothing is recorded."""
        seat = self.seat
        seat.settle()
        seat.say(F.AWAIT, seat.stamp(), number=event)
        seat.ask()
        seat.settle()
        if event >= 0:
            self.seat.did(int(Op.AWAIT))

    def gap(self, other: WallLog) -> None:
        """Leave a gap for the next piece of work that another stream is given."""
        self.gaps.append((len(self.data), other, other.given))
        other.given += 1

    def close_gaps(self) -> None:
        """Fill the gaps with what the other streams recorded; they must be done."""
        whole, done = bytearray(), 0
        for at, log, number in self.gaps:
            whole += self.data[done:at]
            done = at
            ends = [*log.pieces[1:], len(log.data)]
            whole += log.data[log.pieces[number] : ends[number]]
        self.data = whole + self.data[done:]
        self.gaps = []

    def _take_time(self, op: int, row: bytes, came: float = 0.0) -> None:
        """Say what takes time. Where its program came to it (`came`, default: now) later than it should, time stands
        still; not so inside a collective, of which the program sees the end alone.
        """
        seat = self.seat
        seat.settle()
        seat.say_rows(row, 0.0 if self.flag else came or seat.stamp())
        seat.ask(goes_on=op)


__all__ = ["SharedTables", "WallLog"]
