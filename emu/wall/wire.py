"""WallWire: a wire whose messages take their time. It wraps the wire that moves the bytes.

Bytes move as soon as MPI can; a program sees them when the emulated link has brought them. Nothing here blocks
inside MPI: post, sleep, test, under one lock for all streams of the process.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Sequence
from typing import Any

from emu.comm.wire import Call, Wire
from emu.errors import ConfigError
from emu.trace import ANY, COLLECTIVE, ROW_FORMAT, Op
from emu.wall import frames as F
from emu.wall.lateness import Lateness
from emu.wall.pace import now
from emu.wall.seat import FIRST_PAUSE_S, Seat
from emu.wall.traffic import Traffic

_pack = struct.Struct(ROW_FORMAT).pack
_SEND, _RECV, _WAIT = int(Op.SEND), int(Op.RECV), int(Op.WAIT)
PROBE_S = 1e-3  # between two looks for a message that a probe waits for
KEPT_BYTES = 65536  # up to here a send is copied, so that it ends when its link says so and not when it is received
_STREAM_SHIFT = 20  # collectives on different streams must not meet: the stream stands in their tags' upper bits
_TAG_LIMIT = 1 << _STREAM_SHIFT


class Posted:
    """A message under way. `inner` is the real wire's, None for a receive whose source is not known yet."""

    __slots__ = (
        "inner", "number", "seat", "time_s", "nbytes", "source", "tag", "into", "kept", "done", "form", "moved",
    )  # fmt: skip

    def __init__(self, number: int, seat: Seat, nbytes: int, source: int = -1, tag: int = -1) -> None:
        self.inner: Any = None
        self.number = number  # of the requests of its stream
        self.seat = seat
        self.time_s = seat.time_s  # when it was posted
        self.nbytes = nbytes
        self.source = source
        self.tag = tag
        self.into: Any = None  # where an any-source receive goes; what a copied send sends
        self.form: tuple[int | None, bool] = (None, True)  # kind and exactness of an any-source receive
        self.kept = False  # a copy of the buffer is under way
        self.moved = False  # by MPI
        self.done = False


