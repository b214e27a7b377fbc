"""Ranks of one process whose every message is watched: what it carried, where it stands in the source, its step.

Every send waits for its receive, so that a program that lives on buffering shows its deadlock. Memory that
the communicator hands out is filled with a value that nobody put in.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

from emu.comm.communicator import Comm
from emu.comm.local import LocalWire, Message
from emu.comm.merging import merge
from emu.comm.recording import Log, Tables
from emu.comm.sites import told
from emu.comm.world import World
from emu.errors import EmuError, RankError
from emu.trace import Trace
from emu.verify.faced import FacedComm

UNSET = -987654321.0  # in memory that nobody has written


@dataclass(frozen=True)
class Delivery:
    """A message that arrived. Its number counts from 1, in the order of arrival; its step, in one-port rounds."""

    number: int
    source: int
    to: int
    step: int
    sent_at: str
    received_at: str
    payload: np.ndarray
    changed: bool  # the sender wrote into the buffer before the message had left
    knows: frozenset[int]  # the ranks that its sender had heard of, directly or not

    def __str__(self) -> str:
        where = f"sent at {self.sent_at}, received at {self.received_at}"
        return f"message {self.number} (step {self.step}) from rank {self.source} to rank {self.to} ({where})"


@dataclass(frozen=True)
class Posted:
    """A send when it was posted: its data, its sender's step, and the ranks that the sender had heard of."""

    data: np.ndarray
    step: int
    knows: frozenset[int]


@dataclass(frozen=True)
class State:
    """What a rank's result buffer held when it next called the communicator after `message` (0: none yet)."""

    message: int
    held: np.ndarray


@dataclass(frozen=True)
class Waiting:
    """What a rank waits for in a deadlock: a message from `peer`, or `peer` to take one."""

    peer: int
    receives: bool
    at: str


@dataclass
class Watched:
    """Everything that was seen of one run."""

    size: int
    knows: list[set[int]]  # for each rank, the ranks that it has heard of in the end
    deliveries: list[Delivery] = field(default_factory=list)
    states: list[list[State]] = field(default_factory=list)
    results: list[np.ndarray | None] = field(default_factory=list)
    returned: list[Any] = field(default_factory=list)  # what the submission returned, though nobody asked for it
    waiting: dict[int, list[Waiting]] = field(default_factory=dict)
    left_over: list[str] = field(default_factory=list)
    error: str = ""
    trace: Trace | None = None

    @property
    def steps(self) -> int:
        """Rounds in which each rank sends and receives one message at most."""
        return max((delivery.step for delivery in self.deliveries), default=0)


class WatchedWorld(World):
    """The ranks, and what is seen of them. `buffers[rank]` is where a rank's result is expected."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.seen = Watched(size, [{rank} for rank in range(size)], states=[[] for _ in range(size)])
        self.buffers: list[np.ndarray | None] = [None] * size
        self.pending: dict[int, tuple[Sequence[int], Sequence[Message]]] = {}  # rank -> its group, what it waits for
        self.numbers: dict[Message, int] = {}  # receive -> number of its delivery
        self.posted: dict[Message, Posted] = {}
        self.outgoing: dict[int, Posted] = {}  # a rank's latest send
        self.latest = [0] * size  # number of the last delivery that each rank waited for
        self.heard, self.sent_in, self.got_in = [0] * size, [0] * size, [0] * size  # steps

    def note(self, rank: int) -> None:
        """Keep what the rank's result buffer holds now."""
        buffer = self.buffers[rank]
        if buffer is not None:
            self.seen.states[rank].append(State(self.latest[rank], buffer.copy()))

    def deliver(self, source: int, to: int, message: Message, receive: Message) -> None:
        """Keep what a message carries on its arrival."""
        posted = self.posted.pop(message) if message in self.posted else self.outgoing[source]
        step = 1 + max(posted.step, self.sent_in[source], self.got_in[to])
        self.sent_in[source] = self.got_in[to] = step
        now = message.data.reshape(-1)
        changed = posted.data.tobytes() != now.tobytes()
        number = len(self.seen.deliveries) + 1
        self.numbers[receive] = number
        sites = told(message.site), told(receive.site)
        self.seen.deliveries.append(Delivery(number, source, to, step, *sites, now.copy(), changed, posted.knows))

    def describe(self) -> str:
        """Tell who waits for whom, and keep it."""
        frames = {self.ranks[who]: _waits_at(who.gr_frame) for who in self.waiting}
        for rank, (group, messages) in self.pending.items():
            at = frames.get(rank, "an unknown place")
            self.seen.waiting[rank] = [
                Waiting(group[m.source], True, at) if group[m.to] == rank else Waiting(group[m.to], False, at)
                for m in messages
                if not m.done
            ]
        return super().describe()


