"""One process a GPU: MpiWire carries bytes over MPI. The only floor that imports mpi4py.

Buffers travel as bytes, so that any dtype and length works; collectives of MPI itself serve control only
(agreement, splitting), never the data. Messages of collectives have an MPI communicator of their own, so a
program's any-tag receive can not catch them.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from emu.comm.recording import Tables
from emu.comm.watch import Watch
from emu.comm.wire import Call, compare
from emu.errors import MismatchError

MAX_MESSAGE_BYTES = 1 << 30  # longer ones are cut: counts of some MPI libraries end at 2**31
_BYTE = MPI.BYTE
_NATIVE = "fiub"  # dtype kinds that mpi4py can take the memory of


class Parts:
    """A message cut into several; done when all are. Also a receive that must tell its source."""

    __slots__ = ("requests", "source", "tag", "nbytes")

    def __init__(self, requests: list[MPI.Request], source: int, tag: int, nbytes: int) -> None:
        self.requests = requests
        self.source = source
        self.tag = tag
        self.nbytes = nbytes


class MpiWire:
    """The members of one communicator, each a process."""

    dry = False

    def __init__(self, plain: MPI.Comm, collective: MPI.Comm, watch: Watch, group: Sequence[int]) -> None:
        self._comms = (plain, collective)
        self.watch = watch
        self.group = tuple(group)
        self.rank = plain.rank
        self.size = plain.size

    def isend(self, x: Any, to: int, tag: int, collective: int) -> Any:
        """Start to send."""
        n = x.nbytes
        if x.__class__ is not np.ndarray or x.dtype.kind not in _NATIVE:
            x = _memory(x)
        if n > MAX_MESSAGE_BYTES:
            return self._cut(self._comms[collective].Isend, x, to, tag)
        return self._comms[collective].Isend((x, n, _BYTE), to, tag)

    def irecv(self, x: Any, source: int, tag: int, collective: int) -> Any:
        """Start to receive."""
        n = x.nbytes
        if x.__class__ is not np.ndarray or x.dtype.kind not in _NATIVE:
            x = _memory(x)
        if n > MAX_MESSAGE_BYTES:
            return self._cut(self._comms[collective].Irecv, x, source, tag)
        if source < 0 or tag < 0:
            source, tag = (MPI.ANY_SOURCE if source < 0 else source), (MPI.ANY_TAG if tag < 0 else tag)
            return Parts([self._comms[collective].Irecv((x, n, _BYTE), source, tag)], source, tag, n)
        return self._comms[collective].Irecv((x, n, _BYTE), source, tag)

    def wait(self, pendings: Sequence[Any]) -> None:
        """Return when all are done. Raise MismatchError for a message that does not fit its buffer."""
        watch = self.watch
        watch.count += 1
        watch.waiting = pendings
        try:
            MPI.Request.Waitall(pendings)  # type: ignore[arg-type]
        except (TypeError, AttributeError):
            self._wait_parts(pendings)
        except MPI.Exception as error:
            raise self._mismatch(error) from None
        watch.waiting = None

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int, collective: int) -> None:
        """Send and receive at the same time."""
        n_out, n_in = x.nbytes, into.nbytes
        if n_out > MAX_MESSAGE_BYTES or n_in > MAX_MESSAGE_BYTES:
            self.wait((self.irecv(into, source, tag, collective), self.isend(x, to, tag, collective)))
            return
        if x.__class__ is not np.ndarray or x.dtype.kind not in _NATIVE:
            x, into = _memory(x), _memory(into)
        watch = self.watch
        watch.count += 1
        watch.waiting = source
        try:
            self._comms[collective].Sendrecv((x, n_out, _BYTE), to, tag, (into, n_in, _BYTE), source, tag)
        except MPI.Exception as error:
            raise self._mismatch(error) from None
        watch.waiting = None

    def test(self, pending: Any) -> bool:
        """Tell whether one is done."""
        if isinstance(pending, Parts):
            return all(request.Test() for request in pending.requests)
        return pending.Test()

    def exchange(self, value: Any) -> list[Any]:
        """Give one value, get every member's."""
        return self._control(value)

    def agree(self, call: Call) -> None:
        """Raise MismatchError on every rank if they do not all make the same call."""
        mine = np.array([hash_of(call)], dtype=np.int64)
        all_of = np.empty(self.size, dtype=np.int64)
        request = self._comms[0].Iallgather(mine, all_of)
        self.wait((request,))
        if (all_of != mine[0]).any():
            compare(dict(zip(self.group, self._control(call), strict=True)))

    def sub(self, members: Sequence[int] | None, context: int) -> MpiWire | None:
        """Make the wire of a sub-communicator."""
        color = 0 if members is not None else MPI.UNDEFINED
        key = list(members).index(self.rank) if members is not None else 0
        plain = self._comms[0].Split(color, key)
        if members is None or plain == MPI.COMM_NULL:
            return None
        return MpiWire(plain, plain.Dup(), self.watch, [self.group[m] for m in members])

    def free(self) -> None:
        """Give the MPI communicators back."""
        for comm in self._comms:
            comm.Free()

    def _control(self, value: Any) -> list[Any]:
        self.watch.count += 1
        self.watch.waiting = ()
        told = self._comms[0].allgather(value)
        self.watch.waiting = None
        return told

    def _cut(self, start: Any, x: Any, peer: int, tag: int) -> Parts:
        data = x.reshape(-1).view(np.uint8)
        peer, tag = (MPI.ANY_SOURCE if peer < 0 else peer), (MPI.ANY_TAG if tag < 0 else tag)
        parts = [data[i : i + MAX_MESSAGE_BYTES] for i in range(0, data.size, MAX_MESSAGE_BYTES)]
        return Parts([start((part, part.size, _BYTE), peer, tag) for part in parts], peer, tag, data.size)

    def _wait_parts(self, pendings: Sequence[Any]) -> None:
        for pending in pendings:
            if not isinstance(pending, Parts):
                pending.Wait()
                continue
            statuses = [MPI.Status() for _ in pending.requests]
            try:
                MPI.Request.Waitall(pending.requests, statuses)
            except MPI.Exception as error:
                raise self._mismatch(error) from None
            pending.source, pending.tag = statuses[0].Get_source(), statuses[0].Get_tag()
            if len(statuses) == 1:
                pending.nbytes = statuses[0].Get_count(_BYTE)
        self.watch.waiting = None

    def _mismatch(self, error: MPI.Exception) -> MismatchError:
        return MismatchError(
            f"rank {self.group[self.rank]}: every message must fit the buffer it is received into, got "
            f"{error.Get_error_string()}; make sender and receiver agree on size and dtype"
        )


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

    def gather_logs(self, data: bytes, tables: Tables) -> list[tuple[bytes, Tables]] | None:
        """Bring every rank's log to rank 0."""
        return self.gather((data, tables))

    def gather(self, value: Any) -> list[Any] | None:
        """Bring a value of every rank to rank 0, without burning a core while others still work."""
        if self.rank != 0:
            self._comm.isend(value, 0, tag=1).wait()
            return None
        return [value] + [self._quiet_recv(source, 1) for source in range(1, self.size)]

    def tell(self, value: Any) -> Any:
        """Bring rank 0's value to every rank; who waits sleeps."""
        if self.rank != 0:
            return self._quiet_recv(0, 2)
        data = pickle.dumps(value)
        MPI.Request.waitall([self._comm.isend(data, rank, tag=2) for rank in range(1, self.size)])
        return value

    def abort(self, status: int) -> None:
        """End the job on every rank, with this status."""
        MPI.COMM_WORLD.Abort(status)

    def _quiet_recv(self, source: int, tag: int) -> Any:
        pause = 1e-4
        while not self._comm.iprobe(source, tag):
            time.sleep(pause)
            pause = min(2 * pause, 5e-3)
        value = self._comm.recv(source=source, tag=tag)
        return pickle.loads(value) if tag == 2 else value
