"""Measure the real links between a job's ranks, through the wire that emu itself uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from emu.errors import ConfigError

SIZES = tuple(4**k for k in range(13)) + tuple(3 * 4**k for k in range(8, 12))  # 1 B to 16 MiB, denser from 192 KiB
LEAST_S = 0.02  # of one size: repeated that long ...
MOST_REPEATS = 50  # ... or that often
timer = time.perf_counter


@dataclass(frozen=True)
class Pair:
    """What was measured between two ranks: one-way time by size, alone and with both directions at once."""

    ranks: tuple[int, int]
    one_way: tuple[tuple[int, float], ...]
    both_ways: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Measured:
    """A job's links. `hosts` are the ranks by host; the pairs within the first host and to the second.

    `all_at_once_bytes_per_s` is what all ranks of the first host send together, each to the next one.
    """

    hosts: tuple[tuple[int, ...], ...]
    inside: Pair | None
    between: Pair | None
    all_at_once_bytes_per_s: float
    sum_bytes_per_s: float  # memory that a sum into place touches
    flops: float


def measure(wire: Any, places: Sequence[Any]) -> Measured:
    """Measure between the members of a wire; `places` tells each rank's host. Collective."""
    if wire.size < 2:
        raise ConfigError("calibrate: at least 2 ranks are expected, got 1; mpirun -n 2 emu calibrate")
    hosts: dict[Any, list[int]] = {}
    for rank, place in enumerate(places):
        hosts.setdefault(place, []).append(rank)
    by_host = tuple(tuple(ranks) for ranks in hosts.values())
    first = by_host[0]
    inside = _pair(wire, first[0], first[1]) if len(first) > 1 else None
    between = _pair(wire, first[0], by_host[1][0]) if len(by_host) > 1 else None
    together = _ring(wire, first) if len(first) > 1 else 0.0
    speeds = wire.exchange((_sum_speed(), _flops()))
    return Measured(by_host, inside, between, together, min(s for s, _ in speeds), min(f for _, f in speeds))


def best(function: Callable[[], Any], repeats: int) -> float:
    """Return the least time of several calls: what it takes when nothing else disturbs it."""
    took = []
    for _ in range(repeats):
        began = timer()
        function()
        took.append(timer() - began)
    return min(took)


def _pair(wire: Any, a: int, b: int) -> Pair:
    """Measure between two ranks while the others wait."""
    one_way, both_ways = [], []
    for size in SIZES:
        x, y = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        one_way.append((size, _time(wire, a, b, partial(_ping, wire, a, b, x)) / 2))
        both_ways.append((size, _time(wire, a, b, partial(_swap, wire, a, b, x, y))))
    wire.exchange(None)
    told = wire.exchange((one_way, both_ways))[a]
    return Pair((a, b), tuple(told[0]), tuple(told[1]))


def _time(wire: Any, a: int, b: int, step: Callable[[], Any]) -> float:
    if wire.rank not in (a, b):
        return 0.0
    step()
    repeats = np.zeros(1, np.int64)
    if wire.rank == a:
        repeats[0] = min(MOST_REPEATS, max(4, int(LEAST_S / max(best(step, 2), 1e-7))))
        wire.wait((wire.isend(repeats, b, 1, 0),))
    else:
        step()
        step()
        wire.wait((wire.irecv(repeats, a, 1, 0),))
    return best(step, int(repeats[0]))


def _ping(wire: Any, a: int, b: int, x: np.ndarray) -> None:
    if wire.rank == a:
        wire.wait((wire.isend(x, b, 0, 1),))
        wire.wait((wire.irecv(x, b, 0, 1),))
    else:
        wire.wait((wire.irecv(x, a, 0, 1),))
        wire.wait((wire.isend(x, a, 0, 1),))


def _swap(wire: Any, a: int, b: int, x: np.ndarray, y: np.ndarray) -> None:
    other = b if wire.rank == a else a
    wire.sendrecv(x, other, y, other, 0, 1)


def _ring(wire: Any, ranks: Sequence[int]) -> float:
    """Return what all these ranks send together."""
    size = 1 << 20
    took = 0.0
    if wire.rank in ranks:
        x, y, i = np.zeros(size, np.uint8), np.zeros(size, np.uint8), ranks.index(wire.rank)
        to, source = ranks[(i + 1) % len(ranks)], ranks[i - 1]
        took = best(lambda: wire.sendrecv(x, to, y, source, 0, 1), 24)
    slowest = max(wire.exchange(took))
    return len(ranks) * size / slowest


def _sum_speed() -> float:
    """Return how much memory a sum into place touches in a second: two reads and a write."""
    x, y = np.zeros(1 << 20, np.float32), np.ones(1 << 20, np.float32)
    return 3 * x.nbytes / best(lambda: np.add(x, y, out=x), 30)


def _flops() -> float:
    x = np.ones((256, 256), np.float32)
    return 2 * 256**3 / best(lambda: x @ x, 10)
