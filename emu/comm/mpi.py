"""One process a GPU: MpiWire carries bytes over MPI. The only floor that imports mpi4py.

Buffers travel as bytes, so that any dtype and length works; collectives of MPI itself serve control only
(agreement, splitting), never the data. Messages of collectives have an MPI communicator of their own, so a
program's any-tag receive can not catch them.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import greenlet
import numpy as np
from mpi4py import MPI

from emu.comm.recording import Tables
from emu.comm.sites import Site, told
from emu.comm.watch import Watch
from emu.comm.wire import KINDS, Call, compare, kind_name
from emu.errors import MismatchError

MAX_MESSAGE_BYTES = 1 << 30  # longer ones are cut: counts of some MPI libraries end at 2**31
KIND_BITS = 5  # the low bits of a plain message's MPI tag tell what it is made of
_KINDS = (1 << KIND_BITS) - 1
_BYTE = MPI.BYTE
_NATIVE = "fiub"  # dtype kinds that mpi4py can take the memory of


class Parts:
    """A plain receive, or a message cut into several; done when all are. It tells what has come."""

    __slots__ = ("requests", "source", "tag", "nbytes", "kind", "exact", "wire", "done", "held", "into")

    def __init__(self, wire: MpiWire, requests: list[MPI.Request], nbytes: int, kind: int, exact: bool = True,
                 source: int = -1, tag: int = -1) -> None:  # fmt: skip
        self.wire = wire
        self.requests = requests
        self.source, self.tag = source, tag  # as asked for, until it has come
        self.nbytes = nbytes
        self.kind = kind  # -1: not to be checked (a send, a collective's message)
        self.exact = exact
        self.done = False
        self.held = False  # a receive whose message the engine has yet to choose
        self.into: Any = None

    def finish(self, statuses: Sequence[MPI.Status]) -> None:
        """Take in what has come. Raise MismatchError if it is not what the receive is for."""
        self.done = True
        if self.kind < 0:
            return
        tag = statuses[0].Get_tag()
        self.source, self.tag = statuses[0].Get_source(), tag >> KIND_BITS
        asked, expected = self.nbytes, self.kind
        self.nbytes = sum(status.Get_count(_BYTE) for status in statuses)
        self.kind = tag & _KINDS
        if self.kind != expected or (self.exact and self.nbytes != asked):
            raise self.wire.mismatch(self.source, self.tag, self.nbytes, self.kind, asked, expected)


@dataclass
class Taken:
    """A message that a probe has found; `message` is MPI's handle on it, if it was taken."""

    message: Any
    source: int
    tag: int
    nbytes: int
    kind: int


