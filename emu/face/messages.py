"""Plain messages of mpi4py's face: buffers and objects, sent, received and probed for."""

from __future__ import annotations

from typing import Any

from emu.comm.communicator import Comm, Request
from emu.comm.sites import user_site
from emu.comm.wire import KINDS, OBJECT
from emu.errors import ConfigError
from emu.face.buffers import buffer_of
from emu.face.objects import HEADER, ObjectReceive, ObjectSend
from emu.face.requests import Incoming, Nothing, Outgoing, Receive, Send
from emu.face.session import Session
from emu.face.status import PROC_NULL, TAG_UB
from emu.trace import ANY


def check(comm: Comm, what: str, peer: Any, tag: Any, receiving: bool) -> tuple[int, int]:
    """Return rank and tag as whole numbers, and note where the call stands. Raise ConfigError if there is none such."""
    peer, tag = int(peer), int(tag)
    lowest = ANY if receiving else 0
    if not lowest <= peer < comm.size:
        raise ConfigError(f"{what}: a rank from 0 to {comm.size - 1} is expected, got {peer}; see comm.Get_size()")
    if not lowest <= tag <= TAG_UB:
        raise ConfigError(f"{what}: a tag from 0 to {TAG_UB} is expected, got {tag}")
    comm.log.sites.append(user_site())
    return peer, tag


def isend(session: Session, comm: Comm, spec: Any, to: int, tag: int, rendezvous: bool = False) -> Send | Nothing:
    """Start to send a buffer."""
    if to == PROC_NULL:
        return Nothing(PROC_NULL)
    to, tag = check(comm, "Send", to, tag, receiving=False)
    buffer = buffer_of(spec, "Send")
    log, x = comm.log, buffer.x
    number = log.send(comm.group[to], tag, comm.context, x.nbytes)
    pending = comm.wire.isend(x, to, tag, log.flag, None, rendezvous)
    return Send(session, comm, Request(comm, pending, log.stream, number), buffer)


def irecv(session: Session, comm: Comm, spec: Any, source: int, tag: int) -> Receive | Nothing:
    """Start to receive into a buffer; the message may be shorter."""
    if source == PROC_NULL:
        return Nothing(PROC_NULL)
    source, tag = check(comm, "Recv", source, tag, receiving=True)
    buffer = buffer_of(spec, "Recv")
    log, x = comm.log, buffer.x
    pending = comm.wire.irecv(x, source, tag, log.flag, None, exact=False)
    open_row = len(log.data) if ANY in (source, tag) else -1
    number = log.recv(source if source == ANY else comm.group[source], tag, comm.context, x.nbytes)
    return Receive(session, comm, Request(comm, pending, log.stream, number, open_row), buffer)


def irecv_taken(session: Session, comm: Comm, spec: Any, taken: Any) -> Receive:
    """Start to receive the message that a probe has taken."""
    buffer = buffer_of(spec, "Recv")
    log, x = comm.log, buffer.x
    log.sites.append(user_site())
    pending = comm.wire.receive_taken(x, taken, KINDS[x.dtype], exact=False)
    number = log.recv(comm.group[taken.source], taken.tag, comm.context, x.nbytes)
    return Receive(session, comm, Request(comm, pending, log.stream, number), buffer)


def isend_object(
    session: Session, comm: Comm, value: Any, to: int, tag: int, rendezvous: bool = False
) -> Outgoing | Nothing:
    """Start to send an object."""
    if to == PROC_NULL:
        return Nothing(PROC_NULL)
    to, tag = check(comm, "send", to, tag, receiving=False)
    return Outgoing(session, comm, ObjectSend(comm, value, to, tag, rendezvous))


def irecv_object(session: Session, comm: Comm, source: int, tag: int) -> Incoming | Nothing:
    """Start to receive an object."""
    if source == PROC_NULL:
        return Nothing(PROC_NULL)
    source, tag = check(comm, "recv", source, tag, receiving=True)
    return Incoming(session, ObjectReceive(comm, source, tag))


def copied(spec: Any) -> Any:
    """Return a spec of the same message in memory of its own."""
    buffer = buffer_of(spec, "Sendrecv_replace")
    return buffer.x.copy() if buffer.index is None else buffer.x


def size_of(found: Any) -> int:
    """Return the bytes of a message that was probed: of an object, without what emu sends before it."""
    return found.nbytes - HEADER.size if found.kind == OBJECT else found.nbytes
