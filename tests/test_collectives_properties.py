"""Properties of collectives that hold for any ranks, lengths, roots, groups and sequences."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.collectives import TABLE, UNEVEN, find
from emu.comm import run_local
from emu.verify.contract import CONTRACTS
from emu.verify.traffic import sent_in_all

ALGORITHMS = [(c, a) for c, table in TABLE.items() for a in table]
quick = settings(max_examples=60, deadline=None)


@st.composite
def calls(draw, p):
    """Any collective with any algorithm, length, root and options."""
    collective, algorithm = draw(st.sampled_from(ALGORITHMS))
    options = {}
    if algorithm == "hierarchical":
        options["nodes"] = tuple(draw(st.lists(st.integers(0, 3), min_size=p, max_size=p)))
        options["between"] = draw(st.sampled_from(["ring", "rabenseifner", "tree"]))
    elif algorithm in ("segmented_ring", "double_tree", "chain"):
        options["segment_bytes"] = draw(st.integers(1, 300))
    elif algorithm == "parameter_server":
        options["servers"] = draw(st.integers(1, p))
    return collective, algorithm, draw(st.integers(0, 40)), draw(st.integers(0, p - 1)), options


def call(comm, drawn, seed):
    """Make one call on this rank; return what it holds and what it must hold."""
    collective, algorithm, n, root, options = drawn
    contract, p = CONTRACTS[collective], comm.size
    inputs = [np.random.default_rng([seed, r]).integers(-9, 9, contract.input_size(p, n)) for r in range(p)]
    x, out = inputs[comm.rank].copy(), np.full(contract.output_size(p, n), 77)
    contract.call(TABLE[collective][algorithm].function, comm, x, out, root, "sum", options)
    return x if contract.gives == "in place" else out, contract.expected(inputs, comm.rank, root, "sum")


@quick
@given(st.data())
def test_a_sequence_of_any_calls_is_right(data):
    p = data.draw(st.integers(1, 12))
    drawn = data.draw(st.lists(calls(p), min_size=1, max_size=5))
    for pairs in run_local(lambda comm: [call(comm, each, i) for i, each in enumerate(drawn)], p)[0]:
        for held, expected in pairs:
            assert expected is None or np.array_equal(held, expected)


@quick
@given(st.data())
def test_calls_in_any_groups_are_right(data):
    p = data.draw(st.integers(2, 9))
    colors = data.draw(st.lists(st.integers(0, 2), min_size=p, max_size=p))
    keys = data.draw(st.lists(st.integers(-3, 3), min_size=p, max_size=p))
    algorithm, n = data.draw(st.sampled_from(sorted(set(TABLE["all_reduce"]) - {"hierarchical"}))), 17

    def main(comm):
        group = comm.split(colors[comm.rank], keys[comm.rank])
        x = np.full(n, 1 << comm.rank)
        find("all_reduce", algorithm)(group, x)
        whole = np.ones(n, int)
        find("all_reduce", algorithm)(comm, whole)
        return set(x.tolist()), set(whole.tolist())

    for rank, (group, whole) in enumerate(run_local(main, p)[0]):
        assert group == {sum(1 << r for r in range(p) if colors[r] == colors[rank])} and whole == {p}


@quick
@given(st.lists(st.integers(0, 6), min_size=1, max_size=10), st.data())
def test_any_counts_are_right(counts, data):
    p, starts = len(counts), np.cumsum([0, *counts])
    root = data.draw(st.integers(0, p - 1))
    scatter, gather = (data.draw(st.sampled_from(sorted(UNEVEN[c]))) for c in ("scatter_v", "gather_v"))
    all_gather, whole = data.draw(st.sampled_from(sorted(TABLE["all_gather"]))), np.arange(sum(counts))

    def main(comm):
        part, back, everywhere = np.full(counts[comm.rank], 77), np.full(len(whole), 77), np.full(len(whole), 77)
        find("scatter_v", scatter)(comm, whole if comm.rank == root else None, part, counts, root)
        find("all_gather", all_gather)(comm, part, everywhere, counts)
        find("gather_v", gather)(comm, part, back if comm.rank == root else None, counts, root)
        return part, back, everywhere

    for rank, (part, back, everywhere) in enumerate(run_local(main, p)[0]):
        assert np.array_equal(part, whole[starts[rank] : starts[rank + 1]]) and np.array_equal(everywhere, whole)
        assert rank != root or np.array_equal(back, whole)


BANDWIDTH_FRUGAL = sorted(set(TABLE["all_reduce"]) - {"recursive_doubling", "in_switch"})


@quick
@given(st.integers(1, 40), st.integers(0, 200), st.sampled_from(BANDWIDTH_FRUGAL))
def test_every_all_reduce_but_one_moves_the_same_bytes(p, n, algorithm):
    """2(p-1)n in all: what differs is how many steps it takes and whose ports carry it."""
    options = {"nodes": tuple(r % 3 for r in range(p))} if algorithm == "hierarchical" else {}
    trace = run_local(lambda comm: find("all_reduce", algorithm)(comm, np.zeros(n, "int8"), **options), p)[1]
    assert sent_in_all(trace).nbytes == 2 * (p - 1) * n