class MpiWire:
    """The members of one communicator, each a process."""

    dry = False

    def __init__(self, plain: MPI.Comm, collective: MPI.Comm, watch: Watch, group: Sequence[int]) -> None:
        self._comms = (plain, collective)
        self.watch = watch
        self.group = tuple(group)
        self.rank = plain.rank
        self.size = plain.size
        self.sites: deque[Site] = deque(maxlen=1)  # of the calls of this rank, the newest last
        self.held: list[Parts] = []  # receives whose message the engine has yet to choose
        self.later = Agreements(plain, self.group)
        self.latest: Call | None = None
        self.context = 0
        self.max_message_bytes = MAX_MESSAGE_BYTES
        self._status = MPI.Status()

    def isend(
        self, x: Any, to: int, tag: int, collective: int, kind: int | None = None, rendezvous: bool = False
    ) -> Any:
        """Start to send."""
        n = x.nbytes
        if not collective:
            tag = tag << KIND_BITS | (KINDS[x.dtype] if kind is None else kind)
        if x.__class__ is not np.ndarray or x.dtype.kind not in _NATIVE:
            x = _memory(x)
        comm = self._comms[collective]
        if n > self.max_message_bytes:
            return self._cut(comm.Isend, x, to, tag, -1)
        return (comm.Issend if rendezvous else comm.Isend)((x, n, _BYTE), to, tag)

    def irecv(
        self, x: Any, source: int, tag: int, collective: int, kind: int | None = None, exact: bool = True
    ) -> Any:
        """Start to receive."""
        n = x.nbytes
        if not collective:
            kind = KINDS[x.dtype] if kind is None else kind
            asked = source, tag
            if self.held or (source < 0 and self.watch.holds):
                return self._hold(x, source, tag, kind, exact)
            tag = tag << KIND_BITS | kind if tag >= 0 else MPI.ANY_TAG
            source = source if source >= 0 else MPI.ANY_SOURCE
        if x.__class__ is not np.ndarray or x.dtype.kind not in _NATIVE:
            x = _memory(x)
        comm = self._comms[collective]
        if n > self.max_message_bytes:
            return self._cut(comm.Irecv, x, source, tag, -1 if collective or kind is None else kind, exact)
        request = comm.Irecv((x, n, _BYTE), source, tag)
        return request if collective else Parts(self, [request], n, kind, exact, *asked)  # type: ignore[arg-type]

    def _hold(self, x: Any, source: int, tag: int, kind: int, exact: bool) -> Parts:
        """Keep a receive back until the engine has chosen its message."""
        receive = Parts(self, [], x.nbytes, kind, exact)
        receive.source, receive.tag, receive.into, receive.held = source, tag, x, True
        self.held.append(receive)
        return receive

    def choose(self, receive: Parts, source: int, tag: int) -> None:
        """Match a receive that was held back with the next message of this source and tag."""
        self.held.remove(receive)
        held, self.held = self.held, []
        receive.held = False
        posted = self.irecv(receive.into, source, tag, 0, receive.kind, receive.exact)
        self.held = held
        receive.requests = posted.requests

    def probe(self, source: int, tag: int, block: bool, take: bool) -> Taken | None:
        """Return the first plain message that a receive would get; `take` takes it."""
        self.watch.begin((self, "a message from", source))
        status = MPI.Status()
        found = self._probe(source if source >= 0 else MPI.ANY_SOURCE, tag, block, take, status)
        self.watch.waiting = None
        if found is None:
            return None
        kind = status.Get_tag() & _KINDS
        return Taken(found, status.Get_source(), status.Get_tag() >> KIND_BITS, status.Get_count(_BYTE), kind)

    def _probe(self, source: int, tag: int, block: bool, take: bool, status: MPI.Status) -> Any:
        """Probe for a message of any kind with this tag; return it, or True if it is not to be taken."""
        comm = self._comms[0]
        tags = [MPI.ANY_TAG] if tag < 0 else [tag << KIND_BITS | kind for kind in range(_KINDS + 1)]
        pause = 0.0
        while True:
            for each in tags:
                found = comm.Improbe(source, each, status) if take else comm.Iprobe(source, each, status)
                if found:
                    return found
            if not block:
                return None
            time.sleep(pause)
            pause = min(pause + 1e-5, 1e-3)

    def receive_taken(self, x: Any, taken: Taken, kind: int | None = None, exact: bool = True) -> Parts:
        """Receive into x the message that a probe has taken."""
        kind, n = KINDS[x.dtype] if kind is None else kind, x.nbytes
        return Parts(self, [taken.message.Irecv((_memory(x) if n else x, n, _BYTE))], n, kind, exact)

    def wait(self, pendings: Sequence[Any]) -> None:
        """Return when all are done. Raise MismatchError for a message that does not fit its receive."""
        watch = self.watch
        watch.count += 1
        watch.waiting = (self, "messages", pendings)
        if watch.beside is not None:
            self._wait_in_turns(pendings, watch.beside)
            return
        try:
            MPI.Request.Waitall(pendings)  # type: ignore[arg-type]
        except (TypeError, AttributeError):
            self._wait_parts(pendings)
        except MPI.Exception as error:
            raise self._misfit(error) from None
        watch.waiting = None

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int, collective: int) -> None:
        """Send and receive at the same time."""
        n_out, n_in = x.nbytes, into.nbytes
        if n_out > self.max_message_bytes or n_in > self.max_message_bytes or source < 0 or tag < 0 or (
                self.watch.beside is not None):
            self.wait((self.irecv(into, source, tag, collective), self.isend(x, to, tag, collective)))
            return
        if collective:
            tag_out = tag_in = tag
        else:
            tag_out, tag_in = tag << KIND_BITS | KINDS[x.dtype], tag << KIND_BITS | KINDS[into.dtype]
        if x.__class__ is not np.ndarray or x.dtype.kind not in _NATIVE:
            x, into = _memory(x), _memory(into)
        watch, status = self.watch, self._status
        watch.count += 1
        watch.waiting = (self, "a message from", source)
        try:
            self._comms[collective].Sendrecv(
                (x, n_out, _BYTE), to, tag_out, (into, n_in, _BYTE), source, tag_in, status
            )
        except MPI.Exception as error:
            raise self._misfit(error) from None
        watch.waiting = None
        if status.Get_count(_BYTE) != n_in:
            kind = tag_in & _KINDS
            raise self.mismatch(source, tag, status.Get_count(_BYTE), kind, n_in, kind)

    def test(self, pending: Any) -> bool:
        """Tell whether one is done."""
        self.watch.count += 1
        if not isinstance(pending, Parts):
            return pending.Test()
        if not pending.done:
            statuses = [MPI.Status() for _ in pending.requests]
            try:
                if not MPI.Request.Testall(pending.requests, statuses):
                    return False
            except MPI.Exception as error:
                raise self._misfit(error) from None
            pending.finish(statuses)
        return True

    def wait_any(self, pendings: Sequence[Any]) -> list[int]:
        """Wait until one is done; return the places of all that are."""
        self.watch.begin((self, "messages", pendings))
        pause = 0.0
        while True:
            done = [i for i, pending in enumerate(pendings) if self.test(pending)]
            if done:
                self.watch.waiting = None
                return done
            time.sleep(pause)
            pause = min(pause + 1e-6, 1e-3)

    def exchange(self, value: Any, work: Callable[[list[Any]], Any] = list) -> Any:
        """Give one value, get what `work` makes of every member's."""
        self.watch.begin((self, "the other ranks to make, split or duplicate a communicator", None))
        told = self._comms[0].allgather(value)
        self.watch.waiting = None
        return work(told)

    def agree(self, call: Call) -> None:
        """Raise MismatchError on every rank if they do not all make the same call.

        Beside an engine, ranks must not wait for each other here: what the others call is looked at later.
        """
        self.latest = call
        if self.watch.holds:
            self.later.add(call)
        else:
            self.finish_agree(self.start_agree(call))

    def start_agree(self, call: Call) -> tuple[Call, Any, Any]:
        """Tell the others which call this rank makes."""
        all_of = np.empty(self.size, dtype=np.int64)
        mine = np.array([hash_of(call)], dtype=np.int64)
        return call, all_of, (mine, self._comms[0].Iallgather(mine, all_of))

    def finish_agree(self, started: tuple[Call, Any, Any]) -> None:
        """Compare what the others have told."""
        call, all_of, (_, request) = started
        self.watch.begin((self, "agreement", call))
        if self.watch.beside is not None:
            self._wait_in_turns((request,), self.watch.beside)
        else:
            request.Wait()
        self.watch.waiting = None
        if (all_of != all_of[0]).any():
            compare(dict(zip(self.group, self._comms[0].allgather(call), strict=True)))

    def sub(self, part: int | None, members: Sequence[int], context: int) -> MpiWire | None:
        """Make the wire of a sub-communicator."""
        if part is None:
            self._comms[0].Split(MPI.UNDEFINED)
            return None
        plain = self._comms[0].Split(part, members.index(self.rank))
        made = MpiWire(plain, plain.Dup(), self.watch, [self.group[m] for m in members])
        made.max_message_bytes, made.context = self.max_message_bytes, context
        return made

    def alone(self, context: int) -> MpiWire:
        """Return a wire of this rank alone."""
        return MpiWire(MPI.COMM_SELF.Dup(), MPI.COMM_SELF.Dup(), self.watch, [self.group[self.rank]])

    def beside(self) -> MpiWire:
        """Return a wire of the same members whose messages meet no others; MPI makes it while the program goes on."""
        made, request = self._comms[0].Idup()
        return MpiBeside(made, request, self.watch, self.group)

    def free(self) -> None:
        """Give the MPI communicators back."""
        for comm in self._comms:
            comm.Free()

    def mismatch(
        self, source: int, tag: int, nbytes: int, kind: int, asked: int, asked_kind: int
    ) -> MismatchError:
        """Return the error of a message that is not what its receive is for."""
        site = told(self.sites[-1]) if self.sites else "an unknown place"
        return MismatchError(
            f"message with tag {tag}: sender and receiver must agree on size and dtype, got rank "
            f"{self.group[source]} sending {nbytes} bytes of {kind_name(kind)}, and rank {self.group[self.rank]} "
            f"receiving {asked} bytes of {kind_name(asked_kind)}, waited for at {site}; make both the same"
        )

    def misfit_of(self, pendings: Sequence[Any]) -> str | None:
        """Tell of a message that has the source and tag of a receive under way, but is made of something else."""
        for pending in pendings:
            if not isinstance(pending, Parts) or pending.done or pending.kind < 0:
                continue
            if pending.source < 0 or pending.tag < 0:
                continue
            for kind in range(_KINDS + 1):
                status = MPI.Status()
                tag = pending.tag << KIND_BITS | kind
                if kind != pending.kind and self._comms[0].Iprobe(pending.source, tag, status):
                    nbytes = status.Get_count(_BYTE)
                    return str(
                        self.mismatch(pending.source, pending.tag, nbytes, kind, pending.nbytes, pending.kind)
                    )
        return None

    def _cut(
        self, start: Any, x: Any, peer: int, tag: int, kind: int, exact: bool = True
    ) -> Parts:
        data, limit = x.reshape(-1).view(np.uint8), self.max_message_bytes
        parts = [data[i : i + limit] for i in range(0, data.size, limit)]
        return Parts(self, [start((part, part.size, _BYTE), peer, tag) for part in parts], data.size, kind, exact)

    def _wait_parts(self, pendings: Sequence[Any]) -> None:
        requests: list[MPI.Request] = []
        for pending in pendings:
            requests += pending.requests if isinstance(pending, Parts) else [pending]
        statuses = [MPI.Status() for _ in requests]
        try:
            MPI.Request.Waitall(requests, statuses)
        except MPI.Exception as error:
            raise self._misfit(error) from None
        at = 0
        for pending in pendings:
            n = len(pending.requests) if isinstance(pending, Parts) else 1
            if isinstance(pending, Parts) and not pending.done:
                pending.finish(statuses[at : at + n])
            at += n
        self.watch.waiting = None

    def _wait_in_turns(self, pendings: Sequence[Any], turns: MpiTurns) -> None:
        """Let what runs beside the program go on while this waits."""
        turns.until(lambda: all([self.test(pending) for pending in pendings]), lambda: "its messages")
        self.watch.waiting = None

    def _misfit(self, error: MPI.Exception) -> MismatchError:
        site = told(self.sites[-1]) if self.sites else "an unknown place"
        return MismatchError(
            f"rank {self.group[self.rank]} at {site}: every message must fit the buffer it is received into, got "
            f"{error.Get_error_string()}; make sender and receiver agree on size and dtype"
        )


