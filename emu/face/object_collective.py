"""mpi4py's collectives of pickled objects, by hand over messages whose sizes only their senders know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emu.comm.calls import collective
from emu.comm.communicator import Comm
from emu.errors import ConfigError
from emu.face.objects import receive_object, send_object, wait_sent
from emu.face.ops import Op

_WHY = "objects have sizes of their own"


def _flat(comm: Comm, function: Any) -> Any:
    """Note that calls of this collective are recorded one by one."""
    comm.log.tables.untemplated.setdefault(function.collective.label, _WHY)
    return function


@collective("broadcast", "object", agree=("root",))
def _broadcast(comm: Comm, box: Any, root: int) -> Any:
    """Pass the root's object down a binomial tree. Source: Thakur, Rabenseifner, Gropp, 2005."""
    p, r = comm.size, comm.rank
    place = (r - root) % p
    value = box.value
    hop = 1
    while hop < p and place >= hop:
        hop <<= 1
    if place > 0:
        hop >>= 1
        value = receive_object(comm, (place - hop + root) % p)
        hop <<= 1
    sends = []
    while place + hop < p:
        sends.append(send_object(comm, value, (place + hop + root) % p))
        hop <<= 1
    wait_sent(comm, sends)
    return value


@collective("gather", "object", agree=("root",))
def _gather(comm: Comm, box: Any, root: int) -> list[Any] | None:
    """Receive every rank's object at the root. Source: Open MPI coll/basic, linear."""
    if comm.rank != root:
        wait_sent(comm, [send_object(comm, box.value, root)])
        return None
    return [box.value if q == root else receive_object(comm, q) for q in range(comm.size)]


@collective("scatter", "object", agree=("root",))
def _scatter(comm: Comm, box: Any, root: int) -> Any:
    """Send each rank its object from the root. Source: Open MPI coll/basic, linear."""
    if comm.rank != root:
        return receive_object(comm, root)
    wait_sent(comm, [send_object(comm, box.value[q], q) for q in range(comm.size) if q != root])
    return box.value[root]


@collective("all_gather", "object", agree=())
def _all_gather(comm: Comm, box: Any) -> list[Any]:
    """Pass every object round the ring. Source: Thakur, Rabenseifner, Gropp, 2005."""
    p, r = comm.size, comm.rank
    values = [None] * p
    values[r] = box.value
    for step in range(p - 1):
        send = send_object(comm, values[(r - step) % p], (r + 1) % p)
        values[(r - step - 1) % p] = receive_object(comm, (r - 1) % p)
        wait_sent(comm, [send])
    return values


@collective("all_to_all", "object", agree=())
def _all_to_all(comm: Comm, box: Any) -> list[Any]:
    """Exchange objects pair by pair. Source: Thakur, Rabenseifner, Gropp, 2005."""
    p, r = comm.size, comm.rank
    got = [None] * p
    got[r] = box.value[r]
    for step in range(1, p):
        send = send_object(comm, box.value[(r + step) % p], (r + step) % p)
        got[(r - step) % p] = receive_object(comm, (r - step) % p)
        wait_sent(comm, [send])
    return got


@collective("scan", "object", agree=())
def _scan(comm: Comm, box: Any) -> Any:
    """Take what comes from the left, add mine, pass it on. Returns (what came, with mine)."""
    before, value = None, box.value
    if comm.rank > 0:
        before = receive_object(comm, comm.rank - 1)
        value = box.op(before, value)
    if comm.rank + 1 < comm.size:
        wait_sent(comm, [send_object(comm, value, comm.rank + 1)])
    return before, value


class Box:
    """A value of the program's, which ranks need not agree on. Boxes are all equal."""

    __slots__ = ("value", "op")

    def __init__(self, value: Any, op: Op | None = None) -> None:
        self.value, self.op = value, op

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "an object"


def bcast(comm: Comm, obj: Any, root: int = 0) -> Any:
    """Return the root's object."""
    return _flat(comm, _broadcast)(comm, Box(obj), root)


def gather(comm: Comm, sendobj: Any, root: int = 0) -> list[Any] | None:
    """Return all ranks' objects at the root, None elsewhere."""
    return _flat(comm, _gather)(comm, Box(sendobj), root)


def scatter(comm: Comm, sendobj: Any, root: int = 0) -> Any:
    """Return my one of the root's objects."""
    return _flat(comm, _scatter)(comm, Box(_one_a_rank(comm, "scatter", sendobj, comm.rank == root)), root)


def allgather(comm: Comm, sendobj: Any) -> list[Any]:
    """Return all ranks' objects."""
    return _flat(comm, _all_gather)(comm, Box(sendobj))


def alltoall(comm: Comm, sendobj: Sequence[Any]) -> list[Any]:
    """Return what each rank has for me."""
    return _flat(comm, _all_to_all)(comm, Box(_one_a_rank(comm, "alltoall", sendobj, True)))


def reduce(comm: Comm, sendobj: Any, op: Op, root: int = 0) -> Any:
    """Return the reduction in rank order at the root, None elsewhere."""
    values = gather(comm, sendobj, root)
    return None if values is None else _fold(values, op)


def allreduce(comm: Comm, sendobj: Any, op: Op) -> Any:
    """Return the reduction in rank order."""
    return bcast(comm, reduce(comm, sendobj, op, 0), 0)


def scan(comm: Comm, sendobj: Any, op: Op) -> Any:
    """Return the reduction of ranks 0 to mine."""
    return _flat(comm, _scan)(comm, Box(sendobj, op))[1]


def exscan(comm: Comm, sendobj: Any, op: Op) -> Any:
    """Return the reduction of the ranks before mine, None on rank 0."""
    return _flat(comm, _scan)(comm, Box(sendobj, op))[0]


def _fold(values: list[Any], op: Op) -> Any:
    total = values[0]
    for value in values[1:]:
        total = op(total, value)
    return total


def _one_a_rank(comm: Comm, where: str, values: Any, needed: bool) -> Any:
    if not needed:
        return None
    values = list(values) if values is not None else None
    if values is None or len(values) != comm.size:
        got = "None" if values is None else f"{len(values)}"
        raise ConfigError(f"{where}: a sequence of {comm.size} objects, one a rank, is expected, got {got}")
    return values
