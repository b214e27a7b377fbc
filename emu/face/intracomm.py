"""mpi4py's intracommunicators: collectives, and communicators made of communicators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from emu.face import collective as c
from emu.face import object_collective as o
from emu.face.comm import COMM_TYPE_SHARED, Comm
from emu.face.group import Group
from emu.face.ops import NAMED, Op
from emu.face.requests import Beside, Prequest, Request
from emu.face.session import Unsupported
from emu.face.status import UNDEFINED

SUM = NAMED["SUM"]


class Intracomm(Comm):
    """A communicator whose ranks are one group."""

    # Buffers

    def Barrier(self) -> None:
        """Return when every rank has called."""
        c.barrier(self._core)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Make every rank's buffer the root's."""
        c.bcast(self._core, buf, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Leave block r of the root's buffer in rank r's."""
        c.scatter(self._core, sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """The same with blocks of different lengths."""
        c.scatterv(self._core, sendbuf, recvbuf, root)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Leave every rank's buffer in the root's, in rank order."""
        c.gather(self._core, sendbuf, recvbuf, root)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """The same with blocks of different lengths."""
        c.gatherv(self._core, sendbuf, recvbuf, root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Leave every rank's buffer in everybody's, in rank order."""
        c.allgather(self._core, sendbuf, recvbuf)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """The same with blocks of different lengths."""
        c.allgatherv(self._core, sendbuf, recvbuf)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send block q to rank q, which keeps it as its block r."""
        c.alltoall(self._core, sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """The same with blocks of different lengths."""
        c.alltoallv(self._core, sendbuf, recvbuf)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM, root: int = 0) -> None:
        """Leave the reduction of all buffers in the root's."""
        c.reduce(self._core, sendbuf, recvbuf, op, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Leave the reduction of all buffers in everybody's."""
        c.allreduce(self._core, sendbuf, recvbuf, op)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Leave block r of the reduction in rank r's buffer."""
        c.reduce_scatter_block(self._core, sendbuf, recvbuf, op)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Op = SUM
    ) -> None:
        """The same with blocks of different lengths."""
        c.reduce_scatter(self._core, sendbuf, recvbuf, op, recvcounts)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Leave the reduction of ranks 0 to r in rank r's buffer."""
        c.scan(self._core, sendbuf, recvbuf, op)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Op = SUM) -> None:
        """Leave the reduction of ranks 0 to r-1 in rank r's buffer."""
        c.exscan(self._core, sendbuf, recvbuf, op)

    # Objects

    def barrier(self) -> None:
        """Return when every rank has called."""
        c.barrier(self._core)

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object."""
        return o.bcast(self._core, obj, root)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Return all ranks' objects at the root."""
        return o.gather(self._core, sendobj, root)

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        """Return my one of the root's objects."""
        return o.scatter(self._core, sendobj, root)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Return all ranks' objects."""
        return o.allgather(self._core, sendobj)

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Return what each rank has for me."""
        return o.alltoall(self._core, sendobj)

    def reduce(self, sendobj: Any, op: Op = SUM, root: int = 0) -> Any:
        """Return the reduction of all objects at the root."""
        return o.reduce(self._core, sendobj, op, root)

    def allreduce(self, sendobj: Any, op: Op = SUM) -> Any:
        """Return the reduction of all objects."""
        return o.allreduce(self._core, sendobj, op)

    def scan(self, sendobj: Any, op: Op = SUM) -> Any:
        """Return the reduction of ranks 0 to mine."""
        return o.scan(self._core, sendobj, op)

    def exscan(self, sendobj: Any, op: Op = SUM) -> Any:
        """Return the reduction of the ranks before mine."""
        return o.exscan(self._core, sendobj, op)

    # Communicators

    def Split(self, color: int = 0, key: int = 0) -> Intracomm:
        """Make a communicator of the ranks of equal colour, ordered by key, then rank."""
        if color != UNDEFINED and color < 0:
            raise Unsupported(f"MPI.Comm.Split: a colour of at least 0, or MPI.UNDEFINED, is expected, got {color}")
        return self._made(self._core.split(None if color == UNDEFINED else color, key))

    def Split_type(self, split_type: int, key: int = 0, info: Any = None) -> Intracomm:
        """Make a communicator of the ranks of one emulated node."""
        if split_type not in (COMM_TYPE_SHARED, UNDEFINED):
            raise Unsupported(f"MPI.Comm.Split_type({split_type}): not supported by emu; use COMM_TYPE_SHARED")
        core = self._core
        node = core.cluster.node_of(core.group[core.rank]) if core.cluster is not None else 0
        return self._made(core.split(None if split_type == UNDEFINED else node, key))

    def Dup(self, info: Any = None) -> Intracomm:
        """Make a communicator of the same ranks."""
        return self._made(self._core.split(0, self._core.rank))

    Clone = Dup

    def Idup(self, info: Any = None) -> tuple[Intracomm, Request]:
        """Make a communicator of the same ranks, and a request that is done."""
        return self.Dup(), Request()

    def Create(self, group: Group) -> Intracomm:
        """Make a communicator of a group's ranks; every rank of this one calls."""
        place = group.Get_rank()
        return self._made(self._core.split(None if place == UNDEFINED else 0, place))

    def Create_cart(
        self, dims: Sequence[int], periods: Sequence[bool] | None = None, reorder: bool = False
    ) -> Any:
        """Make a communicator whose ranks stand in a grid; ranks beyond it get COMM_NULL."""
        from emu.face.cart import make_cart

        return make_cart(self, dims, periods)

    def _made(self, core: Any) -> Any:
        return COMM_NULL if core is None else Intracomm._made_of(self._session, core)


COMM_NULL = Intracomm()
COMM_NULL.name = "MPI_COMM_NULL"

STARTED = (
    "Barrier", "Bcast", "Scatter", "Scatterv", "Gather", "Gatherv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv",
    "Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan",
)  # fmt: skip


def _nonblocking(name: str) -> Callable[..., Request]:
    """Return the variant of a collective that runs beside the program: Iallreduce for Allreduce."""
    blocking = getattr(Intracomm, name)

    def start(self: Intracomm, *args: Any, **kwargs: Any) -> Request:
        def run(core: Any) -> None:
            blocking(Intracomm._made_of(self._session, core), *args, **kwargs)

        session = self._session
        return Request(Beside(session, session.background.start(self._core, run, f"I{name.lower()}")))

    start.__doc__ = f"Start {name} beside the program."
    start.__name__ = f"I{name.lower()}"
    return start


def _persistent(name: str) -> Callable[..., Prequest]:
    """Return the persistent variant of a collective: Allreduce_init for Allreduce."""

    def init(self: Intracomm, *args: Any, **kwargs: Any) -> Prequest:
        kwargs.pop("info", None)
        return Prequest(partial(getattr(self, f"I{name.lower()}"), *args, **kwargs))

    init.__doc__ = f"Return a request that runs {name} each time it is started."
    init.__name__ = f"{name}_init"
    return init


for _name in STARTED:
    setattr(Intracomm, f"I{_name.lower()}", _nonblocking(_name))
    setattr(Intracomm, f"{_name}_init", _persistent(_name))
