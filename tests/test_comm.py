"""Communicators on every wire: in one process with bytes, without, and (in test_comm_mpi.py) over MPI."""

import ml_dtypes
import numpy as np
import pytest

from emu.collectives.table import TABLE
from emu.comm import run_dry, run_local
from emu.errors import ConfigError, DeadlockError, MismatchError
from emu.trace import ANY, Op

DTYPES = ["int8", "uint16", "int64", "float16", ml_dtypes.bfloat16, "float32", "float64", "complex64", "bool"]


def ring_all_reduce(comm, x):
    TABLE["all_reduce"]["ring"].function(comm, x)


def mixed(comm):
    """Plain messages both ways, a collective, groups: what a program does."""
    x, y = comm.empty(10, "float32"), comm.empty(10, "float32")
    if not comm.dry:
        x[:] = comm.rank
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.sendrecv(x, right, y, left, tag=3)
    ring_all_reduce(comm, x)
    half = comm.split(comm.rank % 2)
    ring_all_reduce(half, y)
    comm.waitall([comm.irecv(y, left), comm.isend(x, right)])
    half.free()
    return None if comm.dry else float(x[0])


def rows_of(trace):
    return [rows.tobytes() for rows in trace.ranks]


@pytest.mark.parametrize("p", [1, 2, 3, 5])
def test_a_dry_run_gives_the_same_rows_as_one_with_bytes(p):
    _, real = run_local(mixed, p)
    _, dry = run_dry(mixed, p)
    assert rows_of(real) == rows_of(dry)
    assert real.labels == dry.labels and real.groups == dry.groups
    assert [t.rows.tobytes() for t in real.templates] == [t.rows.tobytes() for t in dry.templates]


def test_the_same_program_gives_the_same_rows_every_time():
    assert len({tuple(rows_of(run_local(mixed, 4)[1])) for _ in range(3)}) == 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 1000, 40000])
def test_any_dtype_and_length_arrives(dtype, n):
    def program(comm):
        x = (np.arange(n) % 100).astype(dtype)
        if comm.rank == 0:
            comm.send(x, 1)
            return True
        y = np.zeros(n, dtype)
        comm.recv(y, 0)
        return (x == y).all()

    assert all(run_local(program, 2)[0])


def test_a_rank_may_send_to_itself():
    def program(comm):
        x, y = np.arange(5.0), np.zeros(5)
        comm.waitall([comm.irecv(y, 0), comm.isend(x, 0)])
        return y.tolist()

    assert run_local(program, 1)[0][0] == [0, 1, 2, 3, 4]


def test_messages_of_one_tag_keep_their_order_and_tags_choose():
    def program(comm):
        if comm.rank == 0:
            for value, tag in ((1, 7), (2, 7), (3, 8)):
                comm.send(np.array([value]), 1, tag)
            return None
        got = []
        for tag in (8, 7, 7):
            y = np.zeros(1, int)
            comm.recv(y, 0, tag)
            got.append(int(y[0]))
        return got

    assert run_local(program, 2)[0][1] == [3, 1, 2]


def test_a_receive_from_any_source_tells_who_sent_and_its_row_is_filled_in():
    def program(comm):
        if comm.rank:
            comm.send(np.array([comm.rank * 10]), 0, tag=comm.rank)
            return None
        got = []
        for _ in range(comm.size - 1):
            y = np.zeros(1, int)
            request = comm.irecv(y, ANY, ANY)
            request.wait()
            got.append((request.pending.source, request.pending.tag, int(y[0])))
        return got

    results, trace = run_local(program, 4)
    assert sorted(results[0]) == [(1, 1, 10), (2, 2, 20), (3, 3, 30)]
    rows = trace.ranks[0]
    receives = rows[rows["op"] == Op.RECV]
    assert [(int(a), int(b)) for a, b in zip(receives["a"], receives["b"], strict=True)] == [
        (source, tag) for source, tag, _ in results[0]
    ]


@pytest.mark.parametrize("call", ["isend", "irecv", "sendrecv"])
def test_a_buffer_with_strides_is_refused(call):
    def program(comm):
        x = np.zeros((4, 4))[:, 0]
        args = (x, 0, np.zeros(4), 0) if call == "sendrecv" else (x, 0)
        getattr(comm, call)(*args)

    with pytest.raises(ConfigError, match="a contiguous array is expected"):
        run_local(program, 1)


