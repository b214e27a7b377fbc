"""Computation by measurement: the processor time of a program between its MPI calls."""

from __future__ import annotations

import time
from collections.abc import Callable

from emu.comm.recording import Log


class Stopwatch:
    """Records what a rank's program computes as measured time, divided by `speedup`."""

    def __init__(self, log: Log, speedup: float, clock: Callable[[], float] = time.process_time) -> None:
        self.log, self.speedup, self.clock = log, speedup, clock
        self.label = log.tables.label("computation")
        self.depth = 0
        self.since = clock()

    def enter(self) -> bool:
        """Record what has been computed since the last call; return whether this is the program's own call."""
        self.depth += 1
        if self.depth > 1 or self.log.flag:
            return True
        elapsed = self.clock() - self.since
        if elapsed > 0:
            self.log.elapsed(self.label, elapsed / self.speedup)
        return True

    def leave(self) -> None:
        """Begin to measure."""
        self.depth -= 1
        self.since = self.clock()
