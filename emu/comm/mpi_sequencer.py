"""Questions of time and order under mpirun: one rank's helper thread keeps the engine and answers them all.

A rank that asks sends its new rows with the question and sleeps until the answer is there. The sequencer answers
when every other rank asks too, has ended, or waits for what only an answer can bring; a helper thread on each rank
tells it how the rank stands. Before the first question the helpers only look for mail now and then.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from emu.comm.answers import EngineAnswers
from emu.comm.calls import called_rows, spill
from emu.comm.communicator import Comm
from emu.comm.progress import Progress
from emu.comm.recording import Log
from emu.comm.watch import Watch, whom
from emu.errors import DeadlockError
from emu.trace import ROW, Op

_MAIL, _ANSWER = 1, 2
_OF_MESSAGES = ("messages", "a message from")  # waits of a wire for what the program sends
IDLE_S, BUSY_S = 0.02, 2e-4  # how often helpers look for mail, before and after the first question


def seat_at(comm: Comm, watch: Watch, control: MPI.Comm, cluster: Any, profile: str) -> Seat:
    """Let `comm`, the program's first communicator, ask the engine of all processes; `start()` what is returned."""
    seat = Seat(comm.log, watch, control, cluster, profile)
    # rows tell the engine of messages before they are waited for
    comm.rows_first, watch.holds, comm.answers = True, True, EngineAnswers(seat)
    return seat


@dataclass(frozen=True)
class Standing:
    """How a rank stands: what it has recorded since it last told, and why it does not go on, if so."""

    rank: int
    rows: bytes
    streams: tuple[str, ...]
    question: Any = None
    ended: bool = False
    waits: tuple[int, tuple[int, ...]] | None = None  # stream and requests that it waits for
    meets: dict[Any, int] = field(default_factory=dict)  # whom -> how often it has come to meet them
    meeting: Any = None  # whom it waits for to come too
    stuck: bool = False  # waits for something else
    serial: Any = 0  # changes whenever the rank goes on


@dataclass
class Seat:
    """This rank's side: it asks, and its helper tells how it stands."""

    log: Log
    watch: Watch
    comm: MPI.Comm
    cluster: Any
    profile: str
    asked: bool = False
    waiting: tuple[int, tuple[int, ...]] | None = None  # stream and numbers of the requests of the wait under way
    serial: int = 0
    ended: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _own: queue.SimpleQueue[Standing] = field(default_factory=queue.SimpleQueue)
    _stop: threading.Event = field(default_factory=threading.Event)
    _posted: Counter[int] = field(default_factory=Counter)  # stream -> requests in the rows that were told
    _call: tuple[int, tuple[int, ...]] | None = None  # stream and requests of the call that ends what was told

    def start(self) -> None:
        """Start the helper; on rank 0 it is the sequencer."""
        self._sequencer = Sequencer(self) if self.comm.rank == 0 else None
        self._thread = threading.Thread(target=self._help, daemon=True, name="emu-helper")
        self._thread.start()

    def ask(self, question: Any, told: Callable[[], str]) -> Any:
        """Send a question, sleep until the answer is there, and return it."""
        self.asked = True
        self._tell(question=question)
        pause = 2e-5
        while not self.comm.Iprobe(0, _ANSWER):
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        answer = self.comm.recv(source=0, tag=_ANSWER)
        self.serial += 1
        if isinstance(answer, str):
            raise DeadlockError(answer)
        return answer

    def waits(self, comm: Any, requests: Sequence[Any]) -> None:
        """Note which requests the rank is about to wait for; none: it goes on."""
        if requests:
            stream = requests[0].stream
            self.waiting = (stream, tuple(r.number for r in requests if r.stream == stream))
        else:
            with self._lock:  # the helper may be at this rank's rows, as of one that waits
                self.waiting = None
                self.serial += 1

    def finish(self) -> None:
        """Tell that the program has ended."""
        self.ended = True
        self._tell()

    def stop(self) -> None:
        """End the helper, when all ranks have ended."""
        self._stop.set()
        self._thread.join()

    def _tell(self, question: Any = None) -> None:
        """Tell the sequencer how this rank stands; rows leave in the order in which they were written."""
        with self._lock:
            before = self._serial()
            waits, waiting = self.waiting, self.watch.waiting
            if question is not None or waits is not None:
                spill(self.log)
            rows = self._fresh_rows()
            if waits is None and waiting is not None and waiting[1] in _OF_MESSAGES:
                waits = self._call  # a call that is not recorded again: all its requests, as of one wait
            still = before == self._serial()
            standing = Standing(
                self.comm.rank, rows, tuple(self.log.tables.streams), question, self.ended,
                waits if still else None, dict(self.watch.meets), _met(waiting) if still else None,
                waiting is not None and still, before,
            )  # fmt: skip
            if self._sequencer is not None:
                self._own.put(standing)  # a message to oneself might wait for its receive
            else:
                self.comm.send(("standing", standing), 0, _MAIL)

    def _serial(self) -> tuple[int, int]:
        """Return what changes whenever the rank goes on; calls that are not recorded again only count their waits."""
        return self.serial, 0 if self.waiting is not None else self.watch.count

    def _fresh_rows(self) -> bytes:
        """Return the rows that were not told yet, calls written out."""
        log = self.log
        data = bytes(memoryview(log.base)[log.shipped :])
        log.shipped += len(data)
        if not data:
            return b""
        rows = np.frombuffer(data, ROW)
        ends_in_call = bool(rows["op"][-1] == Op.CALL)
        rows, last = called_rows(rows, log)
        messages = (rows["op"] == Op.SEND) | (rows["op"] == Op.RECV)
        self._posted.update(rows["stream"][messages].tolist())
        self._call = None
        if ends_in_call:
            stream = int(rows["stream"][-1])
            self._call = stream, tuple(range(self._posted[stream] - last, self._posted[stream]))
        return rows.tobytes()

    def _help(self) -> None:
        """Look for mail, until the end; what goes wrong here ends the job."""
        try:
            self._look()
        except BaseException:
            traceback.print_exc()
            MPI.COMM_WORLD.Abort(1)

    def _look(self) -> None:
        """Look for mail: the sequencer's, or the wish to know how this rank stands."""
        busy = False
        while not self._stop.wait(BUSY_S if busy else IDLE_S):
            while self.comm.Iprobe(MPI.ANY_SOURCE, _MAIL):
                busy = True
                kind, standing = self.comm.recv(source=MPI.ANY_SOURCE, tag=_MAIL)
                if kind == "how":
                    self._tell()
                elif self._sequencer is not None:
                    self._sequencer.take(standing)
            if self._sequencer is not None:
                while not self._own.empty():
                    busy = True
                    self._sequencer.take(self._own.get())
                if self._sequencer.go_on():
                    self._tell()


