"""Every rank a coroutine in one process: LocalWire carries bytes, DryWire carries none. No MPI.

Ranks are greenlets, so a program is plain blocking code. They run in a fixed order: the same program gives the same
logs every time. When all that are left wait for each other, the program cannot finish, and the error names who
waits for whom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import greenlet
import numpy as np

from emu.comm.communicator import Comm
from emu.comm.recording import Log, Tables, merge
from emu.comm.wire import Call, compare
from emu.errors import DeadlockError, MismatchError
from emu.trace import ANY, Trace

EAGER_BYTES = 65536  # up to here a send is buffered, as MPI libraries do; above, it waits for its receive


class World:
    """The ranks of one process: who runs, who waits for what, and the messages between them."""

    def __init__(self, size: int, dry: bool = False) -> None:
        self.size = size
        self.dry = dry
        self.ready: deque[greenlet.greenlet] = deque()
        self.waiting: dict[int, Callable[[], str]] = {}  # rank -> tells what it waits for
        self.ranks: dict[greenlet.greenlet, int] = {}
        self.sent: dict[tuple, deque[Message]] = {}  # (context, collective, to, source, tag) -> not yet received
        self.asked: dict[tuple, deque[Message]] = {}  # the same -> receives without a message
        self.arrivals = 0
        self.rounds: dict[tuple, Round] = {}
        self.questions: list[Any] = []  # asked of the engine by suspended ranks
        self.answer: Callable[[World], bool] | None = None

    def run(self, program: Callable[[int], Any]) -> list[Any]:
        """Run program(rank) on every rank; return what each returned. An error of one rank ends all."""
        self.hub = greenlet.getcurrent()
        results: list[Any] = [None] * self.size

        def start(rank: int) -> None:
            results[rank] = program(rank)

        coroutines = [greenlet.greenlet(start) for _ in range(self.size)]
        self.ranks = {coroutine: rank for rank, coroutine in enumerate(coroutines)}
        for rank, coroutine in enumerate(coroutines):
            try:
                coroutine.switch(rank)
                self._drain()
            except BaseException:
                self._end(coroutines)
                raise
        try:
            self._finish(coroutines)
        finally:
            self._end(coroutines)
        return results

    def block(self, told: Callable[[], str]) -> None:
        """Suspend the running rank until something makes it ready."""
        rank = self.ranks[greenlet.getcurrent()]
        self.waiting[rank] = told
        self.hub.switch()
        self.waiting.pop(rank, None)

    def _drain(self) -> None:
        while self.ready:
            coroutine = self.ready.popleft()
            if not coroutine.dead:
                coroutine.switch()

    def _finish(self, coroutines: Sequence[greenlet.greenlet]) -> None:
        while True:
            self._drain()
            if all(coroutine.dead for coroutine in coroutines):
                return
            if self.answer is None or not self.answer(self):
                raise DeadlockError(self._describe())

    def _describe(self) -> str:
        lines = [f"rank {rank} waits for {told()}" for rank, told in sorted(self.waiting.items())]
        shown = "; ".join(lines[:16]) + (f"; and {len(lines) - 16} more" if len(lines) > 16 else "")
        return f"deadlock: every rank must be able to go on, got {shown}; post receives before waiting for sends"

    @staticmethod
    def _end(coroutines: Sequence[greenlet.greenlet]) -> None:
        for coroutine in coroutines:
            if coroutine and not coroutine.dead:
                coroutine.throw(greenlet.GreenletExit)


class Message:
    """A send or receive of this process. `waiter` is the coroutine that waits for it."""

    __slots__ = ("data", "source", "tag", "nbytes", "done", "waiter", "order", "to")

    def __init__(self, data: Any, source: int, to: int, tag: int, nbytes: int) -> None:
        self.data = data
        self.source = source
        self.to = to
        self.tag = tag
        self.nbytes = nbytes
        self.done = False
        self.waiter: greenlet.greenlet | None = None
        self.order = 0

    def finish(self, world: World) -> None:
        """Mark it done, and let go on who waits for it."""
        self.done = True
        if self.waiter is not None:
            world.ready.append(self.waiter)
            self.waiter = None


class LocalWire:
    """The members of one communicator in this process."""

    dry = False

    def __init__(self, world: World, group: Sequence[int], rank: int, context: int) -> None:
        self.world = world
        self.group = tuple(group)
        self.rank = rank
        self.size = len(group)
        self.context = context
        self.round = 0

    def isend(self, x: Any, to: int, tag: int, collective: int) -> Message:
        """Hand x over if it is asked for; otherwise keep it (a copy, if small)."""
        world = self.world
        message = Message(x, self.rank, to, tag, x.nbytes)
        key = (self.context, collective, to, self.rank, tag)
        receive = self._asked(key)
        if receive is not None:
            _deliver(message, receive)
            receive.finish(world)
            message.done = True
            return message
        message.order = world.arrivals = world.arrivals + 1
        if x.nbytes <= EAGER_BYTES:
            message.data = x.copy()
            message.done = True
        world.sent.setdefault(key, deque()).append(message)
        return message

    def irecv(self, x: Any, source: int, tag: int, collective: int) -> Message:
        """Take a message that is there, or ask for it."""
        world = self.world
        receive = Message(x, source, self.rank, tag, x.nbytes)
        key = (self.context, collective, self.rank, source, tag)
        message = self._sent(key)
        if message is not None:
            _deliver(message, receive)
            receive.done = True
            message.finish(world)
            return receive
        receive.order = world.arrivals = world.arrivals + 1
        world.asked.setdefault(key, deque()).append(receive)
        return receive

    def wait(self, pendings: Sequence[Message]) -> None:
        """Suspend the rank until all are done."""
        for pending in pendings:
            while not pending.done:
                pending.waiter = greenlet.getcurrent()
                self.world.block(lambda message=pending: self._told(message))

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int, collective: int) -> None:
        """Send and receive at the same time."""
        receive = self.irecv(into, source, tag, collective)
        self.wait((receive, self.isend(x, to, tag, collective)))

    def test(self, pending: Message) -> bool:
        """Tell whether one is done."""
        return pending.done

    def exchange(self, value: Any) -> list[Any]:
        """Give one value, get every member's."""
        told = self._round().meet(self, value, "an exchange")
        return list(told)

    def agree(self, call: Call) -> None:
        """Compare the call with the first member's; nobody waits."""
        self._round().compare(self, call)

    def sub(self, members: Sequence[int] | None, context: int) -> LocalWire | None:
        """Make the wire of a sub-communicator."""
        if members is None:
            return None
        return type(self)(self.world, [self.group[m] for m in members], list(members).index(self.rank), context)

    def free(self) -> None:
        """Nothing is held."""

    def _round(self) -> Round:
        self.round += 1
        key = (self.context, self.round)
        return self.world.rounds.setdefault(key, Round(key, self.size))

    def _asked(self, key: tuple) -> Message | None:
        return self._first(self.world.asked, [key, (*key[:3], ANY, key[4]), (*key[:4], ANY), (*key[:3], ANY, ANY)])

    def _sent(self, key: tuple) -> Message | None:
        sent = self.world.sent
        if key[3] != ANY and key[4] != ANY:
            return self._first(sent, [key])
        return self._first(
            sent, [k for k in sent if k[:3] == key[:3] and key[3] in (ANY, k[3]) and key[4] in (ANY, k[4])]
        )

    @staticmethod
    def _first(queues: dict[tuple, deque[Message]], keys: Sequence[tuple]) -> Message | None:
        found = [key for key in keys if key in queues]
        if not found:
            return None
        key = min(found, key=lambda k: queues[k][0].order) if len(found) > 1 else found[0]
        message = queues[key].popleft()
        if not queues[key]:
            del queues[key]
        return message

    def _told(self, message: Message) -> str:
        verb, peer = ("a message from", message.source) if message.to == self.rank else ("its send to", message.to)
        who = "any rank" if peer == ANY else f"rank {self.group[peer]}"
        return f"{verb} {who} ({message.nbytes} bytes, tag {message.tag})"


