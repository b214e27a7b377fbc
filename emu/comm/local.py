"""Every rank a coroutine in one process: LocalWire carries bytes, DryWire carries none. No MPI."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import greenlet
import numpy as np

from emu.comm.communicator import Comm
from emu.comm.merging import merge
from emu.comm.recording import Log, Tables
from emu.comm.rounds import Round
from emu.comm.sites import Site, told
from emu.comm.wire import KINDS, OTHER, Call, kind_name
from emu.comm.world import World
from emu.errors import MismatchError
from emu.trace import ANY, Trace

_BESIDE = 1 << 40  # contexts of messages beside the program; only this process sees them
EAGER_BYTES = 65536  # up to here a send is buffered, as MPI libraries do; above, it waits for its receive


class Message:
    """A send or receive of this process. `waiter` is the coroutine that waits for it."""

    __slots__ = ("data", "source", "tag", "nbytes", "done", "waiter", "order", "to", "kind", "exact", "site", "held")

    def __init__(self, data: Any, source: int, to: int, tag: int, nbytes: int, kind: int, site: Site | None) -> None:
        self.data = data
        self.source = source
        self.to = to
        self.tag = tag
        self.nbytes = nbytes
        self.kind = kind
        self.site = site
        self.exact = True
        self.done = False
        self.held = False  # a receive whose message the engine has yet to choose
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
        self.place, self.group = world.place(context, tuple(group))
        self.rank = rank
        self.size = len(group)
        self.context = context
        self.round = 0
        self.held: list[Message] = []  # receives whose message the engine has yet to choose
        self.sites: deque[Site] = deque(maxlen=1)  # of the calls of this rank, the newest last

    def isend(
        self, x: Any, to: int, tag: int, collective: int, kind: int | None = None, rendezvous: bool = False
    ) -> Message:
        """Hand x over if it is asked for; otherwise keep it (a copy, if small)."""
        world = self.world
        message = Message(x, self.rank, to, tag, x.nbytes, KINDS[x.dtype] if kind is None else kind, self._site())
        key = (self.place, collective, to, self.rank, tag)
        receive = self._asked(key)
        if receive is not None:
            self._deliver(message, receive, collective)
            receive.finish(world)
            message.done = True
            return message
        message.order = world.arrivals = world.arrivals + 1
        if x.nbytes <= EAGER_BYTES and not rendezvous:
            message.data = x.copy()
            message.done = True
        world.sent.setdefault(key, deque()).append(message)
        if world.probing:
            world.ready.extend(world.probing.pop(self.group[to], ()))
        return message

    def irecv(
        self, x: Any, source: int, tag: int, collective: int, kind: int | None = None, exact: bool = True
    ) -> Message:
        """Take a message that is there, or ask for it."""
        world = self.world
        receive = Message(x, source, self.rank, tag, x.nbytes, KINDS[x.dtype] if kind is None else kind, self._site())
        receive.exact = exact
        if self.held or (source == ANY and world.holds and not collective):
            receive.held = True
            self.held.append(receive)
            return receive
        return self._post(receive, source, tag, collective)

    def choose(self, receive: Message, source: int, tag: int) -> None:
        """Match a receive that was held back with the next message of this source and tag."""
        receive.held = False
        self.held.remove(receive)
        receive.source, receive.tag = source, tag
        self._post(receive, source, tag, 0)

    def _post(self, receive: Message, source: int, tag: int, collective: int) -> Message:
        world = self.world
        key = (self.place, collective, self.rank, source, tag)
        message = self._sent(key)
        if message is not None:
            self._take(message, receive, collective)
            return receive
        receive.order = world.arrivals = world.arrivals + 1
        world.asked.setdefault(key, deque()).append(receive)
        return receive

    def probe(self, source: int, tag: int, block: bool, take: bool) -> Message | None:
        """Return the first plain message that a receive would get; `take` takes it."""
        world, key = self.world, (self.place, 0, self.rank, source, tag)
        while True:
            message = self._sent(key) if take else self._seen(key)
            if message is not None or not block:
                return message
            world.probing.setdefault(self.group[self.rank], []).append(greenlet.getcurrent())
            world.block(partial(self._told, Message(None, source, self.rank, tag, 0, OTHER, None)))

    def receive_taken(self, x: Any, taken: Message, kind: int | None = None, exact: bool = True) -> Message:
        """Receive into x the message that a probe has taken."""
        receive = Message(
            x, taken.source, self.rank, taken.tag, x.nbytes, KINDS[x.dtype] if kind is None else kind, self._site()
        )
        receive.exact = exact
        self._take(taken, receive, 0)
        return receive

    def wait(self, pendings: Sequence[Message]) -> None:
        """Suspend the rank until all are done."""
        for pending in pendings:
            while not pending.done:
                pending.waiter = greenlet.getcurrent()
                self.world.block(partial(self._told, pending))

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int, collective: int) -> None:
        """Send and receive at the same time."""
        receive = self.irecv(into, source, tag, collective)
        self.wait((receive, self.isend(x, to, tag, collective)))

    def test(self, pending: Message) -> bool:
        """Tell whether one is done, after all others have had their turn."""
        if not pending.done:
            self.world.pause()
        return pending.done

    def wait_any(self, pendings: Sequence[Message]) -> list[int]:
        """Wait until one is done; return the places of all that are."""
        while not any(pending.done for pending in pendings):
            for pending in pendings:
                pending.waiter = greenlet.getcurrent()
            self.world.block(partial(self._told_any, pendings))
            for pending in pendings:
                pending.waiter = None
        return [i for i, pending in enumerate(pendings) if pending.done]

    def exchange(self, value: Any, work: Callable[[list[Any]], Any] = list) -> Any:
        """Give one value, get what `work` makes of every member's; all share it."""
        return self._round().meet(self, value, work)

    def agree(self, call: Call) -> None:
        """Compare the call with the first member's; nobody waits."""
        self._round().compare(self.rank, call, self.world)

    def sub(self, part: int | None, members: Sequence[int], context: int) -> LocalWire | None:
        """Make the wire of a sub-communicator."""
        if part is None:
            return None
        return type(self)(self.world, [self.group[m] for m in members], members.index(self.rank), context)

    def alone(self, context: int) -> LocalWire:
        """Return a wire of this rank alone."""
        return type(self)(self.world, [self.group[self.rank]], 0, context)

    def beside(self) -> LocalWire:
        """Return a wire of the same members whose messages meet no others: for calls that run beside the program."""
        return type(self)(self.world, self.group, self.rank, _BESIDE + self.context)

    def free(self) -> None:
        """Nothing is held."""

    def empty(self, shape: Any, dtype: Any) -> np.ndarray:
        """Return an uninitialised array."""
        return np.empty(shape, dtype)

    def _site(self) -> Site | None:
        return self.sites[-1] if self.sites else None

    def _round(self) -> Round:
        self.round += 1
        key = (self.place, self.round)
        return self.world.rounds.setdefault(key, Round(key, self.group))

    def _take(self, message: Message, receive: Message, collective: int) -> None:
        self._deliver(message, receive, collective)
        receive.done = True
        message.finish(self.world)

    def _asked(self, key: tuple) -> Message | None:
        return _first(self.world.asked, [key, (*key[:3], ANY, key[4]), (*key[:4], ANY), (*key[:3], ANY, ANY)])

    def _sent(self, key: tuple) -> Message | None:
        return _first(self.world.sent, self._candidates(key))

    def _seen(self, key: tuple) -> Message | None:
        queues = self.world.sent
        found = [queues[k][0] for k in self._candidates(key) if k in queues]
        return min(found, key=lambda message: message.order, default=None)

    def _candidates(self, key: tuple) -> list[tuple]:
        if key[3] != ANY and key[4] != ANY:
            return [key]
        return [
            k for k in self.world.sent if k[:3] == key[:3] and key[3] in (ANY, k[3]) and key[4] in (ANY, k[4])
        ]

    def _told(self, message: Message) -> str:
        verb, peer = ("a message from", message.source) if message.to == self.rank else ("its send to", message.to)
        who = "any rank" if peer == ANY else f"rank {self.group[peer]}"
        ended = " (it has ended)" if peer != ANY and self.group[peer] in self.world.ended else ""
        tag = "any tag" if message.tag == ANY else f"tag {message.tag}"
        return f"{verb} {who}{ended} ({message.nbytes} bytes, {tag})"

    def _told_any(self, pendings: Sequence[Message]) -> str:
        return " or ".join(self._told(pending) for pending in pendings)

    def _deliver(self, message: Message, receive: Message, collective: int) -> None:
        """Copy a message into the buffer of its receive. Raise MismatchError if the two do not fit."""
        fits = message.nbytes == receive.nbytes or message.nbytes < receive.nbytes and not receive.exact
        if not fits or (message.kind != receive.kind and not collective):
            raise MismatchError(
                f"message with tag {message.tag}: sender and receiver must agree on size and dtype, got rank "
                f"{self.group[message.source]} sending {message.nbytes} bytes of {kind_name(message.kind)} at "
                f"{told(message.site)}, and rank {self.group[receive.to]} receiving {receive.nbytes} bytes of "
                f"{kind_name(receive.kind)} at {told(receive.site)}; make both the same"
            )
        source, target = message.data, receive.data
        if source.nbytes == target.nbytes and source.dtype == target.dtype:
            np.copyto(target.reshape(-1), source.reshape(-1))
        else:
            target.reshape(-1).view(np.uint8)[: source.nbytes] = source.reshape(-1).view(np.uint8)
        receive.source, receive.tag, receive.nbytes, receive.kind = (
            message.source, message.tag, message.nbytes, message.kind
        )  # fmt: skip