class WatchedWire(LocalWire):
    """A wire that tells its world what passes. Only the ranks of the whole world have one."""

    world: WatchedWorld

    def isend(
        self, x: Any, to: int, tag: int, collective: int, kind: int | None = None, rendezvous: bool = True
    ) -> Any:
        """Send without buffering."""
        world, me = self.world, self.group[self.rank]
        world.note(me)
        world.outgoing[me] = Posted(x.reshape(-1).copy(), world.heard[me], frozenset(world.seen.knows[me]))
        message = super().isend(x, to, tag, collective, kind, rendezvous=True)
        if not message.done:
            world.posted[message] = world.outgoing[me]
        return message

    def irecv(self, x: Any, source: int, tag: int, collective: int, kind: int | None = None, exact: bool = True) -> Any:
        """Receive."""
        self.world.note(self.group[self.rank])
        return super().irecv(x, source, tag, collective, kind, exact)

    def wait(self, pendings: Sequence[Message]) -> None:
        """Wait, and note which messages have come."""
        world, me = self.world, self.group[self.rank]
        world.note(me)
        world.pending[me] = self.group, pendings
        super().wait(pendings)
        world.pending.pop(me)
        for pending in pendings:
            number = world.numbers.pop(pending, 0)
            if number:
                world.latest[me] = max(world.latest[me], number)
                delivery = world.seen.deliveries[number - 1]
                world.heard[me] = max(world.heard[me], delivery.step)
                world.seen.knows[me] |= delivery.knows

    def _deliver(self, message: Message, receive: Message, collective: int) -> None:
        super()._deliver(message, receive, collective)
        source, to = self.group[message.source], self.group[receive.to]
        self.world.deliver(source, to, message, receive)


class WatchedComm(FacedComm):
    """A communicator whose scratch memory holds what nobody put in."""

    def empty(self, size: int, dtype: Any, like: Any = None) -> Any:
        """Return scratch that is not zero by luck."""
        made = super().empty(size, dtype, like)
        made.fill(UNSET if made.dtype.kind == "f" else 113)
        return made


def watch(program: Callable[[Comm, Callable[[np.ndarray], None]], np.ndarray | None], ranks: int) -> Watched:
    """Run program(comm, mark) on every rank; `mark(buffer)` names the rank's result buffer, which it returns.

    What goes wrong is not raised: it stands in `error`, and for a deadlock in `waiting`.
    """
    world, tables = WatchedWorld(ranks), Tables()
    logs = [Log(rank, tables) for rank in range(ranks)]
    comms = [WatchedComm(WatchedWire(world, range(ranks), log.rank, 0), log, range(ranks)) for log in logs]
    seen = world.seen

    def start(rank: int) -> np.ndarray | None:
        def mark(buffer: np.ndarray) -> None:
            world.buffers[rank] = buffer
            world.note(rank)

        try:
            result = program(comms[rank], mark)
        except EmuError:
            raise
        except Exception as error:
            raise RankError(f"rank {rank}: {type(error).__name__}: {error} (at {_raised_at(error)})") from error
        world.note(rank)
        return result

    try:
        seen.results = world.run(start)
        seen.left_over = _left_over(world)
        seen.trace = merge([(bytes(log.data), tables) for log in logs], {})
    except EmuError as error:
        seen.error = str(error)
    return seen


def _waits_at(frame: FrameType | None) -> str:
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("emu.comm", "emu.face", "emu.verify")):
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _raised_at(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/emu/" not in frame.filename.replace(os.sep, "/")] or list(frames)
    return f"{os.path.basename(own[-1].filename)}:{own[-1].lineno}"


def _left_over(world: WatchedWorld) -> list[str]:
    sends = [m for queue in world.sent.values() for m in queue]
    receives = [m for queue in world.asked.values() for m in queue]
    lines = [f"rank {m.source} sent to rank {m.to} at {told(m.site)}, and nobody received it" for m in sends]
    return lines + [
        f"rank {m.to} asked for a message from rank {m.source} at {told(m.site)}, and nobody sent it" for m in receives
    ]
