"""The collectives over MPI: a pairwise sample of what the tests in one process cover whole.

Every algorithm meets every dtype, length, operation and placement at least once, with small messages sent
at once and with every message made to wait for its receive.
"""

import itertools

import ml_dtypes
import numpy as np
import pytest

from emu.collectives import TABLE
from emu.comm.communicator import Comm
from emu.comm.recording import Log
from emu.verify.contract import CONTRACTS

pytestmark = pytest.mark.mpi

DTYPES = ("int8", "int64", "float16", ml_dtypes.bfloat16, "float32", "float64")
LENGTHS = (0, 1, 5, 1000, 10007)
OPS = ("sum", "max", "avg", "min", "prod")
ALGORITHMS = [(c, a) for c, table in TABLE.items() for a in table]


def sample():
    """Walk through dtypes, lengths, operations and rendezvous at co-prime strides."""
    for i, (collective, algorithm) in enumerate(ALGORITHMS):
        for k in range(len(LENGTHS)):
            yield pytest.param(
                collective, algorithm, DTYPES[(i + k) % len(DTYPES)], LENGTHS[(2 * i + k) % len(LENGTHS)],
                OPS[(i + 3 * k) % len(OPS)], (i + k) % 2 == 0,
                id=f"{algorithm}_{collective}-{k}",
            )  # fmt: skip


@pytest.fixture
def comm(world):
    from emu.comm.mpi import MpiWire
    from emu.comm.mpi_mail import open_mail
    from emu.comm.watch import Watch

    mail = open_mail(world)
    if mail is not None:
        mail.block_bytes = 64  # so that short messages are read from memory too
    return Comm(MpiWire(world, world.Dup(), Watch(), range(world.size), mail), Log(world.rank), range(world.size))


def options_for(algorithm, p):
    if algorithm == "hierarchical":
        return {"nodes": tuple(r * 2 // max(2, p) for r in range(p))}
    return {"segment_bytes": 1024} if algorithm in ("segmented_ring", "double_tree", "chain") else {}


@pytest.mark.parametrize("collective, algorithm, dtype, n, op, rendezvous", list(sample()))
def test_result_equals_numpy_on_every_rank(comm, collective, algorithm, dtype, n, op, rendezvous, monkeypatch):
    contract, p, r = CONTRACTS[collective], comm.size, comm.rank
    if rendezvous:
        isend = comm.wire.isend
        monkeypatch.setattr(comm.wire, "isend", lambda *a, **k: isend(*a, **{**k, "rendezvous": True}))
        monkeypatch.setattr(comm.wire, "sendrecv", _by_parts(comm.wire))
    op = op if contract.reduces else "sum"
    size = contract.input_size(p, n)
    root = n % p
    x, out = np.zeros(size, dtype), np.zeros(contract.output_size(p, n), dtype)
    for turn in range(3):  # recorded, by its plan, and by its plan again
        inputs = [np.random.default_rng([n, q, turn]).integers(1, 3, size).astype(dtype) for q in range(p)]
        x[:] = inputs[r]
        contract.call(TABLE[collective][algorithm].function, comm, x, out, root, op, options_for(algorithm, p))
        expected = contract.expected(inputs, r, root, op)
        if expected is not None:
            np.testing.assert_array_equal(x if contract.gives == "in place" else out, expected)


def _by_parts(wire):
    def sendrecv(x, to, into, source, tag, collective):
        wire.wait((wire.irecv(into, source, tag, collective), wire.isend(x, to, tag, collective)))

    return sendrecv


@pytest.mark.parametrize("algorithm", TABLE["all_reduce"])
def test_every_rank_gets_the_same_bits(comm, world, algorithm):
    x = np.random.default_rng(comm.rank).normal(size=1001).astype("float32")
    TABLE["all_reduce"][algorithm].function(comm, x, **options_for(algorithm, comm.size))
    assert len(set(world.allgather(x.tobytes()))) == 1


def test_groups_and_sequences_do_not_mix(comm):
    part = comm.split(comm.rank % 2, comm.rank)
    turns = itertools.product(("ring", "recursive_doubling", "direct"), (True, False))
    for turn, (algorithm, whole) in enumerate(turns):
        group, x = (comm, np.full(7, 1.0 + turn)) if whole else (part, np.full(7, 1.0 + turn))
        TABLE["all_reduce"][algorithm].function(group, x)
        np.testing.assert_array_equal(x, group.size * (1.0 + turn))
