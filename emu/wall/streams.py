"""Streams as threads: what a program puts on a stream runs there, while the program goes on.

The program's own thread is the default stream. Work for another stream is handed over as a function; it sees the
rank's GPU and communicators as that stream does (its own seat, its own part of the log).
"""

from __future__ import annotations

import copy
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from emu.wall import frames as F
from emu.wall.log import WallLog
from emu.wall.pace import sharpen
from emu.wall.seat import Seat

if TYPE_CHECKING:
    from emu.wall.device import WallComm, WallGpu


@dataclass(frozen=True)
class _Job:
    """A piece of work, and what time it was when it was given."""

    work: Callable[[], Any]
    time_s: float
    origin_s: float
    dilation: float


class Stream:
    """One stream beside the default one: a thread with a seat."""

    def __init__(self, number: int, host: WallGpu, seat: Seat, failed: Callable[[BaseException], None]) -> None:
        self.number, self.host, self.seat, self.failed = number, host, seat, failed
        log = host.log
        self.log = WallLog(log.rank, log.tables, seat, log.free_sums)
        self._comms: dict[int, tuple[WallComm, WallComm]] = {}  # by id; the first keeps the id taken
        self.gpu = copy.copy(host)
        self.gpu.take_place(self, self.comm(host.comm))
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=f"emu-stream-{number}", daemon=True)
        self.thread.start()

    def give(self, job: Callable[[], Any]) -> None:
        """Put a piece of work on the stream; the program goes on."""
        host = self.host.log
        host.seat.settle()
        host.seat.say(F.JOB, number=self.number)
        host.seat.flush()
        host.gap(self.log)
        self._jobs.put(_Job(job, host.seat.time_s, host.seat.origin_s, host.seat.dilation))

    def comm(self, comm: WallComm) -> WallComm:
        """Return a communicator as this stream sees it."""
        known = self._comms.get(id(comm))
        if known is None:
            known = self._comms[id(comm)] = (comm, comm.on(self.seat, self.log))
        return known[1]

    def end(self) -> None:
        """End the thread; its work must be done."""
        self._jobs.put(None)
        self.thread.join()
        self.seat.close()

    def _work(self) -> None:
        sharpen()
        try:
            while (job := self._jobs.get()) is not None:
                self.log.pieces.append(len(self.log.data))
                self.seat.take_over(job.time_s, job.origin_s, job.dilation)
                self.seat.say(F.START)
                job.work()
                self.seat.settle()
                self.seat.say(F.DONE)
                self.seat.flush()
        except BaseException as error:
            self.failed(error)


class Streams:
    """All streams of a rank beside the default one, made when first used."""

    def __init__(self, open_seat: Callable[[int], Seat], failed: Callable[[BaseException], None]) -> None:
        self._open_seat, self._failed = open_seat, failed
        self._made: dict[int, Stream] = {}
        self._inner_events = 0

    def get(self, number: int, host: WallGpu) -> Stream:
        """Return a stream by its number."""
        stream = self._made.get(number)
        if stream is None:
            stream = self._made[number] = Stream(number, host, self._open_seat(number), self._failed)
        return stream

    def join(self, host: WallGpu, numbers: list[int] | None = None) -> None:
        """Let the program wait until streams (default: all) have done their work; nothing is recorded."""
        for number, stream in self._made.items():
            if numbers is None or number in numbers:
                self._inner_events -= 1  # counted down from -1: the program's own are counted up
                event = self._inner_events
                stream.give(partial(stream.log.happen, event))
                host.log.wait_for(event)

    def ended(self) -> dict[int, list[tuple[int, float]]]:
        """Return when each stream's operations really ended."""
        return {number: stream.seat.ended for number, stream in self._made.items()}

    def end(self) -> None:
        """End all threads; their work must be done."""
        for stream in self._made.values():
            stream.end()
