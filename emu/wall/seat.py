"""A seat: one stream's connection to the referee, and its view of the time.

What the stream says is kept until it asks or is flushed: one system call then carries a receive, a send and the
wait for both.
"""

from __future__ import annotations

import pickle
import select
import time
from collections.abc import Callable
from typing import Any

from emu.comm.watch import Watch
from emu.errors import RankError
from emu.wall import frames as F
from emu.wall.agent import Address
from emu.wall.hosts import Clock, compare_clocks, connect
from emu.wall.pace import now, sleep_until
from emu.wall.traffic import Traffic

FIRST_PAUSE_S = 50e-6  # between two looks whether MPI has moved the bytes ...
ASKED_PAUSE_S = 400e-6  # ... at first while the answer is owed: the bytes come with it, mostly
LAST_PAUSE_S = 5e-3  # ... growing up to this, so that idle ranks leave the cores to others
_REFEREE = (None, "word of the wall clock's referee", None)  # what a rank waits for, as its watch tells it
_BYTES = (None, "the bytes of its messages", None)


class Seat:
    """One stream of one rank at the referee's table.

    `time_s` is the stream's emulated time as last told; `moment` converts it to this host's clock.
    """

    def __init__(
        self, address: Address, rank: int, stream: int, dilation: float, watch: Watch, traffic: Traffic,
        ahead_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.traffic = traffic
        self.rank, self.stream, self.dilation, self.watch = rank, stream, dilation, watch
        self.tells_late = False  # the referee adapts the dilation to how late messages are
        self.ahead_s = ahead_s  # by how much the referee's clock is ahead of this host's
        self.time_s = 0.0
        self.origin_s = 0.0
        self.stood_still_s = 0.0  # how long emulated time has stood still so far
        self.owed = False  # an answer that nobody has waited for yet
        self.posted = 0  # requests made
        self.ended: list[tuple[int, float]] = []  # operations in the order of their rows, and when they really ended
        self.worked_until = 0.0  # when the kernel of the operation that goes on was done
        self._goes_on = 0
        self._out: list[bytes] = []
        self._rows = b""
        self._in = bytearray()
        self._told: list[F.Told] = []
        self._socket = connect(address.hosts, address.port, address.word)
        self.say(F.HELLO, number=rank, payload=address.word)
        self.flush()

    # Saying

    def say(self, kind: int, stamp: float = 0.0, number: int = 0, payload: bytes = b"") -> None:
        """Say something, with the next flush."""
        if self._rows:
            rows, self._rows = self._rows, b""
            self._out.append(F.said(F.ROWS, self.stream, 0.0, 0, rows))
        self._out.append(F.said(kind, self.stream, stamp, number, payload))

    def say_rows(self, rows: bytes, stamp: float = 0.0) -> None:
        """Say what the stream does; rows that follow one another without a stamp go as one."""
        if stamp:
            self.say(F.ROWS, stamp, payload=rows)
        else:
            self._rows += rows

    def stamp(self) -> float:
        """Return this moment on the referee's clock."""
        return now() + self.ahead_s

    def flush(self) -> None:
        """Send what was said. Rows without a stamp wait for what follows them."""
        if self._out:
            data, self._out = b"".join(self._out), []
            try:
                self._socket.sendall(data)
            except OSError:
                raise self._gone() from None

    def ask(self, payload: bytes = b"", goes_on: int = 0) -> None:
        """Ask when all that was said so far is done. The answer is owed until `answer` or `settle`.

        `goes_on` is the operation that the stream is in until then.
        """
        self.say(F.ASK, payload=payload)
        self.flush()
        self.owed, self._goes_on, self.worked_until = True, goes_on, 0.0

    def did(self, op: int) -> None:
        """Note that an operation has ended."""
        self.settle()
        self.ended.append((op, self._time_of(now())))

    # Hearing

    def answer(self) -> F.Told:
        """Wait for the owed answer, and look after the process's messages meanwhile."""
        pause = ASKED_PAUSE_S
        watch = self.watch
        watch.begin(_REFEREE, patient=True)  # it knows itself who waits for whom, and an emulated second may be long
        while not self._told:
            self._read(None if self.traffic.work() else pause)
            pause = min(1.5 * pause, LAST_PAUSE_S)
        watch.end()
        told = self._told.pop(0)
        self.owed = False
        self.time_s, self.stood_still_s = told.time_s, told.stood_still_s
        self.origin_s, self.dilation = told.origin_s, told.dilation
        return told

    def moment(self, time_s: float) -> float:
        """Return the moment on this host's clock that an emulated time stands for."""
        return self.origin_s + self.dilation * time_s - self.ahead_s

    def take_over(self, time_s: float, origin_s: float, dilation: float) -> None:
        """Know as much of the time as another stream of this rank did."""
        self.time_s, self.origin_s, self.dilation = max(self.time_s, time_s), origin_s, dilation

    def wait_until_moved(self, moved: Callable[[], bool], by: float) -> None:
        """Wait for bytes that MPI has not moved yet, looking more often when the moment `by` is near or past."""
        pause = FIRST_PAUSE_S
        self.watch.begin(_BYTES)
        while not moved():
            self.traffic.work()
            self._read(min(pause, max(FIRST_PAUSE_S, (by - now()) / 2)))
            pause = min(1.5 * pause, LAST_PAUSE_S / 5)
        self.watch.end()

    def sleep_until(self, moment: float) -> None:
        """Sleep until a moment, and look after the process's messages meanwhile."""
        pause = FIRST_PAUSE_S
        while moment - now() > 2 * pause and not self.traffic.work():
            time.sleep(pause)
            pause = min(1.5 * pause, LAST_PAUSE_S)
        sleep_until(moment)

    def settle(self) -> None:
        """If an answer is owed, wait for it and until its time has come."""
        if not self.owed:
            return
        self.answer()
        due = self.moment(self.time_s)
        slept = now() < due
        self.sleep_until(due)
        if self._goes_on:
            ended = now() if slept else max(due, self.worked_until)
            self.ended.append((self._goes_on, self._time_of(ended)))

    def rest(self, seconds: float) -> None:
        """Do nothing for a while, but hear of errors."""
        self._read(seconds)

    def exchange(self, key: Any, members: tuple[int, ...], value: Any) -> list[Any]:
        """Give a value, get those of all members; all go on at the same emulated time."""
        self.settle()
        self.say(F.EXCHANGE, self.stamp(), payload=pickle.dumps((key, members, pickle.dumps(value))))
        self.flush()
        values = pickle.loads(self.answer().payload)
        self.sleep_until(self.moment(self.time_s))
        return [pickle.loads(value) for value in values]

    def compare_clocks(self) -> Clock:
        """Measure by how much the referee's clock is ahead; nothing may be owed."""

        def ask() -> float:
            self.say(F.CLOCK_ASK)
            self.flush()
            while not self._told:
                self._read(None)
            return self._told.pop(0).time_s

        return compare_clocks(now, ask)

    def leave(self) -> None:
        """Say that the rank has reached its end, and go."""
        self.say(F.BYE)
        self.close()

    def close(self) -> None:
        """Leave the table."""
        self.flush()
        self._socket.close()

    def _read(self, timeout_s: float | None) -> None:
        ready, _, _ = select.select((self._socket,), (), (), timeout_s)
        if not ready:
            return
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            raise self._gone()
        self._in += data
        for told in F.take_told(self._in):
            if told.kind == F.ERROR:
                raise pickle.loads(told.payload)
            self._told.append(told)

    def _time_of(self, moment: float) -> float:
        return (moment + self.ahead_s - self.origin_s) / self.dilation

    def _gone(self) -> RankError:
        return RankError(f"rank {self.rank}: the referee of the wall clock must run until the end, got no word of it")
