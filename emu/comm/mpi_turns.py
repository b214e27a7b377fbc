"""What runs beside a process's program: coroutines, and a wire for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import greenlet
from mpi4py import MPI

from emu.comm.mpi import MAX_MESSAGE_BYTES, MpiWire
from emu.comm.mpi_agreements import Agreements, Hashes
from emu.comm.watch import Watch
from emu.comm.wire import Call


class MpiTurns:
    """Runs coroutines beside this process's program; they go on whenever the program waits or asks."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.coroutines: list[greenlet.greenlet] = []

    def spawn(self, work: Callable[[], Any]) -> None:
        """Start a coroutine and run it until it first waits."""
        coroutine = greenlet.greenlet(work)
        self.coroutines.append(coroutine)
        self.watch.beside = self
        self.step()

    def until(self, done: Callable[[], bool], told: Callable[[], str]) -> None:
        """Let coroutines run until done() holds; a coroutine itself lets the program go on meanwhile."""
        current = greenlet.getcurrent()
        pause = 0.0
        while not done():
            if current in self.coroutines:
                assert current.parent is not None
                current.parent.switch()
                continue
            self.step()
            time.sleep(pause)
            pause = min(pause + 1e-6, 1e-4)

    def wake(self) -> None:
        """Nobody sleeps for long."""

    def step(self) -> None:
        """Let every coroutine run until it next waits."""
        for coroutine in list(self.coroutines):
            if coroutine.dead:
                self.coroutines.remove(coroutine)
                self.watch.beside = self if self.coroutines else None
            elif coroutine is not greenlet.getcurrent():
                coroutine.parent = greenlet.getcurrent()
                coroutine.switch()


class MpiBeside(MpiWire):
    """A wire for calls beside the program: where they wait, the program goes on."""

    def __init__(self, comm: MPI.Comm, request: MPI.Request, watch: Watch, group: Sequence[int]) -> None:
        self._comms = (comm, comm)  # not made yet: it can't be asked anything
        self._made: MPI.Request | None = request
        self.watch = watch
        self.group = tuple(group)
        self.size = len(self.group)
        self.rank = self.group.index(MPI.COMM_WORLD.rank)
        self.sites = deque(maxlen=1)
        self.held = []
        self.later = Agreements(comm, self.group)
        self.latest = None
        self.context = -1
        self.max_message_bytes = MAX_MESSAGE_BYTES
        self._status = MPI.Status()
        self.mail = None
        self.sent = {}
        self._hashes = Hashes(comm, self.group, None)

    @property
    def replays(self) -> bool:
        """Not here."""
        return False

    def agree(self, call: Call) -> None:
        """Wait until MPI has made the communicator, then see that all members make the same call."""
        self._ready()
        super().agree(call)

    def isend(
        self, x: Any, to: int, tag: int, collective: int, kind: int | None = None, rendezvous: bool = False
    ) -> Any:
        """Start to send."""
        self._ready()
        return super().isend(x, to, tag, collective, kind, rendezvous)

    def irecv(
        self, x: Any, source: int, tag: int, collective: int, kind: int | None = None, exact: bool = True
    ) -> Any:
        """Start to receive."""
        self._ready()
        return super().irecv(x, source, tag, collective, kind, exact)

    def _ready(self) -> None:
        if self._made is not None:
            assert self.watch.beside is not None
            request, self._made = self._made, None
            self.watch.beside.until(request.Test, lambda: "a communicator")