@pytest.mark.parametrize("peer", [-2, 2, 99])
@pytest.mark.parametrize("call", ["isend", "irecv"])
def test_a_rank_that_is_not_there_is_refused(call, peer):
    with pytest.raises(ConfigError, match="a rank from 0 to 1 is expected"):
        run_local(lambda comm: getattr(comm, call)(np.zeros(1), peer), 2)


def test_two_ranks_that_send_large_messages_first_are_told_as_a_deadlock_with_their_lines():
    def program(comm):
        x = np.zeros(100_000)
        comm.send(x, 1 - comm.rank)
        comm.recv(x, 1 - comm.rank)

    with pytest.raises(DeadlockError) as told:
        run_local(program, 2)
    assert "rank 0 at test_comm.py:" in str(told.value)
    assert "waits for its send to rank 1 (800000 bytes, tag 0)" in str(told.value)
    assert "post receives before waiting for sends" in str(told.value)


def test_small_sends_are_buffered():
    def program(comm):
        x, y = np.full(10, comm.rank), np.zeros(10, int)
        comm.send(x, 1 - comm.rank)
        comm.recv(y, 1 - comm.rank)
        return int(y[0])

    assert run_local(program, 2)[0] == [1, 0]


def test_the_sender_may_change_a_small_buffer_after_its_send():
    def program(comm):
        x = np.array([1])
        if comm.rank == 0:
            comm.send(x, 1)
            x[0] = 2
        else:
            comm.recv(x, 0)
        return int(x[0])

    assert run_local(program, 2)[0] == [2, 1]


def test_waiting_for_a_rank_that_has_ended_says_so():
    def program(comm):
        if comm.rank == 1:
            comm.recv(np.zeros(1), 0)

    with pytest.raises(DeadlockError, match=r"a message from rank 0 \(it has ended\)"):
        run_local(program, 2)


@pytest.mark.parametrize(
    "sent, received",
    [
        (np.zeros(4, "float32"), np.zeros(2, "float64")),
        (np.zeros(4, "float32"), np.zeros(4, "float64")),
        (np.zeros(4, "int32"), np.zeros(4, "float32")),
        (np.zeros(3), np.zeros(4)),
        (np.zeros(4), np.zeros(3)),
    ],
)
def test_a_message_that_does_not_fit_names_both_sides_and_their_lines(sent, received):
    def program(comm):
        if comm.rank == 0:
            comm.send(sent, 1)
        else:
            comm.recv(received, 0)

    with pytest.raises(MismatchError) as told:
        run_local(program, 2)
    text = str(told.value)
    assert f"rank 0 sending {sent.nbytes} bytes of {sent.dtype} at test_comm.py:" in text
    assert f"rank 1 receiving {received.nbytes} bytes of {received.dtype} at test_comm.py:" in text


DISAGREE = {
    "operation": lambda comm, x: TABLE["broadcast" if comm.rank else "all_reduce"]["binomial" if comm.rank else "tree"],
    "algorithm": lambda comm, x: TABLE["all_reduce"]["tree" if comm.rank else "ring"],
}


@pytest.mark.parametrize("what", DISAGREE)
def test_ranks_that_call_different_collectives_are_told_both_calls(what):
    def program(comm):
        x = np.zeros(4)
        DISAGREE[what](comm, x).function(comm, x)

    with pytest.raises(MismatchError) as told:
        run_local(program, 3)
    text = str(told.value)
    assert "rank 0:" in text and "rank 1:" in text and text.count("test_comm.py:") == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda comm: ring_all_reduce(comm, np.zeros(4 + comm.rank)),
        lambda comm: ring_all_reduce(comm, np.zeros(4, "float32" if comm.rank else "float64")),
        lambda comm: TABLE["all_reduce"]["ring"].function(comm, np.zeros(4), "max" if comm.rank else "sum"),
        lambda comm: TABLE["broadcast"]["binomial"].function(comm, np.zeros(4), comm.rank),
    ],
    ids=["count", "dtype", "op", "root"],
)
def test_ranks_that_disagree_in_arguments_are_told_both_calls(call):
    for run in (run_local, run_dry):
        with pytest.raises(MismatchError, match="every rank must make the same call, got rank 0: .* rank 1: "):
            run(call, 2)


def test_a_rank_that_skips_a_collective_is_named():
    def program(comm):
        if comm.rank != 2:
            TABLE["broadcast"]["linear"].function(comm, np.zeros(4))

    with pytest.raises(MismatchError, match=r"rank 0 calls linear_broadcast.*rank 2 \(it has ended\) did not call it"):
        run_local(program, 3)