class LocalTurns:
    """Runs coroutines beside a rank's program, in this process."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._waiting: list[greenlet.greenlet] = []

    def spawn(self, work: Callable[[], Any]) -> None:
        """Start a coroutine; it runs when the program next waits."""
        self.world.spawn(work)

    def until(self, done: Callable[[], bool], told: Callable[[], str]) -> None:
        """Suspend the program until done() holds, looked at after each `wake`."""
        while not done():
            self._waiting.append(greenlet.getcurrent())
            self.world.block(told)

    def wake(self) -> None:
        """Tell that a coroutine has got somewhere."""
        self.world.ready.extend(self._waiting)
        self._waiting.clear()

    def step(self) -> None:
        """Let all others run."""
        self.world.pause()


class DryWire(LocalWire):
    """Messages without bytes: nobody waits for a buffer, only for values that are told (`exchange`)."""

    dry = True
    _done = Message(None, 0, 0, 0, 0, OTHER, None)
    _done.done = True

    def isend(
        self, x: Any, to: int, tag: int, collective: int, kind: int | None = None, rendezvous: bool = False
    ) -> Message:
        """Do nothing: there are no bytes."""
        return self._done

    def irecv(
        self, x: Any, source: int, tag: int, collective: int, kind: int | None = None, exact: bool = True
    ) -> Message:
        """Do nothing, unless the engine has to say whose message it is: there are no bytes."""
        if not (source == ANY and self.world.holds and not collective):
            return self._done
        receive = Message(None, source, self.rank, tag, x.nbytes, OTHER, None)
        receive.held = True
        self.held.append(receive)
        return receive

    def choose(self, receive: Message, source: int, tag: int) -> None:
        """Note whose message it is."""
        receive.held, receive.done = False, True
        self.held.remove(receive)
        receive.source, receive.tag = source, tag

    def wait(self, pendings: Sequence[Message]) -> None:
        """Return at once."""

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int, collective: int) -> None:
        """Do nothing: there are no bytes."""


def _first(queues: Mapping[tuple, deque[Message]], keys: Sequence[tuple]) -> Message | None:
    """Take the oldest message of these queues."""
    found = [key for key in keys if key in queues]
    if not found:
        return None
    key = min(found, key=lambda k: queues[k][0].order) if len(found) > 1 else found[0]
    message = queues[key].popleft()
    if not queues[key]:
        del queues[key]  # type: ignore[attr-defined]
    return message


def run_local(program: Callable[[Comm], Any], ranks: int, /, **header: Any) -> tuple[list[Any], Trace]:
    """Run program(comm) on `ranks` ranks in this process; return their results and the trace."""
    return _run(program, ranks, False, header)


def run_dry(program: Callable[[Comm], Any], ranks: int, /, **header: Any) -> tuple[list[Any], Trace]:
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
    wire = (DryWire if world.dry else LocalWire)(world, world.everyone, log.rank, 0)
    return Comm(wire, log, wire.group)
