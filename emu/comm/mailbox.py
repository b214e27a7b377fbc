"""Mailboxes: short messages between two processes of one host through memory that both see.

A box holds a few slots for one direction between two processes. Its sender alone writes slots, its receiver alone
writes how many it has taken. A slot's number is written last and read first: on x86 processors other cores see stores
in the order in which they were made, so a slot whose number is there is whole. Elsewhere there are no mailboxes.
"""

from __future__ import annotations

import mmap
import os
import platform
import struct
from typing import Any

import numpy as np

SLOTS = 4
ROOM_BYTES = 64 << 20  # for all slots of a host; memory is taken only where they are used
_LINE = 64  # of the cache: what two processes write never shares one
HEADER = struct.Struct("<qqqqq")  # context, tag, bytes, address, number


class Outgoing:
    """A box's sender."""

    __slots__ = ("words", "memory", "payload", "starts", "sent")

    def __init__(self, memory: memoryview) -> None:
        self.memory, self.words, self.payload, self.starts = _parts(memory)
        self.sent = 0

    def put(self, context: int, tag: int, nbytes: int, address: int, number: int, data: Any = None) -> bool:
        """Put a message into the next slot; False if all are in use."""
        k = self.sent + 1
        words = self.words
        if k - words[0] > SLOTS:
            return False
        slot = k % SLOTS
        if data is not None:
            self.payload[slot][: len(data)] = data
        start = self.starts[slot]
        HEADER.pack_into(self.memory, start + 8, context, tag, nbytes, address, number)
        words[start >> 3] = k
        self.sent = k
        return True


class Incoming:
    """A box's receiver."""

    __slots__ = ("words", "memory", "payload", "starts", "next", "at")

    def __init__(self, memory: memoryview) -> None:
        self.memory, self.words, self.payload, self.starts = _parts(memory)
        self.next = 1
        self.at = self.starts[1] >> 3  # where the next slot's number will stand

    def there(self) -> bool:
        """Tell whether a message has come."""
        return self.words[self.at] == self.next

    def header(self) -> tuple[int, int, int, int, int]:
        """Return context, tag, bytes, address and number of the message that has come."""
        return HEADER.unpack_from(self.memory, (self.at << 3) + 8)  # type: ignore[return-value]

    def data(self) -> np.ndarray:
        """Return the slot of the message that has come."""
        return self.payload[self.next % SLOTS]

    def release(self) -> None:
        """Give the slot back."""
        self.words[0] = self.next
        self.next += 1
        self.at = self.starts[self.next % SLOTS] >> 3


def _parts(memory: memoryview) -> tuple[memoryview, memoryview, list[np.ndarray], list[int]]:
    """Return a box as bytes and as words, the slots' memory, and where each slot begins."""
    each = (len(memory) - _LINE) // SLOTS
    starts = [_LINE + slot * each for slot in range(SLOTS)]
    payload = [np.frombuffer(memory, np.uint8, each - _LINE, start + _LINE) for start in starts]
    return memory, memory.cast("q"), payload, starts


def slot_bytes(processes: int) -> int:
    """Return how much a slot holds between so many processes."""
    return min(131072, max(4096, ROOM_BYTES // (processes * processes * SLOTS) // 4096 * 4096))


def _box_bytes(processes: int) -> int:
    return _LINE + SLOTS * (_LINE + slot_bytes(processes))


def available() -> bool:
    """Tell whether processes of this host may talk through memory that both see."""
    return platform.machine().lower() in ("x86_64", "amd64") and hasattr(os, "memfd_create")


def make_room(processes: int) -> tuple[int, mmap.mmap]:
    """Make the memory for the boxes of so many processes; return its file and the memory."""
    file, length = os.memfd_create("emu-mailboxes", os.MFD_CLOEXEC), processes * processes * _box_bytes(processes)
    os.ftruncate(file, length)
    return file, mmap.mmap(file, length)


def open_room(pid: int, file: int, processes: int) -> mmap.mmap:
    """Open the memory that process `pid` has made."""
    mine = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(mine, processes * processes * _box_bytes(processes))
    finally:
        os.close(mine)


def box(room: mmap.mmap, processes: int, sender: int, receiver: int) -> memoryview:
    """Return the box between two of the processes."""
    length = _box_bytes(processes)
    start = (sender * processes + receiver) * length
    return memoryview(room)[start : start + length]