def test_a_rank_that_receives_while_others_reduce_is_named():
    def program(comm):
        if comm.rank == 1:
            comm.recv(np.zeros(3), 0, tag=5)
        ring_all_reduce(comm, np.zeros(4))

    with pytest.raises(DeadlockError) as told:
        run_local(program, 2)
    assert "rank 0 calls ring_all_reduce" in str(told.value)
    assert "rank 1 at test_comm.py:" in str(told.value) and "tag 5" in str(told.value)


@pytest.mark.parametrize("algorithm", ["linear", "binomial"])
def test_two_communicators_in_opposite_order_are_an_error_that_names_both(algorithm):
    def program(comm):
        first, second = comm.split(0), comm.split(0)
        for each in (first, second) if comm.rank == 0 else (second, first):
            TABLE["broadcast"][algorithm].function(each, np.zeros(4), 0)

    with pytest.raises((MismatchError, DeadlockError)) as told:
        run_local(program, 2)
    assert str(told.value).count(f"{algorithm}_broadcast") >= 2
    assert "rank 0" in str(told.value) and "rank 1" in str(told.value)


def test_splitting_while_another_reduces_is_an_error():
    def program(comm):
        if comm.rank == 0:
            comm.split(0)
        else:
            ring_all_reduce(comm, np.zeros(1))

    with pytest.raises(MismatchError, match="rank 0 making a communicator"):
        run_local(program, 2)
    with pytest.raises(MismatchError, match="rank 1 making a communicator"):
        run_local(lambda comm: comm.split(0) if comm.rank else ring_all_reduce(comm, np.zeros(1)), 2)


@pytest.mark.parametrize("run", [run_local, run_dry])
def test_split_orders_by_key_then_rank_and_leaves_out_none(run):
    def program(comm):
        part = comm.split(None if comm.rank == 0 else comm.rank % 2, key=-comm.rank)
        return None if part is None else (part.rank, part.size, part.group)

    assert run(program, 5)[0] == [None, (1, 2, (3, 1)), (1, 2, (4, 2)), (0, 2, (3, 1)), (0, 2, (4, 2))]


def test_groups_have_contexts_of_their_own():
    def program(comm):
        parts = [comm.split(0) for _ in range(3)] + [comm.split(comm.rank % 2)]
        return [part.context for part in parts]

    contexts = run_local(program, 4)[0]
    assert len(set(contexts[0])) == 4
    assert contexts[0][:3] == contexts[1][:3] and contexts[0][3] != contexts[1][3]


def test_thousands_of_communicators_leave_nothing_behind():
    def program(comm):
        for _ in range(2000):
            part = comm.split(comm.rank % 2)
            part.free()
        return len(comm.turns)

    assert run_local(program, 4)[0] == [1] * 4  # the world alone


def test_ten_thousand_collectives_in_a_row_stay_apart():
    def program(comm):
        x = np.zeros(3, int)
        for i in range(10_000):
            x[:] = comm.rank + i
            TABLE["all_reduce"]["recursive_doubling"].function(comm, x)
            if (x != 1 + 2 * i).any():
                return i
        return "all right"

    results, trace = run_local(program, 2)
    assert results == ["all right"] * 2
    assert len(trace.templates) == 1


def test_an_error_of_one_rank_ends_all_and_is_raised():
    def program(comm):
        if comm.rank == 1:
            raise ValueError("mine")
        comm.recv(np.zeros(1), 1)

    with pytest.raises(ValueError, match="mine"):
        run_local(program, 3)


def test_a_program_of_many_ranks_starts_and_ends():
    def program(comm):
        x, y = comm.empty(1, "float32"), comm.empty(1, "float32")
        comm.sendrecv(x, (comm.rank + 1) % comm.size, y, (comm.rank - 1) % comm.size)
        return comm.rank

    assert run_local(program, 2000)[0] == list(range(2000))


def test_communicators_split_apart_from_each_other_do_not_meet():
    from emu.collectives import find

    def main(comm):
        half = comm.split(comm.rank // 4)
        pair = half.split(half.rank // 2)
        x, y = np.full(3, comm.rank, "f4"), np.zeros(3, "f4")
        pair.sendrecv(x, 1 - pair.rank, y, 1 - pair.rank)
        find("all_reduce", "ring")(pair, x)
        return float(y[0]), float(x[0])

    results, _ = run_local(main, 8)
    assert results == [(r ^ 1, 2 * r + 1 if r % 2 == 0 else 2 * r - 1) for r in range(8)]
