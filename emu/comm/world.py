"""The ranks of one process: greenlets that run in a fixed order, who waits for what, and what ends them.

A program is plain blocking code. The same program gives the same logs every time. When all that are left wait for
each other, the program cannot finish, and the error names who waits for whom, and where.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import greenlet

from emu.comm.sites import frame_told
from emu.comm.wire import Call
from emu.errors import DeadlockError, MismatchError

if TYPE_CHECKING:
    from emu.comm.local import Message
    from emu.comm.rounds import Round

SHOWN = 16  # ranks that an error names


class World:
    """The ranks of one process, and the messages between them.

    `answer`, where it is set, is asked when no rank can go on by itself: it answers a question of time or order
    and returns whether some rank can go on now.
    """

    def __init__(self, size: int, dry: bool = False) -> None:
        self.size = size
        self.everyone = tuple(range(size))
        self.dry = dry
        self.ready: deque[greenlet.greenlet] = deque()
        self.waiting: dict[greenlet.greenlet, Callable[[], str]] = {}  # who waits -> tells what for
        self.ranks: dict[greenlet.greenlet, int] = {}
        self.ended: set[int] = set()
        self.beside: set[greenlet.greenlet] = set()  # coroutines beside a rank's program
        self.sent: dict[tuple, deque[Message]] = {}  # (place, collective, to, source, tag) -> not yet received
        self.asked: dict[tuple, deque[Message]] = {}  # the same -> receives without a message
        self.arrivals = 0
        self.places: dict[tuple[int, tuple[int, ...]], tuple[int, tuple[int, ...]]] = {}
        self._latest_place: tuple[int, tuple[int, tuple[int, ...]]] | None = None
        self.probing: dict[int, list[greenlet.greenlet]] = {}  # world rank -> who waits for any message to it
        self.rounds: dict[tuple, Round] = {}
        self.answer: Callable[[World], bool] | None = None
        self.holds = False  # receives from any source wait for `answer` to choose their message
        self.on_switch: Callable[[int], None] | None = None  # told the rank that is about to run

    def place(self, context: int, group: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Return the number of a communicator, and its group as all members share it.

        Communicators without a common rank may have the same context; here they share a process.
        """
        latest = self._latest_place
        if latest is None or latest[0] != context or latest[1][1] is not group:  # equal groups are dear to compare
            latest = self._latest_place = context, self.places.setdefault((context, group), (len(self.places), group))
        return latest[1]

    def run(self, program: Callable[[int], Any]) -> list[Any]:
        """Run program(rank) on every rank; return what each returned. An error of one rank ends all."""
        self.hub = greenlet.getcurrent()
        results: list[Any] = [None] * self.size

        def start(rank: int) -> None:
            results[rank] = program(rank)
            self.ended.add(rank)

        coroutines = [greenlet.greenlet(start) for _ in range(self.size)]
        self.ranks = {coroutine: rank for rank, coroutine in enumerate(coroutines)}
        try:
            for rank, coroutine in enumerate(coroutines):
                self._enter(rank)
                coroutine.switch(rank)
                self._drain()
            self._finish(coroutines)
        finally:
            self._end()
        return results

    @property
    def current(self) -> int:
        """The rank that is running."""
        return self.ranks[greenlet.getcurrent()]

    def spawn(self, work: Callable[[], Any]) -> greenlet.greenlet:
        """Make a coroutine that runs beside the current rank's program; it starts when the rank next waits."""
        coroutine = greenlet.greenlet(work, self.hub)
        self.ranks[coroutine] = self.current
        self.beside.add(coroutine)
        self.ready.append(coroutine)
        return coroutine

    def block(self, told: Callable[[], str]) -> None:
        """Suspend the running coroutine until something makes it ready."""
        coroutine = greenlet.getcurrent()
        self.waiting[coroutine] = told
        self.hub.switch()
        self.waiting.pop(coroutine, None)

    def pause(self) -> None:
        """Let every other coroutine that can run do so first."""
        self.ready.append(greenlet.getcurrent())
        self.hub.switch()

    def _enter(self, rank: int) -> None:
        if self.on_switch is not None:
            self.on_switch(rank)

    def _drain(self) -> None:
        while self.ready:
            coroutine = self.ready.popleft()
            if not coroutine.dead:
                if self.on_switch is not None:
                    self.on_switch(self.ranks[coroutine])
                coroutine.switch()
                if coroutine.dead and coroutine in self.beside:
                    self.beside.discard(coroutine)
                    del self.ranks[coroutine]

    def _finish(self, coroutines: Sequence[greenlet.greenlet]) -> None:
        while True:
            self._drain()
            if all(coroutine.dead for coroutine in coroutines):
                for text in self._missing():
                    raise MismatchError(f"{text}; make every rank of a communicator call its collectives")
                return
            if self.answer is None or not self.answer(self):
                raise DeadlockError(self.describe())

    def describe(self) -> str:
        """Tell who waits for whom, and where."""
        waiting = sorted(((self.ranks[who], who, told) for who, told in self.waiting.items()), key=lambda w: w[0])
        lines = [f"rank {rank} at {frame_told(who.gr_frame)} waits for {told()}" for rank, who, told in waiting]
        missing = list(self._missing())
        shown = "; ".join((*missing[:4], *lines[:SHOWN]))
        shown += f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        advice = "make all ranks call the same collectives" if missing else "post receives before waiting for sends"
        return f"deadlock: every rank must be able to go on, got {shown}; {advice}"

    def _missing(self) -> Iterator[str]:
        """Tell the collective calls that some ranks have made and others have not."""
        for made in self.rounds.values():
            calls = [(made.group[r], call) for r, call in made.values.items() if isinstance(call, Call)]
            if calls:
                rank, call = min(calls, key=lambda told: told[0])
                absent = [f"rank {r}" + (" (it has ended)" if r in self.ended else "") for r in made.absent()]
                yield f"collective {call.ordinal}: rank {rank} calls {call}, {', '.join(absent[:8])} did not call it"

    def _end(self) -> None:
        for coroutine in list(self.ranks):
            if coroutine and not coroutine.dead:
                coroutine.throw(greenlet.GreenletExit)