class WallWire:
    """The members of one communicator, as one stream of one rank sees them."""

    dry = False

    def __init__(
        self, inner: Any, group: Sequence[int], context: int, seat: Seat, traffic: Traffic, lateness: Lateness
    ) -> None:
        self.inner, self.group, self.context = inner, tuple(group), context
        self.seat, self.traffic, self.lateness = seat, traffic, lateness
        self.rank, self.size = inner.rank, inner.size
        self._local = {world: local for local, world in enumerate(self.group)}
        self._rounds = 0
        self._calls = 0
        self._wild = 0  # receives from any source that have not met their message

    @property
    def sites(self) -> Any:
        """Where the program's latest messages stand in its source; for errors."""
        return self.inner.sites

    @sites.setter
    def sites(self, sites: Any) -> None:
        self.inner.sites = sites

    def on(self, seat: Seat) -> WallWire:
        """Return this wire as another stream of the rank sees it."""
        return WallWire(self.inner, self.group, self.context, seat, self.traffic, self.lateness)

    def empty(self, shape: Any, dtype: Any) -> Any:
        """Return an uninitialised array in memory that messages leave fastest."""
        return self.inner.empty(shape, dtype)

    # Messages

    def isend(
        self, x: Any, to: int, tag: int, collective: int, kind: int | None = None, rendezvous: bool = False
    ) -> Posted:
        """Start to send."""
        posted = Posted(self._say(_SEND, self.group[to], tag, x.nbytes, collective), self.seat, x.nbytes)
        if x.nbytes <= KEPT_BYTES and not rendezvous:
            posted.kept = True
            posted.into = x = x.copy()
        with self.traffic.lock:
            posted.inner = self.inner.isend(x, to, self._wire_tag(tag, collective), collective, kind, rendezvous)
            self.traffic.add(self.inner, posted)
        return posted

    def irecv(
        self, x: Any, source: int, tag: int, collective: int, kind: int | None = None, exact: bool = True
    ) -> Posted:
        """Start to receive. From any source, the engine decides whose message it is, and then it is received."""
        peer = ANY if source == ANY else self.group[source]
        posted = Posted(self._say(_RECV, peer, tag, x.nbytes, collective), self.seat, x.nbytes, source, tag)
        if not collective and (source < 0 or tag < 0 or self._wild):
            posted.into, posted.form = x, (kind, exact)
            self._wild += 1
            return posted
        with self.traffic.lock:
            posted.inner = self.inner.irecv(x, source, self._wire_tag(tag, collective), collective, kind, exact)
            self.traffic.add(self.inner, posted)
        return posted

    def probe(self, source: int, tag: int, block: bool, take: bool) -> Any:
        """Return the message that a receive would get by now (`block`: wait for one), None if there is none."""
        world = ANY if source == ANY else self.group[source]
        while True:
            found = self._look((), 0, (world, tag, self.context), self.seat.stamp())
            if found.sources:
                return self._taken(self._local[found.sources[0]], found.tags[0], take)
            if not block:
                return None
            self.seat.rest(PROBE_S)

    def receive_taken(self, x: Any, taken: Any, kind: int | None = None, exact: bool = True) -> Posted:
        """Start to receive into x the message that a probe has taken."""
        peer = self.group[taken.source]
        posted = Posted(self._say(_RECV, peer, taken.tag, x.nbytes, 0), self.seat, x.nbytes, taken.source, taken.tag)
        with self.traffic.lock:
            posted.inner = self.inner.receive_taken(x, taken, kind, exact)
            self.traffic.add(self.inner, posted)
        return posted

    def test(self, pending: Posted) -> bool:
        """Tell whether one is done by now."""
        if not pending.done and self._look((pending,), 0, None, self.seat.stamp()).done:
            self.wait((pending,))
        return pending.done

    def wait_any(self, pendings: Sequence[Posted]) -> list[int]:
        """Wait until one is done; return the places of all that are."""
        places = [i for i, p in enumerate(pendings) if p.done]
        if not places:
            places = list(self._look(pendings, 1, None, 0.0).done)
            self.wait([pendings[i] for i in places])
        return places

    def now_s(self) -> float:
        """Return the emulated time. The program's own time counts, as it has looked at the clock."""
        return self._look((), 0, None, self.seat.stamp()).time_s

    def _look(self, pendings: Sequence[Posted], need: int, probe: Any, stamp: float) -> Any:
        seat = self.seat
        seat.settle()
        requests = tuple(seat.posted - p.number for p in pendings)
        seat.say(F.LOOK, stamp, payload=pickle.dumps((requests, need, probe)))
        seat.flush()
        found = pickle.loads(seat.answer().payload)
        seat.sleep_until(seat.moment(found.time_s))
        return found

    def _taken(self, source: int, tag: int, take: bool) -> Any:
        """Return what MPI knows of a message whose announcement has come by the emulated links."""
        while True:
            with self.traffic.lock:
                taken = self.inner.probe(source, tag, False, take)
            if taken is not None:
                return taken
            self.seat.rest(FIRST_PAUSE_S)

    def wait(self, pendings: Sequence[Posted]) -> None:
        """Return when all are done and their time has come."""
        pendings = [p for p in pendings if not p.done]
        if not pendings:
            return
        seat = self.seat
        if any(p.seat is not seat for p in pendings):
            raise ConfigError("wait: a request of the same stream is expected; wait for it on the stream that made it")
        seat.settle()
        wild = [p for p in pendings if p.inner is None]
        seat.say_rows(self._wait_rows(pendings))
        seat.ask(pickle.dumps([p.number for p in wild]) if wild else b"")
        told = seat.answer()
        if wild:
            self._meet(wild, pickle.loads(told.payload))
        due = seat.moment(told.time_s)
        seat.wait_until_moved(lambda: all(p.moved or p.kept for p in pendings), due)
        seat.sleep_until(due)
        self._end(pendings, told.time_s, due)

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int, collective: int) -> None:
        """Send and receive at the same time."""
        self.wait((self.irecv(into, source, tag, collective), self.isend(x, to, tag, collective)))

    def _say(self, op: int, peer: int, tag: int, nbytes: int, collective: int) -> int:
        seat = self.seat
        seat.settle()
        flag = COLLECTIVE if collective else 0
        stamp = 0.0 if collective else seat.stamp()
        seat.say_rows(_pack(op, seat.stream, flag, peer, tag, self.context, nbytes, 0.0), stamp)
        number = seat.posted
        seat.posted = number + 1
        return number

    def _wait_rows(self, pendings: Sequence[Posted]) -> bytes:
        """Return a wait for each run of requests without a gap."""
        numbers = sorted(p.number for p in pendings)
        rows, first = b"", 0
        for i in range(1, len(numbers) + 1):
            if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
                back = self.seat.posted - numbers[first]
                rows += _pack(_WAIT, self.seat.stream, 0, back, i - first, 0, 0, 0.0)
                first = i
        return rows

    def _wire_tag(self, tag: int, collective: int) -> int:
        if not collective:
            return tag
        if not 0 <= tag < _TAG_LIMIT:
            raise ConfigError(f"tag of a collective: at least 0 and below {_TAG_LIMIT} is expected, got {tag}")
        return tag | self.seat.stream << _STREAM_SHIFT

    def _meet(self, wild: Sequence[Posted], peers: Sequence[tuple[int, int]]) -> None:
        """Receive the messages that the engine has chosen."""
        for posted, (source, tag) in zip(wild, peers, strict=True):
            posted.source, posted.tag = self._local[source], tag
            with self.traffic.lock:
                posted.inner = self.inner.irecv(posted.into, posted.source, tag, 0, *posted.form)
                self.traffic.add(self.inner, posted)
            self._wild -= 1

    def _end(self, pendings: Sequence[Posted], time_s: float, due: float) -> None:
        released = now()
        for posted in pendings:
            posted.done = True
            if not posted.kept and getattr(posted.inner, "source", -1) >= 0:
                posted.source, posted.tag, posted.nbytes = posted.inner.source, posted.inner.tag, posted.inner.nbytes
            self.lateness.message(time_s - posted.time_s, released - due, self.seat.dilation)
            if self.seat.tells_late:
                own = int(F.OWN_UNIT * (time_s - posted.time_s))
                self.seat.say(F.LATE, released - due, number=own)

    # Control

    def exchange(self, value: Any, work: Callable[[list[Any]], Any] = list) -> Any:
        """Give one value, get what `work` makes of every member's; all go on together."""
        self._rounds += 1
        return work(self.seat.exchange((self.context, self.seat.stream, self._rounds), self.group, value))

    def agree(self, call: Call) -> None:
        """Have the referee compare the call with the others'; nobody waits for that."""
        self._calls += 1
        seat = self.seat
        seat.settle()
        key = (self.context, seat.stream, self._calls)
        seat.say(F.ENTER, seat.stamp(), payload=pickle.dumps((key, self.size, call)))

    def enter(self) -> None:
        """Tell when the program has come to a collective that is not compared."""
        self.seat.settle()
        self.seat.say(F.ENTER, self.seat.stamp())

    def sub(self, part: int | None, members: Sequence[int], context: int) -> WallWire | None:
        """Make the wire of a sub-communicator."""
        with self.traffic.lock:
            inner = self.inner.sub(part, members, context)
        if inner is None:
            return None
        group = [self.group[m] for m in members]
        return WallWire(inner, group, context, self.seat, self.traffic, self.lateness)

    def alone(self, context: int) -> WallWire:
        """Return a wire of this rank alone."""
        me = (self.group[self.rank],)
        return WallWire(self.inner.alone(context), me, context, self.seat, self.traffic, self.lateness)

    def beside(self) -> WallWire:
        """Return a wire of the same members whose messages meet no others."""
        with self.traffic.lock:
            inner = self.inner.beside()
        return WallWire(inner, self.group, self.context, self.seat, self.traffic, self.lateness)

    def free(self) -> None:
        """Give back what the wire holds."""
        with self.traffic.lock:
            self.inner.free()


def _check(wire: WallWire) -> Wire:
    """WallWire is a Wire; mypy checks it here."""
    return wire
