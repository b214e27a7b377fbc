"""One process a GPU: MpiWire carries bytes over MPI.

Buffers travel as bytes, so that any dtype and length works; collectives of MPI itself serve control only
(agreement, splitting), never the data. Messages of collectives have an MPI communicator of their own, so a
program's any-tag receive can not catch them; those between processes of one host go by mail.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from emu.comm.mpi_agreements import Agreements, Hashes, hash_of
from emu.comm.mpi_mail import Expected, Mail, Sent
from emu.comm.mpi_replay import Bound, bind
from emu.comm.plan import Plan
from emu.comm.sites import Site, told
from emu.comm.watch import Watch
from emu.comm.wire import KINDS, Call, compare, kind_name
from emu.errors import MismatchError

MAX_MESSAGE_BYTES = 1 << 30  # longer ones are cut: counts of some MPI libraries end at 2**31
KIND_BITS = 5  # the low bits of a plain message's MPI tag tell what it is made of
_KINDS = (1 << KIND_BITS) - 1
_BYTE = MPI.BYTE
SENDS_KEPT = 1024  # places of sends
BOUND_KEPT = 16  # sets of arguments that a plan is bound to, of each sort of call
_address = MPI.Get_address
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

    def __init__(
        self, plain: MPI.Comm, collective: MPI.Comm, watch: Watch, group: Sequence[int], mail: Mail | None = None
    ) -> None:
        self._comms = (plain, collective)
        self.mail = mail
        watch.wires.add(self)
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
        self.sent: dict[tuple[int, int], Site] = {}  # (to, tag) -> where the newest plain send stands
        self._status = MPI.Status()
        self._hashes = Hashes(plain, self.group, mail)

    def empty(self, shape: Any, dtype: Any) -> np.ndarray:
        """Return an uninitialised array in memory that messages leave fastest."""
        return np.empty(shape, dtype) if self.mail is None else self.mail.arena.empty(shape, dtype)

    @property
    def replays(self) -> bool:
        """Whether plans may be carried out: not while something runs beside the program, which must get its turns."""
        return self.watch.beside is None

    def replay(self, plan: Plan, arrays: Sequence[Any], bound: dict[tuple[int, ...], Bound]) -> None:
        """Carry a plan out on these arguments; `bound` keeps what was made of it for their addresses."""
        addresses = tuple([_address(array) for array in arrays])
        ready = bound.get(addresses)
        if ready is None:
            if len(bound) >= BOUND_KEPT:
                bound.clear()
            ready = bound[addresses] = bind(
                plan, self._comms[1], self.mail, self.group, self.context, addresses, [a.nbytes for a in arrays]
            )
        watch = self.watch
        watch.count += 1
        watch.waiting = (self, "messages", ())
        try:
            for call in ready.calls:
                call()
        except MPI.Exception as error:
            raise self._misfit(error) from None
        watch.waiting = None

    def isend(
        self, x: Any, to: int, tag: int, collective: int, kind: int | None = None, rendezvous: bool = False
    ) -> Any:
        """Start to send."""
        n = x.nbytes
        if not collective:
            self._note(to, tag)
            tag = tag << KIND_BITS | (KINDS[x.dtype] if kind is None else kind)
        elif self.mail is not None and self.group[to] in self.mail.readers:
            return self.mail.send(x, self.group[to], self.context, tag, rendezvous)
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
        elif self.mail is not None and self.group[source] in self.mail.readers:
            expected = self.mail.receive(x, self.group[source], self.context, tag, exact=exact)
            expected.source = source
            return expected
        if x.__class__ is not np.ndarray or x.dtype.kind not in _NATIVE:
            x = _memory(x)
        comm = self._comms[collective]
        if n > self.max_message_bytes:
            return self._cut(comm.Irecv, x, source, tag, -1 if collective or kind is None else kind, exact)
        request = comm.Irecv((x, n, _BYTE), source, tag)
        return request if collective else Parts(self, [request], n, kind, exact, *asked)  # type: ignore[arg-type]

    def _note(self, to: int, tag: int) -> None:
        """Keep where a plain send stands, for a receiver that finds it wrong."""
        if self.sites:
            if len(self.sent) > SENDS_KEPT:
                self.sent.clear()
            self.sent[to, tag] = self.sites[-1]

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
                self.watch.beside is not None) or (collective and self.mail is not None):
            self.wait((self.irecv(into, source, tag, collective), self.isend(x, to, tag, collective)))
            return
        if collective:
            tag_out = tag_in = tag
        else:
            self._note(to, tag)
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
        if isinstance(pending, (Sent, Expected)):
            return pending.test()
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
        self.watch.meet(self, "the other ranks to make, split or duplicate a communicator")
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
            return
        watch = self.watch
        watch.begin((self, "agreement", call))
        same = self._hashes.same(hash_of(call.what, call.terms), watch.beside)
        watch.waiting = None
        if not same:
            compare(dict(zip(self.group, self._comms[0].allgather(call), strict=True)))

    def sub(self, part: int | None, members: Sequence[int], context: int) -> MpiWire | None:
        """Make the wire of a sub-communicator."""
        if part is None:
            self._comms[0].Split(MPI.UNDEFINED)
            return None
        plain = self._comms[0].Split(part, members.index(self.rank))
        made = MpiWire(plain, plain.Dup(), self.watch, [self.group[m] for m in members], self.mail)
        made.max_message_bytes, made.context = self.max_message_bytes, context
        return made

    def alone(self, context: int) -> MpiWire:
        """Return a wire of this rank alone."""
        return MpiWire(MPI.COMM_SELF.Dup(), MPI.COMM_SELF.Dup(), self.watch, [self.group[self.rank]])

    def beside(self) -> MpiWire:
        """Return a wire of the same members whose messages meet no others; MPI makes it while the program goes on."""
        from emu.comm.mpi_turns import MpiBeside

        made, request = self._comms[0].Idup()
        return MpiBeside(made, request, self.watch, self.group)

    def free(self) -> None:
        """Give the MPI communicators back."""
        self._hashes.free()
        for comm in self._comms:
            comm.Free()

    def mismatch(
        self, source: int, tag: int, nbytes: int, kind: int, asked: int, asked_kind: int
    ) -> MismatchError:
        """Return the error of a message that is not what its receive is for."""
        site = told(self.sites[-1]) if self.sites else "an unknown place"
        sender = self.watch.where_sent(self, source, tag) or "an unknown place"
        return MismatchError(
            f"message with tag {tag}: sender and receiver must agree on size and dtype, got rank "
            f"{self.group[source]} sending {nbytes} bytes of {kind_name(kind)} at {sender}, and rank "
            f"{self.group[self.rank]} receiving {asked} bytes of {kind_name(asked_kind)}, waited for at {site}; "
            "make both the same"
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
        """Wait for all kinds of messages."""
        mail, by_mail = self.mail, [p for p in pendings if isinstance(p, (Sent, Expected))]
        pendings = [p for p in pendings if not isinstance(p, (Sent, Expected))]
        requests: list[MPI.Request] = []
        for pending in pendings:
            requests += pending.requests if isinstance(pending, Parts) else [pending]
        statuses = [MPI.Status() for _ in requests]
        try:
            if mail is not None and (by_mail or mail.busy):
                mail.wait(by_mail, requests, statuses)
            else:
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

    def _wait_in_turns(self, pendings: Sequence[Any], turns: Any) -> None:
        """Let what runs beside the program go on while this waits."""
        turns.until(lambda: all([self.test(pending) for pending in pendings]), lambda: "its messages")
        self.watch.waiting = None

    def _misfit(self, error: MPI.Exception) -> MismatchError:
        site = told(self.sites[-1]) if self.sites else "an unknown place"
        return MismatchError(
            f"rank {self.group[self.rank]} at {site}: every message must fit the buffer it is received into, got "
            f"{error.Get_error_string()}; make sender and receiver agree on size and dtype"
        )


def _memory(x: Any) -> Any:
    """Return what MPI can take the memory of: bytes for odd dtypes; device arrays when their work is done."""
    if isinstance(x, np.ndarray):
        return x.reshape(-1).view(np.uint8)
    x.device.synchronize()
    return x
