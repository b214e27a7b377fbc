"""The MPI wire: the same rows as in one process, and messages that arrive, misfit or are cut."""

import json

import ml_dtypes
import numpy as np
import pytest
from test_comm import mixed, ring_all_reduce, rows_of

from emu.collectives.table import TABLE
from emu.comm import run_local
from emu.errors import MismatchError
from emu.trace import ANY

pytestmark = pytest.mark.mpi


@pytest.fixture
def mpi_world(world):
    from emu.comm.mpi_world import MpiWorld

    return MpiWorld()


@pytest.fixture
def comm(mpi_world):
    """A recording communicator of all ranks, of this test's own."""
    from emu.comm.communicator import Comm
    from emu.comm.recording import Log

    made = Comm(mpi_world.wire, Log(mpi_world.rank), range(mpi_world.size))
    yield made
    made.free()


def test_the_rows_are_those_of_one_process(comm, mpi_world):
    from emu.comm.merging import merge

    mixed(comm)
    logs = mpi_world.gather_logs(bytes(comm.log.data), comm.log.tables)
    if logs is not None:
        over_mpi, local = merge(logs, {}), run_local(mixed, comm.size)[1]
        assert rows_of(over_mpi) == rows_of(local)
        assert over_mpi.labels == local.labels and over_mpi.groups == local.groups
        assert json.dumps(over_mpi.streams) == json.dumps(local.streams)
    assert mpi_world.tell("together") == "together"


@pytest.mark.parametrize("dtype", ["int8", "float16", ml_dtypes.bfloat16, "float32", "complex64", "bool"])
@pytest.mark.parametrize("n", [0, 1, 1000, 100_000])
def test_any_dtype_and_length_arrives(comm, dtype, n):
    x = ((np.arange(n) + comm.rank) % 100).astype(dtype)
    y = np.zeros(n, dtype)
    left = (comm.rank - 1) % comm.size
    comm.sendrecv(x, (comm.rank + 1) % comm.size, y, left)
    assert (y == ((np.arange(n) + left) % 100).astype(dtype)).all()
    y[:] = 0
    comm.waitall([comm.irecv(y, left, tag=2), comm.isend(x, (comm.rank + 1) % comm.size, tag=2)])
    assert (y == ((np.arange(n) + left) % 100).astype(dtype)).all()


@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 5000])
def test_messages_above_the_limit_are_cut_and_whole_again(comm, n):
    comm.wire.max_message_bytes = 1024
    x, y = np.arange(n, dtype="uint8"), np.zeros(n, "uint8")
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.sendrecv(x, right, y, left)
    assert (x == y).all()
    y[:] = 0
    received = comm.irecv(y, ANY, ANY)
    comm.waitall([received, comm.isend(x, right, tag=5)])
    assert (x == y).all() and (received.pending.source, received.pending.tag) == (left, 5)
    z = np.arange(n, dtype="float64") + comm.rank
    ring_all_reduce(comm, z)
    assert (z == np.arange(n) * comm.size + sum(range(comm.size))).all()


def test_a_short_message_or_one_of_another_dtype_is_an_error(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with pytest.raises(MismatchError, match="receiving 32 bytes"):
        comm.sendrecv(np.zeros(3), right, np.zeros(4), left)
    sent = comm.isend(np.zeros(4, "float32"), right)
    with pytest.raises(MismatchError, match="sending 16 bytes of float32.*receiving 16 bytes of float64"):
        comm.recv(np.zeros(2), left, ANY)
    sent.wait()


def test_ranks_that_disagree_are_all_told_both_calls(comm):
    if comm.size == 1:
        return
    with pytest.raises(MismatchError) as told:
        TABLE["all_reduce"]["ring"].function(comm, np.zeros(4 + (comm.rank == 1)))
    assert "rank 0: ring_all_reduce(op=sum, x=4 float64) at test_comm_mpi.py:" in str(told.value)
    assert "rank 1: ring_all_reduce(op=sum, x=5 float64) at test_comm_mpi.py:" in str(told.value)
    x = np.ones(2)
    ring_all_reduce(comm, x)  # the communicator still works
    assert (x == comm.size).all()


def test_calls_that_are_known_as_templates_move_real_bytes(comm):
    for i in range(5):
        x = np.full(7, comm.rank + i)
        ring_all_reduce(comm, x)
        assert (x == sum(range(comm.size)) + i * comm.size).all()
    assert len(comm.log.tables.templates) == 1


def test_hundreds_of_communicators_come_and_go(comm):
    for i in range(300):
        part = comm.split(comm.rank % 2)
        if i % 100 == 0:
            x = np.ones(3)
            ring_all_reduce(part, x)
            assert (x == part.size).all()
        part.free()


def test_probing_finds_and_takes_messages(comm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent = [comm.isend(np.full(n, n), right, tag=n) for n in (1, 2)]
    seen = comm.wire.probe(ANY, 2, block=True, take=False)
    assert (seen.source, seen.tag, seen.nbytes) == (left, 2, 16)
    taken = comm.wire.probe(left, 2, block=True, take=True)
    y = np.zeros(2, int)
    comm.wire.wait([comm.wire.receive_taken(y, taken)])
    assert y.tolist() == [2, 2]
    assert comm.wire.probe(left, 2, block=False, take=False) is None
    comm.recv(y[:1], left, tag=1)
    comm.waitall(sent)


def test_many_collectives_and_communicators_stay_apart_and_leave_nothing_behind(comm):
    from emu.collectives import ring_all_reduce as all_reduce

    x = np.ones(3)
    for turn in range(1000):
        x[:] = comm.rank + turn
        all_reduce(comm, x)
        assert x[0] == comm.size * (comm.size - 1) / 2 + comm.size * turn
    for _ in range(100):
        part = comm.split(comm.rank % 2)
        x[:] = 1
        all_reduce(part, x)
        assert x[0] == part.size
        part.free()
    mail = comm.wire.mail
    assert len(comm.turns) == 1 and (mail is None or not mail.busy and not any(mail.early.values()))