class Agreements:
    """What the members of a communicator call, told while they go on and looked at when it has come."""

    WIDTH = 256

    def __init__(self, comm: MPI.Comm, group: Sequence[int]) -> None:
        self.comm, self.group = comm, group
        self.pending: deque[tuple[Any, Any, Any]] = deque()

    def add(self, call: Call) -> None:
        """Tell a call; raise MismatchError if an earlier one turns out to have been different elsewhere."""
        text = f"{call.what}\0{call.terms}\0{call}".encode()[: self.WIDTH]
        mine = np.zeros(self.WIDTH, np.uint8)
        mine[: len(text)] = np.frombuffer(text, np.uint8)
        told = np.empty((len(self.group), self.WIDTH), np.uint8)
        self.pending.append((mine, told, self.comm.Iallgather(mine, told)))
        self.look(wait=len(self.pending) > 1000)

    def look(self, wait: bool = False) -> None:
        """Compare what has come; `wait` for all."""
        while self.pending and (wait or self.pending[0][2].Test()):
            _, told, request = self.pending.popleft()
            request.Wait()
            texts = [bytes(row).rstrip(b"\0").decode(errors="replace").split("\0") for row in told]
            for rank, text in zip(self.group, texts, strict=True):
                if text[:2] != texts[0][:2]:
                    raise MismatchError(
                        f"collectives: every rank must make the same call, got rank {self.group[0]}: {texts[0][-1]}; "
                        f"rank {rank}: {text[-1]}; make all ranks call the same collectives in the same order"
                    )


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
        self._comms = (comm, comm)
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


