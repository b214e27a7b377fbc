"""What ranks and the referee say to each other: fixed headers, then a payload.

A rank has one connection for each of its streams; what stands on it is in the stream's own order.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

# From a stream to the referee.
HELLO, ENTER, ROWS, ASK, RECORD, AWAIT, JOB, START, DONE, EXCHANGE, BYE, FAILED, CLOCK_ASK = range(13)
# From the referee to a stream.
ANSWER, ERROR, CLOCK = range(3)

SAID = struct.Struct("<BBHIdq")  # kind, stream, -, payload bytes, stamp, number
TOLD = struct.Struct("<BBHIdddq")  # kind, -, -, payload bytes, time_s, origin_s, stood_still_s, number


@dataclass(frozen=True, slots=True)
class Told:
    """One thing the referee tells a stream: its time, the host's time of emulated time 0 from now on, and by how much
    that has moved so far."""

    kind: int
    time_s: float
    origin_s: float
    stood_still_s: float
    number: int
    payload: bytes


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


def told(
    kind: int, time_s: float = 0.0, origin_s: float = 0.0, stood_still_s: float = 0.0, number: int = 0,
    payload: bytes = b"",
) -> bytes:  # fmt: skip
    """Return one frame of the referee."""
    return TOLD.pack(kind, 0, 0, len(payload), time_s, origin_s, stood_still_s, number) + payload


def take_said(buffer: bytearray) -> list[Said]:
    """Take all whole frames of a stream off the front of `buffer`."""
    return [
        Said(kind, stream, stamp, number, payload)
        for (kind, stream, _, _, stamp, number), payload in _take(buffer, SAID)
    ]


def take_told(buffer: bytearray) -> list[Told]:
    """Take all whole frames of the referee off the front of `buffer`."""
    return [
        Told(kind, time_s, origin_s, stood_still_s, number, payload)
        for (kind, _, _, _, time_s, origin_s, stood_still_s, number), payload in _take(buffer, TOLD)
    ]


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
