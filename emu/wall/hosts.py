"""Several hosts: where the referee can be reached, and how far two hosts' clocks are apart."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass

from emu.errors import RankError

LOOPBACK = "127.0.0.1"
REACH_S = 3.0  # how long an address may take to answer
_BACKLOG = 1024
ROUNDS = 24  # round trips to the referee; the shortest one tells most


@dataclass(frozen=True)
class Clock:
    """By how much the referee's clock is ahead of this host's, give or take `error_s`."""

    ahead_s: float = 0.0
    error_s: float = 0.0


def place() -> tuple[str, ...]:
    """Return what two processes have in common exactly if they reach each other at the loopback address."""
    found = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/net", "/proc/self/ns/time"):
        try:
            found.append(os.readlink(path) if "/ns/" in path else open(path).read().strip())
        except OSError:
            continue
    return tuple(found)


def addresses() -> tuple[str, ...]:
    """Return this host's addresses (IPv4), the one that its name stands for first."""
    found: dict[str, None] = {}
    try:
        for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET):
            found[str(info[4][0])] = None
    except OSError:
        pass
    found |= dict.fromkeys(_interfaces())
    return tuple(address for address in found if not address.startswith("127."))


def doors(address: str, word: bytes) -> list[socket.socket]:
    """Listen at an address and, for ranks of this host, where a connection costs less than TCP's (Linux)."""
    made = [socket.create_server((address, 0), backlog=_BACKLOG)]
    if sys.platform.startswith("linux"):
        near = socket.socket(socket.AF_UNIX)
        near.bind(_near(word))
        near.listen(_BACKLOG)
        made.append(near)
    return made


def connect(candidates: tuple[str, ...], port: int, word: bytes) -> socket.socket:
    """Connect to the first of these addresses that answers, on this host by its own door. Raise RankError if none."""
    if LOOPBACK in candidates and sys.platform.startswith("linux"):
        near = socket.socket(socket.AF_UNIX)
        near.connect(_near(word))
        return near
    for address in candidates:
        try:
            made = socket.create_connection((address, port), timeout=REACH_S)
        except OSError:
            continue
        made.settimeout(None)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    raise RankError(
        f"wall clock: rank 0's host must be reachable from {socket.gethostname()} by TCP, got no answer at "
        f"{', '.join(candidates) or 'any address'}, port {port}; open the hosts to each other"
    )


def compare_clocks(now: Callable[[], float], ask: Callable[[], float]) -> Clock:
    """Measure the other clock by round trips: `ask()` returns its time. The shortest trip bounds the error."""
    best = Clock(0.0, float("inf"))
    for _ in range(ROUNDS):
        began = now()
        other = ask()
        took = now() - began
        if took / 2 < best.error_s:
            best = Clock(other - (began + took / 2), took / 2)
    return best


def _near(word: bytes) -> bytes:
    """Return a name that is known on this host alone, and goes with its process."""
    return b"\0emu-" + word.hex().encode()


def _interfaces() -> list[str]:
    if not sys.platform.startswith("linux"):
        return []
    import fcntl

    get_address = 0x8915
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), get_address, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found.append(socket.inet_ntoa(answer[20:24]))
    return found
