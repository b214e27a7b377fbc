"""Measure the real links between a job's ranks, and what their memory makes of sums, as collectives use them.

Messages go between three buffers, each sent on after it has been received: caches then hold as much of it as of a
collective's, and what is read was written by the core just before, as there. What is measured are plain exchanges;
collectives are what the outcome is judged by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from emu.comm.calls import collective
from emu.comm.communicator import Comm
from emu.errors import ConfigError

SIZES = (*(4**k for k in range(1, 7)), *(2**k for k in range(14, 25)))  # 4 B to 16 MiB, denser from 16 KiB
LEAST_S = 0.03  # of one size: repeated that long ...
MOST_REPEATS = 60  # ... or that often
RUN = 4  # calls that are timed together
MOST_PASSES = 5  # over all sizes ...
LEAST_SUM = 0.05  # of what a sum takes alone; a difference of two times may be less than nothing
PASSES_S = 2.0  # ... as long as no more time has gone by
timer = time.perf_counter
Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Pair:
    """What was measured between two ranks: one-way time by size, alone and with both directions at once.

    `sums` are times of adding what has just come, by the bytes of memory that this touches: the caches of two cores
    have a part in it then, and what is to be added may come by another way. It may take more or less than alone.
    """

    ranks: tuple[int, int]
    one_way: Points
    both_ways: Points
    sums: Points


@dataclass(frozen=True)
class Measured:
    """A job's links. `hosts` are the ranks by host; the pairs within the first host and to the second.

    `all_at_once_bytes_per_s` is what all ranks of the first host send together, each to the next one.
    """

    hosts: tuple[tuple[int, ...], ...]
    inside: Pair | None
    between: Pair | None
    all_at_once_bytes_per_s: float
    flops: float


def measure(comm: Comm, places: Sequence[Any]) -> Measured:
    """Measure between the members of a communicator; `places` tells each rank's host. Collective."""
    if comm.size < 2:
        raise ConfigError("calibrate: at least 2 ranks are expected, got 1; mpirun -n 2 emu calibrate")
    hosts: dict[Any, list[int]] = {}
    for rank, place in enumerate(places):
        hosts.setdefault(place, []).append(rank)
    by_host = tuple(tuple(ranks) for ranks in hosts.values())
    first = by_host[0]
    inside = _pair(comm, first[0], first[1], True) if len(first) > 1 else None
    between = _pair(comm, first[0], by_host[1][0], False) if len(by_host) > 1 else None
    together = _together(comm, first) if len(first) > 1 else 0.0
    return Measured(by_host, inside, between, together, min(comm.wire.exchange(_flops())))


