"""What ranks and the referee say to each other: fixed headers, then a payload.

A rank has one connection for each of its streams; what stands on it is in the stream's own order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

# From a stream to the referee.
HELLO, ENTER, ROWS, ASK, RECORD, AWAIT, JOB, START, DONE, EXCHANGE, BYE, FAILED, CLOCK_ASK, LATE, LOOK = range(15)
# From the referee to a stream.
ANSWER, ERROR, CLOCK = range(3)

OWN_UNIT = 1e15  # LATE tells a message's own time in so many parts of a second, and in `stamp` how late it was

SAID = struct.Struct("<BBHIdq")  # kind, stream, -, payload bytes, stamp, number
TOLD = struct.Struct("<BBHIddddq")  # kind, -, -, payload bytes, time_s, origin_s, dilation, stood_still_s, number


@dataclass(frozen=True, slots=True)
class Told:
    """One thing the referee tells a stream: its time, and the pace from now on.

    Emulated time t stands for the moment `origin_s + dilation * t` of the host's clock; the origin has moved by
    `stood_still_s` because emulated time had to wait for hosts.
    """

    kind: int
    time_s: float = 0.0
    origin_s: float = 0.0
    dilation: float = 1.0
    stood_still_s: float = 0.0
    number: int = 0
    payload: bytes = b""

    def frame(self) -> bytes:
        """Return it as bytes."""
        head = TOLD.pack(
            self.kind, 0, 0, len(self.payload), self.time_s, self.origin_s, self.dilation, self.stood_still_s,
            self.number,
        )  # fmt: skip
        return head + self.payload


@dataclass(frozen=True, slots=True)
class Said:
    """One thing a stream says. `stamp` is the host's time when the program did it; 0 where it does not count."""

    kind: int
    stream: int
    stamp: float
    number: int
    payload: bytes


def said(kind: int, stream: int = 0, stamp: float = 0.0, number: int = 0, payload: bytes = b"") -> bytes:
    """Return one frame of a stream."""
    return SAID.pack(kind, stream, 0, len(payload), stamp, number) + payload


def take_said(buffer: bytearray) -> list[Said]:
    """Take all whole frames of a stream off the front of `buffer`."""
    return [
        Said(kind, stream, stamp, number, payload)
        for (kind, stream, _, _, stamp, number), payload in _take(buffer, SAID)
    ]


def take_told(buffer: bytearray) -> list[Told]:
    """Take all whole frames of the referee off the front of `buffer`."""
    found = _take(buffer, TOLD)
    return [Told(f[0], f[4], f[5], f[6], f[7], f[8], payload) for f, payload in found]


def _take(buffer: bytearray, header: struct.Struct) -> list[tuple[tuple, bytes]]:
    found, at, size = [], 0, header.size
    while len(buffer) - at >= size:
        fields = header.unpack_from(buffer, at)
        end = at + size + fields[3]
        if len(buffer) < end:
            break
        found.append((fields, bytes(buffer[at + size : end])))
        at = end
    del buffer[:at]
    return found