def hash_of(call: Call) -> int:
    """Return 63 bits that are equal on every process for equal calls."""
    import hashlib

    text = repr((call.what, call.terms)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _memory(x: Any) -> Any:
    """Return what MPI can take the memory of: bytes for odd dtypes; device arrays when their work is done."""
    if isinstance(x, np.ndarray):
        return x.reshape(-1).view(np.uint8)
    x.device.synchronize()
    return x


class MpiWorld:
    """All processes of the job."""

    def __init__(self, watch: Watch | None = None) -> None:
        world = MPI.COMM_WORLD
        self.rank = world.rank
        self.size = world.size
        self.watch = watch if watch is not None else Watch()
        self._comm = world.Dup()
        self._wire: MpiWire | None = None

    @property
    def wire(self) -> MpiWire:
        """The wire between all ranks."""
        if self._wire is None:
            world = MPI.COMM_WORLD
            self._wire = MpiWire(world.Dup(), world.Dup(), self.watch, range(self.size))
        return self._wire

    def control(self) -> MPI.Comm:
        """Make an MPI communicator for what is told beside the program."""
        return MPI.COMM_WORLD.Dup()

    def gather_logs(self, data: bytes, tables: Tables) -> list[tuple[bytes, Tables]] | None:
        """Bring every rank's log to rank 0."""
        return self.gather((data, tables))

    def gather(self, value: Any) -> list[Any] | None:
        """Bring a value of every rank to rank 0, without burning a core while others still work."""
        self.watch.begin((None, "its end, or a synchronization of all", None), patient=self.rank != 0)
        values = None
        if self.rank != 0:
            self._comm.isend(value, 0, tag=1).wait()
        else:
            values = [value] + [self._quiet_recv(source, 1) for source in range(1, self.size)]
        self.watch.end()
        return values

    def tell(self, value: Any) -> Any:
        """Bring rank 0's value to every rank; who waits sleeps, for as long as rank 0 works."""
        self.watch.begin((None, "its end, or a synchronization of all", None), patient=self.rank != 0)
        if self.rank != 0:
            value = self._quiet_recv(0, 2)
        else:
            data = pickle.dumps(value)
            MPI.Request.waitall([self._comm.isend(data, rank, tag=2) for rank in range(1, self.size)])
        self.watch.end()
        return value

    def abort(self, status: int) -> None:
        """End the job on every rank, with this status. Does not return."""
        MPI.COMM_WORLD.Abort(status)
        os._exit(status)  # MPICH's abort returns until its launcher kills this process

    def _quiet_recv(self, source: int, tag: int) -> Any:
        pause = 1e-4
        while not self._comm.iprobe(source, tag):
            time.sleep(pause)
            pause = min(2 * pause, 5e-3)
        value = self._comm.recv(source=source, tag=tag)
        return pickle.loads(value) if tag == 2 else value