class DryWire(LocalWire):
    """Messages without bytes: nobody waits for a buffer, only for values that are told (`exchange`)."""

    dry = True
    _done = Message(None, 0, 0, 0, 0)
    _done.done = True

    def isend(self, x: Any, to: int, tag: int, collective: int) -> Message:
        """Do nothing: there are no bytes."""
        return self._done

    def irecv(self, x: Any, source: int, tag: int, collective: int) -> Message:
        """Do nothing: there are no bytes."""
        return self._done

    def wait(self, pendings: Sequence[Message]) -> None:
        """Return at once."""

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int, collective: int) -> None:
        """Do nothing: there are no bytes."""


class Round:
    """One control exchange of a communicator: values given so far, and who waits for the rest."""

    def __init__(self, key: tuple, size: int) -> None:
        self.key = key
        self.values: dict[int, Any] = {}
        self.size = size
        self.waiters: list[greenlet.greenlet] = []
        self.failure: MismatchError | None = None

    def meet(self, wire: LocalWire, value: Any, what: str) -> list[Any]:
        """Give a value and wait for all others'."""
        self.values[wire.rank] = value
        if len(self.values) == self.size:
            wire.world.ready.extend(self.waiters)
            wire.world.rounds.pop(self.key, None)
        while len(self.values) < self.size:
            self.waiters.append(greenlet.getcurrent())
            wire.world.block(lambda: f"{what} with ranks {self._missing(wire)}")
        return [self.values[rank] for rank in range(self.size)]

    def compare(self, wire: LocalWire, call: Call) -> None:
        """Compare a call with the first one that was made; raise MismatchError that names both."""
        self.values[wire.rank] = call
        first = min(self.values)
        if isinstance(self.values[first], Call):
            known: Call = self.values[first]
            if (known.what, known.terms) != (call.what, call.terms):
                compare({wire.group[first]: known, wire.group[wire.rank]: call})
        if len(self.values) == self.size:
            wire.world.rounds.pop(self.key, None)

    def _missing(self, wire: LocalWire) -> list[int]:
        return [wire.group[r] for r in range(self.size) if r not in self.values][:8]


