"""The provenance check: right algorithms pass, wrong ones get an explanation, endless ones are stopped."""

import json
import textwrap
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from emu.cli.verify import read_numbers, verify
from emu.collectives import TABLE, find
from emu.errors import ConfigError
from emu.verify.bounds import bounds_of
from emu.verify.check import check, check_case
from emu.verify.contract import CONTRACTS
from emu.verify.picture import holdings, svg, text
from emu.verify.trial import Case, Submission


def chunks(n, p):
    return [n * i // p for i in range(p + 1)]


def ring(comm, x, gather_steps=None, add_in_gather=False):
    """A student's ring all-reduce; the arguments break it."""
    p, r, c = comm.size, comm.rank, chunks(len(x), comm.size)
    right, left = (r + 1) % p, (r - 1) % p
    for step in range(p - 1 + (p - 1 if gather_steps is None else gather_steps(p))):
        give, take = (r - step) % p, (r - step - 1) % p
        got = np.empty_like(x[c[take] : c[take + 1]])
        comm.sendrecv(x[c[give] : c[give + 1]].copy(), right, got, left)
        if step < p - 1 or add_in_gather:
            x[c[take] : c[take + 1]] += got
        else:
            x[c[take] : c[take + 1]] = got


def blocking_ring(comm, x):
    got = np.empty_like(x)
    for _ in range(comm.size - 1):
        comm.send(x, (comm.rank + 1) % comm.size)
        comm.recv(got, (comm.rank - 1) % comm.size)
        x += got


def waits_for_itself(comm, x):
    comm.recv(np.empty_like(x), (comm.rank - 1) % comm.size)


def ring_with_mpi4py_names(comm, x):
    p, r = comm.Get_size(), comm.Get_rank()
    held = x.copy()
    for _ in range(p - 1):
        got = np.empty_like(x)
        comm.Sendrecv(held, (r + 1) % p, recvbuf=got, source=(r - 1) % p)
        x += got
        held = got


def doubling_for_powers_of_two(comm, x):
    got, distance = np.empty_like(x), 1
    while distance < comm.size:
        partner = comm.rank ^ distance
        if partner < comm.size:
            comm.sendrecv(x.copy(), partner, got, partner)
            x += got
        distance *= 2


def overwrites(comm, x):
    """Right, then rank 1 receives rank 0's own x over its result."""
    mine = x.copy()
    ring(comm, x)
    if comm.size > 1 and comm.rank == 0:
        comm.send(mine, 1)
    elif comm.rank == 1:
        comm.recv(x, 0)


def uses_unset_scratch(comm, x):
    if comm.size > 1:
        x += comm.empty_like(x)


def changes_a_buffer_under_way(comm, x):
    p, r, got = comm.size, comm.rank, np.empty_like(x)
    requests = [comm.irecv(got, (r - 1) % p), comm.isend(x, (r + 1) % p)]
    x += 1
    comm.waitall(requests)


def sends_to_nobody(comm, x):
    ring(comm, x)
    if comm.rank == 0 and comm.size > 1:
        comm.isend(x[:1].copy(), 1)


def raises(comm, x):
    if comm.rank == 1:
        raise IndexError("no such chunk")


def faults(function, ranks=(2, 3, 4), collective="all_reduce", **options):
    return check(Submission(collective, function, "it", options), ranks)[1]


def why(function, p, n, collective="all_reduce", **options):
    fault, _ = check_case(Submission(collective, function, "it", options), Case(p, n))
    return "\n".join(fault.why) if fault else ""


@pytest.mark.parametrize("collective, algorithm", [(c, a) for c in TABLE for a in TABLE[c]])
def test_every_algorithm_of_the_table_is_correct(collective, algorithm):
    rows, wrong = check(Submission(collective, find(collective, algorithm), algorithm), (1, 2, 3, 6, 8), (0, 1, 7))
    assert not wrong and [row.p for row in rows] == [1, 2, 3, 6, 8]


def test_a_students_ring_is_correct_and_its_cost_is_told():
    rows, wrong = check(Submission("all_reduce", ring, "ring"), (4,))
    assert not wrong
    assert (rows[0].messages, rows[0].steps, rows[0].least_steps) == (24, 6, 2)
    assert rows[0].least_bytes <= rows[0].bytes_busiest_rank < 1.02 * rows[0].least_bytes


def test_mpi4py_names_work_too():
    assert not faults(ring_with_mpi4py_names)


def test_a_ring_one_step_short_tells_who_misses_whose_part():
    told = why(ring, 4, 4, gather_steps=lambda p: p - 2)
    assert "rank 1 misses rank 2's part in element 3: no message brings it; the last to arrive is message 17" in told
    assert "(step 5) from rank 0 to rank 1 (sent at test_verify.py:" in told


def test_a_ring_that_adds_twice_tells_since_which_message():
    told = why(ring, 3, 3, add_in_gather=True)
    assert "rank 0 has rank 0's part twice in elements 0, 2, since message 7 (step 3) from rank 2 to rank 0" in told


def test_doubling_fails_only_where_p_is_no_power_of_two():
    assert [fault.case.p for fault in faults(doubling_for_powers_of_two, (1, 2, 3, 4, 5, 8))] == [3, 5]
    assert "rank 1 misses rank 2's part" in why(doubling_for_powers_of_two, 3, 3)


def test_a_part_that_was_there_and_is_overwritten_is_told():
    assert "rank 1 misses the parts of ranks 1 and 2 in elements 0-2: it was there, and was overwritten after" in why(
        overwrites, 3, 3
    )


def test_blocking_sends_are_a_cycle_with_source_lines():
    told = why(blocking_ring, 3, 3)
    assert told.count("waits for its send to be received by rank") == 3
    assert told.count("test_verify.py:") == 3 and "and so round again; post the receive" in told


def test_receives_before_sends_are_a_cycle_too():
    assert "somebody must send before it receives" in why(waits_for_itself, 2, 1)


def test_scratch_that_nobody_filled_is_told():
    assert "rank 0 holds what nobody put in, in elements 0-1" in why(uses_unset_scratch, 2, 2)


def test_a_buffer_changed_under_way_is_told():
    assert "message 1 (step 1) from rank 0 to rank 1" in why(changes_a_buffer_under_way, 2, 2)
    assert "changed the buffer before its send was waited for" in why(changes_a_buffer_under_way, 2, 2)


def test_a_message_that_nobody_receives_is_told():
    assert "rank 0 sent to rank 1 at test_verify.py:" in why(sends_to_nobody, 2, 2)


def test_a_result_that_is_returned_and_not_written_is_told():
    def returns(comm, x):
        total = x.copy()
        find("all_reduce", "ring")(comm, total)
        return total

    assert "the right result is returned, but x is not changed; write it there: x[:] = result" in why(returns, 3, 3)


def test_an_operation_that_has_no_default_is_given():
    def takes_op(comm, x, op):
        find("all_reduce", "tree")(comm, x, op=op)

    assert not faults(takes_op)


def test_an_exception_tells_the_rank_and_the_line():
    assert "rank 1: IndexError: no such chunk (at test_verify.py:" in why(raises, 2, 2)


def test_a_barrier_that_lets_a_rank_go_early_is_told():
    def no_answer(comm):
        if comm.rank:
            comm.send(np.empty(0), 0)
        for source in range(1, comm.size if comm.rank == 0 else 0):
            comm.recv(np.empty(0), source)

    assert "rank 1 returns before it has heard of ranks 0 and 2" in why(no_answer, 3, 0, "barrier")


def test_elements_in_the_wrong_place_are_told():
    def reversed_gather(comm, x, out):
        find("all_gather", "ring")(comm, x[::-1].copy(), out)

    assert "rank 0 has rank 0's element 1 where its element 0 belongs" in why(reversed_gather, 2, 2, "all_gather")


@pytest.mark.parametrize("collective, p, steps, nbytes", [
    ("all_reduce", 4, 2, 1500), ("broadcast", 5, 3, 1000), ("all_gather", 8, 3, 875), ("all_reduce", 1, 0, 0),
])  # fmt: skip
def test_lower_bounds(collective, p, steps, nbytes):
    assert (bounds_of(collective, p, 1000).steps, bounds_of(collective, p, 1000).nbytes) == (steps, nbytes)


@pytest.mark.parametrize("collective", CONTRACTS)
def test_a_contract_says_what_numpy_says(collective):
    x = [np.array([1, 2]), np.array([10, 20])]
    expected = {
        "all_reduce": ([11, 22], [11, 22]),
        "broadcast": ([10, 20], [10, 20]),
        "reduce": (None, [11, 22]),
        "all_gather": ([1, 2, 10, 20], [1, 2, 10, 20]),
        "reduce_scatter": ([11], [22]),
        "scatter": ([10], [20]),
        "gather": (None, [1, 2, 10, 20]),
        "all_to_all": ([1, 10], [2, 20]),
        "barrier": (None, None),
    }[collective]
    held = [CONTRACTS[collective].expected(x, rank, 1, "sum") for rank in range(2)]
    assert [None if h is None else h.tolist() for h in held] == list(expected)


def test_the_picture_shows_who_holds_what():
    picture = holdings(Submission("all_reduce", ring, "ring"), 2)
    lines = text(picture).splitlines()
    assert lines[:4] == ["ring as all_reduce, 2 ranks", "start", "  rank  0 | 0  | 0", "  rank  1 | 1  | 1"]
    assert lines[-2:] == ["  rank  0 | 01 | 01 | <- 01", "  rank  1 | 01 | 01 | <- 01"]
    drawing = ElementTree.fromstring(svg(picture))
    titles = [title.text for title in drawing.iter("{http://www.w3.org/2000/svg}title")]
    assert titles.count("rank 0") == 2 + 3 + 4


@pytest.fixture
def lab(tmp_path):
    path = tmp_path / "lab.py"
    path.write_text(
        textwrap.dedent(
            """
            def forever(comm, x):
                while True:
                    pass

            def noisy(comm, x):
                while True:
                    print("x" * 1000)

            def hungry(comm, x):
                bytearray(1 << 40)

            def leaves(comm, x):
                import os
                os._exit(3)

            def good(comm, x):
                from emu.collectives import ring_all_reduce
                print("hello")
                ring_all_reduce(comm, x)
            """
        )
    )
    return path


def run(*args):
    return CliRunner().invoke(verify, [str(a) for a in args], standalone_mode=False)


@pytest.mark.parametrize("function, told", [
    ("forever", "p=2, n=0: stopped: it did not end within 2 s, at lab.py:"),
    ("noisy", "printed more than 16 MiB"),
    ("hungry", "MemoryError"),
    ("leaves", "ended with status 3"),
])  # fmt: skip
def test_what_does_not_end_well_is_stopped_and_told(lab, function, told):
    result = run("all_reduce", f"{lab}:{function}", "-p", "2", "--limit", "2")
    assert result.return_value == 1 and told in result.output and "NOT CORRECT" in result.output


def test_a_correct_submission_is_timed_beside_the_best(lab):
    result = run("all_reduce", f"{lab}:good", "-p", "2-3", "--json")
    told = json.loads(result.output)
    assert result.return_value == 0 and told["correct"]
    assert told["timed"]["time_s"] >= told["timed"]["best_time_s"] > 0


@pytest.mark.parametrize("what, message", [
    ("nothing.py:f", "nothing.py, which is not there"),
    ("lab.py", "name the function"),
    ("rings", "did you mean 'ring'"),
    ("{lab}:god", "a function 'god' is expected, got forever, noisy, hungry, leaves, good"),
])  # fmt: skip
def test_a_submission_that_is_not_there_is_an_error(lab, what, message):
    with pytest.raises(ConfigError, match=message):
        raise run("all_reduce", what.format(lab=lab), "-p", "2").exception


def test_ranges_of_numbers():
    assert read_numbers("-p", "2-4,8", 1) == [2, 3, 4, 8]
    for wrong in ("0", "4-2", "a", "1-", ""):
        with pytest.raises(ConfigError):
            read_numbers("-p", wrong, 1)