def best(function: Callable[[], Any], repeats: int) -> float:
    """Return the time of a call in the best of several runs of some: what it takes when nothing else disturbs it.

    A single call may look short where another rank has done its part already; in a run of them that evens out. Few
    repeats are of calls so long that it does not matter.
    """
    run = RUN if repeats >= 2 * RUN else 1
    took = []
    for _ in range(max(2, repeats // run)):
        began = timer()
        for _ in range(run):
            function()
        took.append((timer() - began) / run)
    return min(took)


@collective("calibration", "there_and_back", agree=(), planned=True)
def _there_and_back(pair: Comm, x: Any, y: Any) -> None:
    """Send y's size from one half of x to the other rank, which sends as much back."""
    half = y.size
    if pair.rank == 0:
        pair.waitall([pair.isend(x[:half], 1)])
        pair.waitall([pair.irecv(y, 1)])
    else:
        pair.waitall([pair.irecv(y, 0)])
        pair.waitall([pair.isend(x[half:], 0)])


@collective("calibration", "both_ways", agree=(), planned=True)
def _both_ways(pair: Comm, x: Any, y: Any) -> None:
    """Exchange y's size three times, each time what has come before: from y and the halves of x to the next of them."""
    half, other = y.size, 1 - pair.rank
    pair.sendrecv(x[:half], other, y, other)
    pair.sendrecv(y, other, x[half:], other)
    pair.sendrecv(x[half:], other, x[:half], other)


@collective("calibration", "exchange_and_sum", agree=(), planned=True)
def _exchange_and_sum(pair: Comm, x: Any, y: Any) -> None:
    """Exchange y's size twice, and add what has come to the other half of x: two reads and a write of memory."""
    half, other = y.size, 1 - pair.rank
    pair.sendrecv(x[:half], other, y, other)
    pair.reduce("sum", x[half:], y)
    pair.sendrecv(x[half:], other, y, other)
    pair.reduce("sum", x[:half], y)


def _sum(x: Any, y: Any) -> None:
    half = y.size
    np.add(x[half:], y, out=x[half:])
    np.add(x[:half], y, out=x[:half])


@collective("calibration", "to_the_next", agree=(), planned=True)
def _to_the_next(ring: Comm, x: Any, y: Any) -> None:
    ring.sendrecv(x, (ring.rank + 1) % ring.size, y, (ring.rank - 1) % ring.size)


def _pair(comm: Comm, a: int, b: int, one_host: bool) -> Pair:
    """Measure between two ranks while the others wait."""
    pair = comm.split(0 if comm.rank in (a, b) else None, key=0 if comm.rank == a else 1)
    times: Any = None
    if pair is not None:
        times = least(pair.wire, lambda: [_of_size(pair, size) for size in SIZES])
        pair.free()
    one_way, both_ways, added, alone = comm.wire.exchange(times)[a].T
    # Between hosts a sum is too short beside an exchange to be seen there.
    sums = np.maximum(added - both_ways, LEAST_SUM * alone) if one_host else alone
    touched = tuple(3 * size for size in SIZES)
    return Pair((a, b), _points(SIZES, one_way), _points(SIZES, both_ways), _points(touched, sums))


def _points(sizes: Sequence[int], times: np.ndarray) -> Points:
    return tuple(zip(sizes, times.tolist(), strict=True))


def _of_size(pair: Comm, size: int) -> tuple[float, float, float, float]:
    """Return what a message of one size takes one way, both ways, both ways and then added; and adding alone."""
    x, y = np.ones(size // 2, np.float32), np.ones(size // 4, np.float32)
    return (
        time_s(pair, partial(_there_and_back, pair, x, y)) / 2,
        time_s(pair, partial(_both_ways, pair, x, y)) / 3,
        time_s(pair, partial(_exchange_and_sum, pair, x, y)) / 2,
        time_s(pair, partial(_sum, x, y)) / 2,
    )


def least(wire: Any, measured: Callable[[], Any]) -> np.ndarray:
    """Return the least of each value over several passes: a machine may be slow for seconds. Collective."""
    began, found = timer(), np.array(measured())
    for _ in range(MOST_PASSES - 1):
        if max(wire.exchange(timer() - began)) > PASSES_S:
            break
        found = np.minimum(found, measured())
    return found


def time_s(comm: Comm, step: Callable[[], Any]) -> float:
    """Return what a step of all ranks takes on this one, repeated as often as that is quick."""
    step()
    began = timer()
    step()
    once = max(comm.wire.exchange(timer() - began))
    return best(step, min(MOST_REPEATS, int(LEAST_S / max(once, 1e-7))))


def _together(comm: Comm, ranks: Sequence[int]) -> float:
    """Return what all these ranks send together."""
    ring = comm.split(0 if comm.rank in ranks else None)
    size, took = 1 << 20, 0.0
    if ring is not None:
        x, y = np.ones(size, np.uint8), np.ones(size, np.uint8)
        took = best(lambda: _to_the_next(ring, x, y), 24)
        ring.free()
    return len(ranks) * size / max(comm.wire.exchange(took))


def _flops() -> float:
    x = np.ones((256, 256), np.float32)
    return 2 * 256**3 / best(lambda: x @ x, 10)