def _deliver(message: Message, receive: Message) -> None:
    if message.nbytes > receive.nbytes:
        raise MismatchError(
            f"message from rank {message.source} to rank {message.to}, tag {message.tag}: a buffer of at least "
            f"{message.nbytes} bytes is expected, got {receive.nbytes}; receive into a buffer of the sender's size"
        )
    source, target = message.data, receive.data
    if source.nbytes == target.nbytes and source.dtype == target.dtype:
        np.copyto(target.reshape(-1), source.reshape(-1))
    else:
        target.reshape(-1).view(np.uint8)[: source.nbytes] = source.reshape(-1).view(np.uint8)
    receive.source, receive.tag, receive.nbytes = message.source, message.tag, message.nbytes


def run_local(program: Callable[[Comm], Any], ranks: int, **header: Any) -> tuple[list[Any], Trace]:
    """Run program(comm) on `ranks` ranks in this process; return their results and the trace."""
    return _run(program, ranks, False, header)


def run_dry(program: Callable[[Comm], Any], ranks: int, **header: Any) -> tuple[list[Any], Trace]:
    """Run program(comm) without bytes; return the ranks' results and the trace."""
    return _run(program, ranks, True, header)


def _run(program: Callable[[Comm], Any], ranks: int, dry: bool, header: dict) -> tuple[list[Any], Trace]:
    world, tables = World(ranks, dry), Tables()
    logs = [Log(rank, tables) for rank in range(ranks)]
    comms = [world_comm(world, log) for log in logs]
    results = world.run(lambda rank: program(comms[rank]))
    return results, merge([(bytes(log.data), tables) for log in logs], header)


def world_comm(world: World, log: Log) -> Comm:
    """Return the communicator of all ranks, as rank `log.rank` sees it."""
    wire = (DryWire if world.dry else LocalWire)(world, range(world.size), log.rank, 0)
    return Comm(wire, log, range(world.size))
