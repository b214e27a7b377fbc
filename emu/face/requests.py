"""Requests: messages, objects and collectives under way, and the many ways to wait for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from emu.comm.communicator import Comm
from emu.face.buffers import Buffer
from emu.face.objects import ObjectReceive, ObjectSend, wait_received
from emu.face.session import Session, Unsupported
from emu.face.status import ANY_SOURCE, ANY_TAG, PROC_NULL, UNDEFINED, Status, tell, tell_all


class Nothing:
    """Work with MPI.PROC_NULL, or none at all: done at once."""

    value = None

    def __init__(self, source: int = ANY_SOURCE) -> None:
        self.told = (source, ANY_TAG, 0)

    def test(self) -> bool:
        """It is done."""
        return True

    def wait(self) -> None:
        """It is done."""


class Send:
    """A buffer under way."""

    told = (ANY_SOURCE, ANY_TAG, 0)
    value = None

    def __init__(self, session: Session, comm: Comm, request: Any, buffer: Any) -> None:
        self.session, self.comm, self.requests, self.buffer = session, comm, [request], buffer

    def test(self) -> bool:
        """Tell whether it is sent."""
        if not all(self.session.answers.test(self.comm, self.requests)):
            return False
        self.comm.record_wait(self.requests)
        return True

    def wait(self) -> None:
        """Return when it is sent."""
        self.session.answers.wait(self.comm, self.requests)
        self.comm.record_wait(self.requests)


class Receive(Send):
    """A buffer that is waited for."""

    def __init__(self, session: Session, comm: Comm, request: Any, buffer: Buffer) -> None:
        super().__init__(session, comm, request, buffer)
        self.told = (ANY_SOURCE, ANY_TAG, 0)

    def test(self) -> bool:
        """Tell whether it has come; then it is in its buffer."""
        done = super().test()
        if done:
            self._finish()
        return done

    def wait(self) -> None:
        """Return when it is in its buffer."""
        super().wait()
        self._finish()

    def _finish(self) -> None:
        got = self.requests[0].pending
        self.buffer.unpack(got.nbytes)
        self.told = (got.source, got.tag, got.nbytes)


class Outgoing:
    """An object under way."""

    told = (ANY_SOURCE, ANY_TAG, 0)
    value = None

    def __init__(self, session: Session, comm: Comm, send: ObjectSend) -> None:
        self.session, self.comm, self.send = session, comm, send
        self.requests = [send.request]

    def test(self) -> bool:
        """Tell whether it is sent."""
        if not all(self.session.answers.test(self.comm, [self.send.request])):
            return False
        if not all(self.comm.wire.test(part) for part in self.send.parts[1:]):
            return False
        self.comm.record_wait([self.send.request])
        return True

    def wait(self) -> None:
        """Return when it is sent."""
        self.session.answers.wait(self.comm, [self.send.request])
        self.comm.wire.wait(self.send.parts[1:])
        self.comm.record_wait([self.send.request])


class Incoming:
    """An object that is waited for; `value` once it has come."""

    def __init__(self, session: Session, receive: ObjectReceive) -> None:
        self.session, self.receive = session, receive
        self.comm = receive.comm
        self.requests = [receive.request]
        self.told = (ANY_SOURCE, ANY_TAG, 0)
        self.value: Any = None

    def test(self) -> bool:
        """Tell whether it has come."""
        if not all(self.session.answers.test(self.comm, self.requests)):
            return False
        self._take()
        return True

    def wait(self) -> None:
        """Return when it has come."""
        self.session.answers.wait(self.comm, self.requests)
        self._take()

    def _take(self) -> None:
        receive = self.receive
        wait_received(receive)
        self.value = receive.value()
        self.told = (receive.source, receive.tag, receive.length)


class Beside:
    """A collective that runs beside the program."""

    told = (ANY_SOURCE, ANY_TAG, 0)
    value = None

    def __init__(self, session: Session, job: Any) -> None:
        self.session, self.job = session, job

    def test(self) -> bool:
        """Tell whether this rank's part is done."""
        return self.session.background.test(self.job)

    def wait(self) -> None:
        """Return when this rank's part is done."""
        self.session.background.wait(self.job)


Work = Nothing | Send | Outgoing | Incoming | Beside


