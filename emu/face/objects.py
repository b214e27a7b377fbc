"""Pickled objects as messages, whose receiver does not know their size.

The first message holds the length and as much of the object as fits; what is left follows on a channel of its own,
by a number that only the two ranks use. It is recorded as the one message that it is to the program.
"""

from __future__ import annotations

import itertools
import pickle
import struct
from typing import Any

import numpy as np

from emu.comm.communicator import Comm, Request
from emu.comm.wire import OBJECT
from emu.trace import ANY, COLLECTIVE

HEADER = struct.Struct("<QQ")  # length, number of the rest
INLINE_BYTES = 65536 - HEADER.size
_REST_TAG = 1 << 20
_numbers = itertools.count()


class ObjectSend:
    """An object under way."""

    def __init__(self, comm: Comm, value: Any, to: int, tag: int, rendezvous: bool = False) -> None:
        data = np.frombuffer(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL), np.uint8)
        number = next(_numbers) % _REST_TAG
        head = np.empty(HEADER.size + min(len(data), INLINE_BYTES), np.uint8)
        head[: HEADER.size] = np.frombuffer(HEADER.pack(len(data), number), np.uint8)
        head[HEADER.size :] = data[:INLINE_BYTES]
        log, wire = comm.log, comm.wire
        self.kept = (head, data)
        row = log.send(comm.group[to], tag, comm.context, len(data))
        self.parts = [wire.isend(head, to, tag, log.flag, OBJECT, rendezvous)]
        if len(data) > INLINE_BYTES:
            self.parts.append(wire.isend(data[INLINE_BYTES:], to, _REST_TAG + number, COLLECTIVE))
        self.request = Request(comm, self.parts[0], log.stream, row)


class ObjectReceive:
    """An object that is waited for."""

    def __init__(self, comm: Comm, source: int, tag: int, taken: Any = None) -> None:
        log = comm.log
        self.comm, self.flag = comm, log.flag
        self.head = np.empty(HEADER.size + INLINE_BYTES, np.uint8)
        if taken is not None:
            pending = comm.wire.receive_taken(self.head, taken, OBJECT, exact=False)
            source, tag = taken.source, taken.tag
        else:
            pending = comm.wire.irecv(self.head, source, tag, log.flag, OBJECT, exact=False)
        self.at = -1 if log.muted else len(log.data)
        self.log_data = log.data
        row = log.recv(source if source == ANY else comm.group[source], tag, comm.context, 0)
        self.source = source
        self.request = Request(comm, pending, log.stream, row)
        self.rest: Any = None
        self.data: np.ndarray | None = None
        self.length = 0

    @property
    def pending(self) -> Any:
        """The part that is waited for now."""
        return self.request.pending if self.rest is None else self.rest

    def go_on(self) -> bool:
        """Take in the part that has come; tell whether the object is whole."""
        if self.rest is not None or self.data is not None:
            return True
        self.length, number = HEADER.unpack(self.head[: HEADER.size].tobytes())
        got = self.request.pending
        source, tag = (self.source, 0) if self.flag else (got.source, got.tag)
        self.source, self.tag = source, tag
        if self.at >= 0:
            whole = self.comm.log.data
            self.comm.log.data = self.log_data
            self.comm.log.fill_in(self.at, self.comm.group[source], tag, self.length)
            self.comm.log.data = whole
        self.data = np.empty(self.length, np.uint8)
        inline = min(self.length, INLINE_BYTES)
        self.data[:inline] = self.head[HEADER.size : HEADER.size + inline]
        if self.length <= INLINE_BYTES:
            return True
        self.rest = self.comm.wire.irecv(self.data[inline:], source, _REST_TAG + number, COLLECTIVE)
        return False

    def value(self) -> Any:
        """Return the object that has come."""
        assert self.data is not None
        return pickle.loads(self.data.data)


def send_object(comm: Comm, value: Any, to: int, tag: int = 0) -> ObjectSend:
    """Start to send an object."""
    return ObjectSend(comm, value, to, tag)


def wait_sent(comm: Comm, sends: list[ObjectSend]) -> None:
    """Return when all are sent."""
    comm.wire.wait([part for send in sends for part in send.parts])
    if not comm.log.muted:
        comm.record_wait([send.request for send in sends])


def receive_object(comm: Comm, source: int, tag: int = 0) -> Any:
    """Receive an object."""
    receive = ObjectReceive(comm, source, tag)
    wait_received(receive)
    return receive.value()


def wait_received(receive: ObjectReceive) -> None:
    """Return when the object is whole."""
    comm = receive.comm
    comm.wire.wait([receive.pending])
    if not receive.go_on():
        comm.wire.wait([receive.pending])
    if not comm.log.muted:
        comm.record_wait([receive.request])
