"""mpi4py's communicators: who is in them, and their plain messages."""

from __future__ import annotations

from functools import partial
from typing import Any

from emu.comm.communicator import Comm as Core
from emu.face import messages
from emu.face.group import Group
from emu.face.requests import MESSAGE_NULL, Message, Prequest, Request
from emu.face.session import JobAborted, Session, Unsupported
from emu.face.status import ANY_SOURCE, ANY_TAG, PROC_NULL, TAG_UB, UNDEFINED, Status, tell

IDENT, CONGRUENT, SIMILAR, UNEQUAL = 0, 1, 2, 3
COMM_TYPE_SHARED = 0
KEYVALS = {"TAG_UB": 0, "HOST": 1, "IO": 2, "WTIME_IS_GLOBAL": 3, "UNIVERSE_SIZE": 4, "APPNUM": 5}


class Comm:
    """A communicator of one rank's program. `_core` moves and records; the session is the rank's."""

    _session_: Session | None
    _core_: Core | None
    name: str

    def __new__(cls, comm: Comm | None = None) -> Any:
        """Return a handle on the same communicator, COMM_NULL's if none is given; for subclasses of the user's."""
        made = super().__new__(cls)
        there = comm is not None and bool(comm)
        made._session_ = comm._session if there and comm is not None else None
        made._core_ = comm._core if there and comm is not None else None
        made.name = comm.name if comm is not None else ""
        return made

    @classmethod
    def _made_of(cls, session: Session, core: Core | None) -> Any:
        """Return a communicator of this class; COMM_NULL's if there is no core."""
        made = cls.__new__(cls)
        made._session_, made._core_ = session, core
        return made

    @property
    def _session(self) -> Session:
        return self._session_  # type: ignore[return-value]

    @property
    def _core(self) -> Core:
        if self._core_ is None:
            raise Unsupported("MPI.COMM_NULL: a communicator is expected, got none; is this rank in the group?")
        return self._core_

    # Who is in it

    @property
    def rank(self) -> int:
        """My rank."""
        return self._core.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._core.size

    def Get_rank(self) -> int:
        """Return my rank."""
        return self._core.rank

    def Get_size(self) -> int:
        """Return the number of ranks."""
        return self._core.size

    def Get_group(self) -> Group:
        """Return the group of its ranks."""
        return Group(self._core.group, self._core.group[self._core.rank])

    group = property(Get_group)

    def Get_name(self) -> str:
        """Return the name."""
        return self.name

    def Set_name(self, name: str) -> None:
        """Set the name."""
        self.name = name

    def Is_inter(self) -> bool:
        """Tell that this is no intercommunicator."""
        return False

    def Is_intra(self) -> bool:
        """Tell that this is an intracommunicator."""
        return True

    is_inter = property(Is_inter)
    is_intra = property(Is_intra)

    def Get_topology(self) -> int:
        """Return UNDEFINED: ranks have no places, unless by Create_cart."""
        return UNDEFINED

    @classmethod
    def Get_parent(cls) -> Comm:
        """Return COMM_NULL: the program was not spawned by another."""
        from emu.face.intracomm import COMM_NULL

        return COMM_NULL

    def Get_attr(self, keyval: int) -> Any:
        """Return one of the attributes that every MPI has."""
        return {0: TAG_UB, 2: ANY_SOURCE, 3: 1, 4: self.size}.get(keyval, self._session.attributes.get(str(keyval)))

    @property
    def topology(self) -> int:
        """UNDEFINED, unless ranks have places."""
        return self.Get_topology()

    @property
    def is_topo(self) -> bool:
        """Whether ranks have places."""
        return self.Get_topology() != UNDEFINED

    def Set_errhandler(self, errhandler: Any) -> None:
        """Nothing to set: errors are raised."""

    def Get_errhandler(self) -> Any:
        """Return None: errors are raised."""
        return None

    def Free(self) -> None:
        """Give the communicator back."""
        self._core.free()
        self._core_ = None

    Disconnect = Free

    def Abort(self, errorcode: int = 0) -> None:
        """End the whole job with this status."""
        raise JobAborted(errorcode)

    def Compare(self, comm: Comm) -> int:
        """Compare two communicators: IDENT, CONGRUENT, SIMILAR or UNEQUAL."""
        if self == comm:
            return IDENT
        first, second = self._core.group, comm._core.group
        return CONGRUENT if first == second else SIMILAR if set(first) == set(second) else UNEQUAL

    def __bool__(self) -> bool:
        return self._core_ is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Comm):
            return NotImplemented
        mine = self._core if self else None
        return mine is (other._core if other else None)

    def __hash__(self) -> int:
        return id(self._core if self else None)

    # Buffers

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a buffer; return when it may be changed again."""
        messages.isend(self._session, self._core, buf, dest, tag).wait()

    def Ssend(self, buf: Any, dest: int, tag: int = 0) -> None:
        """Send a buffer; return when its receive has begun."""
        messages.isend(self._session, self._core, buf, dest, tag, rendezvous=True).wait()

    Bsend = Rsend = Send

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Start to send a buffer."""
        return Request(messages.isend(self._session, self._core, buf, dest, tag))

    Ibsend = Irsend = Isend

    def Issend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        """Start to send a buffer; done when its receive has begun."""
        return Request(messages.isend(self._session, self._core, buf, dest, tag, rendezvous=True))

    def Recv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> None:
        """Receive into a buffer."""
        Request(messages.irecv(self._session, self._core, buf, source, tag)).wait(status)

    def Irecv(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start to receive into a buffer."""
        return Request(messages.irecv(self._session, self._core, buf, source, tag))

    def Sendrecv(
        self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG, status: Status | None = None,
    ) -> None:  # fmt: skip
        """Send one buffer and receive another at the same time."""
        receive = Request(messages.irecv(self._session, self._core, recvbuf, source, recvtag))
        send = Request(messages.isend(self._session, self._core, sendbuf, dest, sendtag))
        receive.wait(status)
        send.wait()

    def Sendrecv_replace(
        self, buf: Any, dest: int, sendtag: int = 0, source: int = ANY_SOURCE, recvtag: int = ANY_TAG,
        status: Status | None = None,
    ) -> None:  # fmt: skip
        """Send a buffer and receive into the same one."""
        copy = messages.copied(buf)
        self.Sendrecv(copy, dest, sendtag, buf, source, recvtag, status)

    def Send_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Return a request that sends the buffer each time it is started."""
        return Prequest(partial(self.Isend, buf, dest, tag))

    Bsend_init = Rsend_init = Send_init

    def Ssend_init(self, buf: Any, dest: int, tag: int = 0) -> Prequest:
        """Return a request that sends the buffer each time it is started."""
        return Prequest(partial(self.Issend, buf, dest, tag))

    def Recv_init(self, buf: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Prequest:
        """Return a request that receives into the buffer each time it is started."""
        return Prequest(partial(self.Irecv, buf, source, tag))

    # Probing

    def Probe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Wait for a message that a receive would get."""
        self._probed(source, tag, status, block=True, take=False)
        return True

    def Iprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> bool:
        """Tell whether there is a message that a receive would get."""
        return self._probed(source, tag, status, block=False, take=False) is not None

    def Mprobe(self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """Wait for a message and take it."""
        return Message(self._session, self._core, self._probed(source, tag, status, block=True, take=True))

    def Improbe(
        self, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message | None:
        """Take a message that is there; None if there is none."""
        found = self._probed(source, tag, status, block=False, take=True)
        return None if found is None else Message(self._session, self._core, found)

    probe, iprobe, mprobe, improbe = Probe, Iprobe, Mprobe, Improbe

    def _probed(self, source: int, tag: int, status: Status | None, block: bool, take: bool) -> Any:
        if source == PROC_NULL:
            tell(status, PROC_NULL, ANY_TAG, 0)
            return MESSAGE_NULL
        source, tag = messages.check(self._core, "Probe", source, tag, receiving=True)
        found = self._session.answers.probe(self._core, source, tag, block, take)
        if found is not None:
            tell(status, found.source, found.tag, messages.size_of(found))
        return found

    # Objects

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object."""
        messages.isend_object(self._session, self._core, obj, dest, tag).wait()

    bsend = send

    def ssend(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object; return when its receive has begun."""
        messages.isend_object(self._session, self._core, obj, dest, tag, rendezvous=True).wait()

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start to send an object."""
        return Request(messages.isend_object(self._session, self._core, obj, dest, tag))

    ibsend = isend

    def issend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        """Start to send an object; done when its receive has begun."""
        return Request(messages.isend_object(self._session, self._core, obj, dest, tag, rendezvous=True))

    def recv(
        self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Any:
        """Receive an object."""
        return Request(messages.irecv_object(self._session, self._core, source, tag)).wait(status)

    def irecv(self, buf: Any = None, source: int = ANY_SOURCE, tag: int = ANY_TAG) -> Request:
        """Start to receive an object."""
        return Request(messages.irecv_object(self._session, self._core, source, tag))

    def sendrecv(
        self, sendobj: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = ANY_SOURCE,
        recvtag: int = ANY_TAG, status: Status | None = None,
    ) -> Any:  # fmt: skip
        """Send one object and receive another at the same time."""
        receive, send = self.irecv(None, source, recvtag), self.isend(sendobj, dest, sendtag)
        value = receive.wait(status)
        send.wait()
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise Unsupported(f"MPI.{type(self).__name__}.{name}: not supported by emu")