class Request:
    """mpi4py's request: of one piece of work, null once that is done."""

    def __init__(self, work: Work | None = None) -> None:
        self._work = work
        self._value: Any = None

    def __bool__(self) -> bool:
        return self._work is not None

    def __eq__(self, other: object) -> bool:
        return self is other or isinstance(other, Request) and not self and not other

    __hash__ = object.__hash__

    def _done(self, status: Status | None) -> Any:
        """Take in that the work is done; return the object it has brought."""
        work, self._work = self._work, None
        if work is None:
            tell(status, ANY_SOURCE, ANY_TAG, 0)
            return None
        tell(status, *work.told)
        return work.value

    def Wait(self, status: Status | None = None) -> bool:
        """Return when it is done."""
        self.wait(status)
        return True

    def wait(self, status: Status | None = None) -> Any:
        """Return when it is done, with the object received."""
        if self._work is not None:
            self._work.wait()
        return self._done(status)

    def Test(self, status: Status | None = None) -> bool:
        """Tell whether it is done."""
        return self.test(status)[0]

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Return whether it is done, and the object received."""
        if self._work is not None and not self._work.test():
            return False, None
        return True, self._done(status)

    def Get_status(self, status: Status | None = None) -> bool:
        """Raise: looking without taking is not supported."""
        raise Unsupported("MPI.Request.Get_status: not supported by emu; use Test")

    def Cancel(self) -> None:
        """Raise: messages can't be taken back."""
        raise Unsupported("MPI.Request.Cancel: not supported by emu; receive the message, or do not post it")

    def Free(self) -> None:
        """Forget the request; its work goes on."""
        self._work = None

    def _ready(self) -> bool:
        return self._work is None or self._work.test()

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: Any = None) -> bool:
        """Return when all are done."""
        cls.waitall(requests, statuses)
        return True

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: Any = None) -> list[Any]:
        """Return when all are done, with the objects received."""
        told = [Status() for _ in requests]
        values = [request.wait(status) for request, status in zip(requests, told, strict=True)]
        tell_all(statuses, told)
        return values

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: Any = None) -> bool:
        """Tell whether all are done; if not, none is taken."""
        return cls.testall(requests, statuses)[0]

    @classmethod
    def testall(cls, requests: Sequence[Request], statuses: Any = None) -> tuple[bool, Any]:
        """Return whether all are done, and the objects received."""
        ready = [request._ready() for request in requests]
        if not all(ready):
            return False, None
        told = [Status() for _ in requests]
        values = [request._done(status) for request, status in zip(requests, told, strict=True)]
        tell_all(statuses, told)
        return True, values

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Return the place of one that is done, UNDEFINED if there is none to wait for."""
        return cls.waitany(requests, status)[0]

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """Return the place of one that is done, and the object received."""
        found = _first(requests)
        if not found:
            tell(status, ANY_SOURCE, ANY_TAG, 0)
            return UNDEFINED, None
        place = found[0]
        return place, requests[place].wait(status)

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Return the place of one that is done, and whether there is one."""
        place, flag, _ = cls.testany(requests, status)
        return place, flag

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        """Return the place of one that is done, whether there is one, and the object received."""
        active = [i for i, request in enumerate(requests) if request._work is not None]
        if not active:
            return UNDEFINED, True, None
        for i in active:
            if requests[i]._ready():
                return i, True, requests[i]._done(status)
        return UNDEFINED, False, None

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: Any = None) -> list[int] | None:
        """Return the places of all that are done, at least one; None if there is none to wait for."""
        return cls.waitsome(requests, statuses)[0]

    @classmethod
    def waitsome(cls, requests: Sequence[Request], statuses: Any = None) -> tuple[list[int] | None, Any]:
        """Return the places of all that are done, and the objects received."""
        places = _first(requests)
        if not places:
            return None, None
        told = [Status() for _ in places]
        values = [requests[place].wait(status) for place, status in zip(places, told, strict=True)]
        tell_all(statuses, told)
        return places, values

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: Any = None) -> list[int] | None:
        """Return the places of all that are done; None if there is none to wait for."""
        return cls.testsome(requests, statuses)[0]

    @classmethod
    def testsome(cls, requests: Sequence[Request], statuses: Any = None) -> tuple[list[int] | None, Any]:
        """Return the places of all that are done, and the objects received."""
        active = [i for i, request in enumerate(requests) if request._work is not None]
        if not active:
            return None, None
        places = [i for i in active if requests[i]._ready()]
        told = [Status() for _ in places]
        values = [requests[place]._done(status) for place, status in zip(places, told, strict=True)]
        tell_all(statuses, told)
        return places, values


def _first(requests: Sequence[Request]) -> list[int]:
    """Wait until one of the requests is done; return the places of all that are."""
    active = [i for i, request in enumerate(requests) if request._work is not None]
    if not active:
        return []
    works: list[Any] = [requests[i]._work for i in active]
    messages = [(i, work) for i, work in zip(active, works, strict=True) if hasattr(work, "requests")]
    others = [(i, work) for i, work in zip(active, works, strict=True) if not hasattr(work, "requests")]
    done = [i for i, work in others if work.test()]
    if done or not messages:
        if not done:
            others[0][1].wait()
            done = [others[0][0]]
        return done
    work = messages[0][1]
    found = work.session.answers.first(work.comm, [each.requests[0] for _, each in messages])
    return [messages[k][0] for k in found]


class Prequest(Request):
    """A persistent request: started again and again."""

    def __init__(self, start: Callable[[], Request]) -> None:
        super().__init__()
        self._start: Callable[[], Request] | None = start

    def Start(self) -> None:
        """Start the work."""
        if self._start is None:
            raise Unsupported("MPI.Prequest.Start: a request that has not been freed is expected")
        self._work = self._start()._work

    @classmethod
    def Startall(cls, requests: Sequence[Prequest]) -> None:
        """Start the work of all."""
        for request in requests:
            request.Start()

    def __bool__(self) -> bool:
        return self._start is not None

    def Free(self) -> None:
        """Forget it."""
        self._work = self._start = None


REQUEST_NULL = Request()


class Message:
    """A message that has been matched by a probe, to be received through this handle."""

    def __init__(self, session: Session | None = None, comm: Comm | None = None, taken: Any = None) -> None:
        self._session, self._comm, self._taken = session, comm, taken

    def __bool__(self) -> bool:
        return self._taken is not None

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        """Receive it into a buffer."""
        self.Irecv(buf).Wait(status)

    def Irecv(self, buf: Any) -> Request:
        """Start to receive it into a buffer."""
        from emu.face.messages import irecv_taken

        taken, self._taken = self._taken, None
        assert self._session is not None and self._comm is not None
        return Request(irecv_taken(self._session, self._comm, buf, taken))

    def recv(self, status: Status | None = None) -> Any:
        """Receive an object."""
        return self.irecv().wait(status)

    def irecv(self) -> Request:
        """Start to receive an object."""
        taken, self._taken = self._taken, None
        assert self._session is not None and self._comm is not None
        return Request(Incoming(self._session, ObjectReceive(self._comm, PROC_NULL, 0, taken)))


MESSAGE_NULL = Message()
