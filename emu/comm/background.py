"""Collectives that run beside a rank's program: each communicator's on a stream of its own, in order of their start.

The work is a coroutine. Its rows go to its stream, which waits for the event of its start and records one at its
end; the program's stream waits for that when the program does. So the two overlap in emulated time, as they would
with a library that makes progress by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from emu.comm.communicator import Comm
from emu.errors import ConfigError


class Turns(Protocol):
    """Runs coroutines beside a rank's program."""

    def spawn(self, work: Callable[[], Any]) -> Any:
        """Start a coroutine."""

    def until(self, done: Callable[[], bool], told: Callable[[], str]) -> None:
        """Let coroutines run until done() holds."""

    def wake(self) -> None:
        """Tell that a coroutine has got somewhere."""

    def step(self) -> None:
        """Let every coroutine that can run do so once."""


class Job:
    """One call beside the program."""

    def __init__(self, work: Callable[[Comm], Any], started: int, label: str) -> None:
        self.work = work
        self.started = started  # the event of its start
        self.label = label
        self.ended: int | None = None  # the event of its end
        self.error: BaseException | None = None


class Background:
    """One rank's calls beside its program."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self._lanes: dict[int, _Lane] = {}

    def start(self, comm: Comm, work: Callable[[Comm], Any], label: str) -> Job:
        """Start work(communicator) beside the program; it gets a communicator of the same members for itself."""
        lane = self._lanes.get(comm.context)
        if lane is None:
            lane = self._lanes[comm.context] = _Lane(comm, self.turns)
        job = Job(work, comm.log.record(), label)
        lane.add(job)
        return job

    def wait(self, job: Job) -> None:
        """Return when a job is done; the program's stream waits for it too."""
        if job.ended is None:
            self.turns.until(lambda: job.ended is not None, lambda: f"its {job.label} to end")
        self._join(job)

    def test(self, job: Job) -> bool:
        """Tell whether a job is done; if so, the program's stream waits for it too."""
        if job.ended is None:
            self.turns.step()
        if job.ended is None:
            return False
        self._join(job)
        return True

    def _join(self, job: Job) -> None:
        if job.error is not None:
            raise job.error
        assert job.ended is not None
        for lane in self._lanes.values():
            if lane.owns(job):
                lane.comm.log.await_event(job.ended)


class _Lane:
    """The jobs of one communicator, one after the other."""

    def __init__(self, comm: Comm, turns: Turns) -> None:
        log = comm.log
        streams = log.tables.streams
        self.stream = streams.setdefault(f"nonblocking {comm.context}", len(streams))  # one name on all ranks
        if self.stream > 255:
            raise ConfigError("non-blocking collectives: at most 255 communicators with such calls are expected")
        self.turns = turns
        self.comm = comm.beside(Switching(comm.wire.beside(), log))
        self.jobs: deque[Job] = deque()
        self.seen: set[int] = set()
        self.running = False

    def owns(self, job: Job) -> bool:
        """Tell whether a job is one of this communicator's."""
        return id(job) in self.seen

    def add(self, job: Job) -> None:
        """Start a job, after those before it."""
        self.jobs.append(job)
        self.seen.add(id(job))
        if not self.running:
            self.running = True
            self.turns.spawn(self._run)

    def _run(self) -> None:
        wire: Any = self.comm.wire
        log = self.comm.log
        while self.jobs:
            job = self.jobs.popleft()
            wire.enter(self.stream)
            try:
                log.await_event(job.started)
                job.work(self.comm)
                ended = log.record()
            finally:
                wire.leave()
            job.ended = ended
            self.turns.wake()
        self.running = False


class Switching:
    """A wire that gives the rank's log back to the program whenever its coroutine waits."""

    def __init__(self, inner: Any, log: Any) -> None:
        self.inner, self.log = inner, log
        self.dry, self.rank, self.size = inner.dry, inner.rank, inner.size
        self.isend, self.irecv, self.test, self.empty = inner.isend, inner.irecv, inner.test, inner.empty
        self.base = log.data
        self.outer: tuple = ()

    @property
    def held(self) -> Any:
        """Receives that wait for the engine."""
        return self.inner.held

    @property
    def sites(self) -> Any:
        """Where the rank's latest messages stand."""
        return self.inner.sites

    @sites.setter
    def sites(self, sites: Any) -> None:
        self.inner.sites = sites

    def enter(self, stream: int, data: Any = None, flag: int = 0, muted: bool = False) -> None:
        """Take the log: rows go to `stream` from now on."""
        log = self.log
        self.outer = (log.stream, log.data, log.flag, log.muted)
        log.stream, log.data, log.flag, log.muted = stream, self.base if data is None else data, flag, muted

    def leave(self) -> None:
        """Give the log back as it was."""
        log = self.log
        log.stream, log.data, log.flag, log.muted = self.outer

    def _aside(self, wait: Callable[[], Any]) -> Any:
        log = self.log
        mine = (log.stream, log.data, log.flag, log.muted)
        self.leave()
        try:
            return wait()
        finally:
            self.enter(*mine)

    def wait(self, pendings: Any) -> None:
        """Return when all are done."""
        self._aside(lambda: self.inner.wait(pendings))

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int, collective: int) -> None:
        """Send and receive at the same time."""
        receive = self.inner.irecv(into, source, tag, collective)
        send = self.inner.isend(x, to, tag, collective)
        self._aside(lambda: self.inner.wait((receive, send)))

    def exchange(self, value: Any, work: Callable[[list[Any]], Any] = list) -> Any:
        """Give one value, get what `work` makes of every member's."""
        return self._aside(lambda: self.inner.exchange(value, work))

    def agree(self, call: Any) -> None:
        """Check that every member makes the same call."""
        self._aside(lambda: self.inner.agree(call))
