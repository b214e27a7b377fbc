"""What went wrong for the users of other libraries does not here."""

import threading

import ml_dtypes
import numpy as np
import pytest

from emu.collectives import TABLE, all_reduce, barrier, broadcast, find
from emu.comm import run_local
from emu.errors import DeadlockError, EmuError, MismatchError


def test_two_communicators_used_in_opposite_order_are_an_error_that_names_both():
    def main(comm):
        first, second = comm.split(0), comm.split(0)
        order = (first, second) if comm.rank == 0 else (second, first)
        for turn, group in enumerate(order):
            find("all_reduce", "ring" if group is first else "tree")(group, np.ones(100_000 + turn))

    with pytest.raises(EmuError, match="rank 0.*rank 1"):
        run_local(main, 2)


def test_crossed_groups_of_a_grid_are_a_cycle_not_a_hang():
    def main(comm):
        rows, columns = comm.split(comm.rank // 2), comm.split(comm.rank % 2)
        groups = (rows, columns) if comm.rank in (0, 3) else (columns, rows)
        for group in groups:
            find("all_reduce", "ring")(group, np.ones(100_000))

    with pytest.raises((DeadlockError, MismatchError), match="rank 0.*rank"):
        run_local(main, 4)


def test_one_rank_that_skips_a_collective_is_named():
    def main(comm):
        if comm.rank != 1:
            barrier(comm, algorithm="tree")

    with pytest.raises(EmuError, match="rank 1"):
        run_local(main, 3)


@pytest.mark.parametrize("algorithm", TABLE["all_reduce"])
def test_the_same_input_gives_the_same_bits_twice(algorithm):
    options = {"nodes": (0, 1, 0, 1, 1, 0)} if algorithm == "hierarchical" else {}

    def main(comm):
        results = []
        for _ in range(2):
            x = np.random.default_rng(comm.rank).normal(size=1777).astype("float32")
            find("all_reduce", algorithm)(comm, x, **options)
            results.append(x.tobytes())
        return results

    for first, second in run_local(main, 6)[0]:
        assert first == second


@pytest.mark.parametrize("dtype", ("float16", ml_dtypes.bfloat16), ids=str)
def test_half_precision_travels_and_sums(dtype):
    def main(comm):
        x = np.full(5, comm.rank, dtype)
        all_reduce(comm, x)
        broadcast(comm, x, root=3)
        return x.astype(float).tolist()

    assert run_local(main, 4)[0] == [[6.0] * 5] * 4


def test_buckets_of_any_size_give_the_same_bits_in_one_order():
    """Fused or not, a central sum adds rank by rank in one order."""
    gradient = [np.random.default_rng(r).normal(size=1777).astype("float32") for r in range(4)]

    def main(comm, bucket):
        x = gradient[comm.rank].copy()
        for start in range(0, len(x), bucket):
            find("all_reduce", "naive")(comm, x[start : start + bucket])
        return x.tobytes()

    fused = run_local(lambda comm: main(comm, 10**6), 4)[0]
    assert all(run_local(lambda comm, b=b: main(comm, b), 4)[0] == fused for b in (100, 333, 1777))


def test_ten_thousand_collectives_in_a_row_are_one_template():
    def main(comm):
        x = np.ones(3)
        for turn in range(10_000):
            x[:] = comm.rank + turn % 7
            find("all_reduce", "recursive_doubling")(comm, x)
        return x[0]

    results, trace = run_local(main, 2)
    assert results == [1 + 2 * (9_999 % 7)] * 2
    assert len(trace.templates) <= 2 and [len(rows) for rows in trace.ranks] == [10_000] * 2


def test_two_thousand_communicators_come_and_go():
    def main(comm):
        total = 0.0
        for turn in range(2000):
            group = comm.split((comm.rank + turn) % 2)
            x = np.ones(1)
            find("all_reduce", "ring")(group, x)
            total += x[0]
            group.free()
        return total, threading.active_count()

    results, _ = run_local(main, 3)
    assert sum(total for total, _ in results) == 2000 * (2 * 2 + 1)  # every turn makes groups of two and of one


def test_a_collective_beside_a_message_of_the_same_tag_does_not_take_it():
    def main(comm):
        mine, theirs, x = np.full(2, comm.rank), np.zeros(2, int), np.ones(2, int)
        other = 1 - comm.rank
        requests = [comm.irecv(theirs, other), comm.isend(mine, other)]
        find("all_reduce", "recursive_doubling")(comm, x)
        comm.waitall(requests)
        return theirs.tolist(), x.tolist()

    assert run_local(main, 2)[0] == [([1, 1], [2, 2]), ([0, 0], [2, 2])]