def _met(waiting: Any) -> Any:
    """Return whom a wait is to meet, None if it is for something else."""
    if waiting is None or waiting[1] in _OF_MESSAGES or waiting[1] == "agreement":
        return None
    return whom(waiting[0])


class Sequencer:
    """Keeps the engine; knows how every rank stands."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.comm = seat.comm
        self.size = seat.comm.size
        self.engine: Any = None
        self.progress = Progress(self.size)
        self.standing: dict[int, Standing] = {}
        self.asked_at: dict[int, float] = {}  # when a rank was last asked how it stands

    def take(self, standing: Standing) -> None:
        """Take in how a rank stands."""
        known = self.standing.get(standing.rank)
        if known is None or known.question is None or standing.question is not None:
            self.standing[standing.rank] = standing
        self.asked_at.pop(standing.rank, None)
        rows = self.progress.take(standing)
        if self.engine is None:
            from emu.engine import Engine

            self.engine = Engine(self.seat.cluster, self.size, profile=self.seat.profile, detail="totals")
        if len(rows):
            self.engine.extend(standing.rank, rows)

    def go_on(self) -> bool:
        """Answer a question if no rank can go on by itself; otherwise ask those of which that is not known.

        Return whether rank 0 itself is to tell how it stands.
        """
        asking = {rank: s for rank, s in self.standing.items() if s.question is not None}
        if not asking:
            return False
        unknown = [rank for rank in range(self.size) if not self._stands_still(rank)]
        if unknown:
            return self._inquire(unknown)
        self._answer([asking[rank] for rank in sorted(asking)])
        return False

    def _stands_still(self, rank: int) -> bool:
        standing = self.standing.get(rank)
        if standing is None:
            return False
        if standing.question is not None or standing.ended:
            return True
        return self.progress.blocked(standing)

    def _inquire(self, ranks: list[int]) -> bool:
        now = time.monotonic()
        for rank in ranks:
            if rank > 0 and now - self.asked_at.get(rank, 0.0) > 0.25:
                self.asked_at[rank] = now
                self.comm.send(("how", None), rank, _MAIL)
        return 0 in ranks

    def _answer(self, asking: list[Standing]) -> None:
        try:
            which, answer = self.engine.advance([standing.question for standing in asking])
        except DeadlockError as error:
            for standing in asking:
                self.comm.send(str(error), standing.rank, _ANSWER)
                del self.standing[standing.rank]
            return
        asked = asking[which]
        self.progress.answered(asked.question, answer)
        del self.standing[asked.rank]
        self.comm.send(answer, asked.rank, _ANSWER)


