"""Every algorithm of the table: right sums, the same bits everywhere, the messages and bytes it claims."""

import ml_dtypes
import numpy as np
import pytest

from emu.collectives import TABLE, UNEVEN, all_reduce, find, reduce, reduce_scatter
from emu.comm import run_dry, run_local
from emu.errors import ConfigError, MismatchError
from emu.verify.contract import CONTRACTS
from emu.verify.traffic import sent_in_all

RANKS = (1, 2, 3, 4, 5, 7, 8, 13, 16)
DTYPES = ("int8", "uint8", "int16", "int32", "int64", "float16", ml_dtypes.bfloat16, "float32", "float64")
ALGORITHMS = [(c, a) for c, table in TABLE.items() for a in table]
REDUCING = [(c, a) for c, a in ALGORITHMS if CONTRACTS[c].reduces]


def algorithms_of(*collectives):
    return [(c, a) for c, a in ALGORITHMS if c in collectives]


def nodes_for(p):
    """Ranks on uneven nodes, not in one block each."""
    return tuple(r % 3 if r < p - 1 else 0 for r in range(p))


def options_for(algorithm, p, segment_bytes=64):
    if algorithm == "hierarchical":
        return {"nodes": nodes_for(p)}
    return {"segment_bytes": segment_bytes} if algorithm in ("segmented_ring", "double_tree", "chain") else {}


def make_inputs(collective, p, n, dtype="int32", low=-2, high=3):
    """Small integers, so that every sum is exact in every dtype."""
    size, low = CONTRACTS[collective].input_size(p, n), max(0, low) if dtype == "uint8" else low
    return [np.random.default_rng([p, n, r]).integers(low, high, size).astype(dtype) for r in range(p)]


def run(collective, algorithm, inputs, n, root=0, op="sum", options=None, in_place=False):
    """Run on all ranks; return what each holds in the end, and the trace."""
    contract, function, p = CONTRACTS[collective], TABLE[collective][algorithm].function, len(inputs)

    def main(comm):
        r = comm.rank
        x = inputs[r].copy()
        out = np.full(contract.output_size(p, n), 77, x.dtype)
        if in_place and contract.gives == "whole":
            out[r * n : (r + 1) * n] = x
            x = out[r * n : (r + 1) * n]
        elif in_place:
            out = x[r * n : (r + 1) * n]
        contract.call(function, comm, x, out, root, op, options or {})
        return x if contract.gives == "in place" else out

    return run_local(main, p)


def assert_right(collective, inputs, held, root=0, op="sum"):
    for r, array in enumerate(held):
        expected = CONTRACTS[collective].expected(inputs, r, root, op)
        if expected is not None:
            np.testing.assert_array_equal(array, expected, err_msg=f"rank {r}")


@pytest.mark.parametrize("collective, algorithm", ALGORITHMS)
@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("length", ("0", "1", "p-1", "p", "p+1", "1000", "10007"))
def test_result_equals_numpy(collective, algorithm, p, length):
    n = eval(length, {"p": p})
    if CONTRACTS[collective].takes != "chunk" or CONTRACTS[collective].gives != "in place":
        n = -(-n // p)  # lengths are those of the whole
    inputs = make_inputs(collective, p, n)
    root = p // 2
    held, _ = run(collective, algorithm, inputs, n, root, options=options_for(algorithm, p, max(64, n)))
    assert_right(collective, inputs, held, root)


@pytest.mark.parametrize("collective, algorithm", ALGORITHMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_works(collective, algorithm, dtype):
    inputs = make_inputs(collective, 5, 13, dtype)
    held, _ = run(collective, algorithm, inputs, 13, options=options_for(algorithm, 5, 16))
    assert_right(collective, inputs, held)


@pytest.mark.parametrize("collective, algorithm", REDUCING)
@pytest.mark.parametrize("op", ("prod", "max", "min", "avg"))
@pytest.mark.parametrize("p, dtype", [(1, "int32"), (4, "float32"), (7, "int32")])
def test_every_operation_works(collective, algorithm, op, p, dtype):
    inputs = make_inputs(collective, p, 5, dtype, low=1)
    held, _ = run(collective, algorithm, inputs, 5, op=op, options=options_for(algorithm, p, 16))
    assert_right(collective, inputs, held, op=op)


@pytest.mark.parametrize("collective, algorithm", algorithms_of("all_gather", "reduce_scatter", "gather"))
@pytest.mark.parametrize("p", (1, 2, 3, 4, 7, 8))
def test_a_chunk_may_lie_in_its_whole(collective, algorithm, p):
    inputs = make_inputs(collective, p, 3)
    held, _ = run(collective, algorithm, inputs, 3, in_place=True)
    assert_right(collective, inputs, held)


@pytest.mark.parametrize("collective, algorithm", ALGORITHMS)
@pytest.mark.parametrize("p", RANKS)
@pytest.mark.parametrize("n", (0, 3, 1001))
def test_messages_and_bytes_are_as_claimed(collective, algorithm, p, n):
    options = options_for(algorithm, p, 256)
    inputs = make_inputs(collective, p, n)
    _, trace = run(collective, algorithm, inputs, n, options=options)
    claim, nbytes = TABLE[collective][algorithm], CONTRACTS[collective].total_size(p, n) * 4
    sent = sent_in_all(trace)
    assert sent.messages == claim.messages(p, nbytes, 4, **options)
    assert sent.nbytes == claim.bytes_sent(p, nbytes, 4, **options)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("algorithm", TABLE["all_reduce"])
@pytest.mark.parametrize("p", (2, 3, 4, 6, 8, 13))
@pytest.mark.parametrize("op", ("sum", "max"))
def test_every_rank_gets_the_same_bits(algorithm, p, op):
    """Values that round in every sum; zeros of both signs and NaN, whose bits depend on operand order."""
    special = np.array([0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf], "float32")
    inputs = [
        np.concatenate([np.random.default_rng(r).normal(size=101).astype("float32"), np.roll(special, r)])
        for r in range(p)
    ]
    with np.errstate(invalid="ignore"):
        held, _ = run("all_reduce", algorithm, inputs, 107, op=op, options=options_for(algorithm, p))
    assert {array.tobytes() for array in held} == {held[0].tobytes()}


@pytest.mark.parametrize("collective, algorithm", ALGORITHMS)
def test_two_runs_give_the_same_bits(collective, algorithm):
    inputs = [np.random.default_rng(r).normal(size=CONTRACTS[collective].input_size(6, 50)) for r in range(6)]
    first, second = (run(collective, algorithm, inputs, 50, options=options_for(algorithm, 6))[0] for _ in "ab")
    assert [a.tobytes() for a in first] == [a.tobytes() for a in second]


@pytest.mark.parametrize("collective, algorithm", [(c, a) for c, a in ALGORITHMS if CONTRACTS[c].rooted])
@pytest.mark.parametrize("root", range(7))
def test_any_rank_may_be_root(collective, algorithm, root):
    inputs = make_inputs(collective, 7, 4)
    held, _ = run(collective, algorithm, inputs, 4, root, options=options_for(algorithm, 7, 8))
    assert_right(collective, inputs, held, root)


@pytest.mark.parametrize("algorithm", TABLE["reduce"])
def test_a_reduce_leaves_other_ranks_buffers_alone(algorithm):
    inputs = make_inputs("reduce", 6, 9)
    held, _ = run("reduce", algorithm, inputs, 9, root=2, options=options_for(algorithm, 6, 8))
    for r in (0, 1, 3, 4, 5):
        np.testing.assert_array_equal(held[r], inputs[r])


@pytest.mark.parametrize("algorithm", TABLE["reduce_scatter"])
def test_a_reduce_scatter_leaves_its_input_alone(algorithm):
    def main(comm):
        x = np.arange(12, dtype="int32") + comm.rank
        find("reduce_scatter", algorithm)(comm, x, np.empty(2, "int32"))
        return x

    for r, x in enumerate(run_local(main, 6)[0]):
        np.testing.assert_array_equal(x, np.arange(12) + r)


@pytest.mark.parametrize("collective, algorithm", algorithms_of("all_gather", "reduce_scatter"))
@pytest.mark.parametrize("p", (1, 2, 3, 5, 8))
def test_counts_make_chunks_uneven(collective, algorithm, p):
    counts = [(3 * r + 1) % 4 for r in range(p)]
    whole = [np.random.default_rng(r).integers(-9, 9, sum(counts)) for r in range(p)]
    starts = np.cumsum([0, *counts])

    def main(comm):
        mine = slice(starts[comm.rank], starts[comm.rank + 1])
        if collective == "all_gather":
            out = np.full(sum(counts), 77)
            find(collective, algorithm)(comm, whole[0][mine].copy(), out, counts=counts)
            return out, whole[0]
        out = np.full(counts[comm.rank], 77)
        find(collective, algorithm)(comm, whole[comm.rank], out, counts=counts)
        return out, sum(whole)[mine]

    for held, expected in run_local(main, p)[0]:
        np.testing.assert_array_equal(held, expected)


@pytest.mark.parametrize("collective", ("scatter_v", "gather_v"))
@pytest.mark.parametrize("algorithm", UNEVEN["scatter_v"])
@pytest.mark.parametrize("p, root", [(1, 0), (2, 1), (5, 0), (5, 3), (8, 6)])
def test_scatter_and_gather_take_uneven_chunks(collective, algorithm, p, root):
    counts = [(5 * r + 2) % 4 for r in range(p)]
    starts = np.cumsum([0, *counts])
    whole = np.arange(sum(counts))

    def main(comm):
        mine = whole[starts[comm.rank] : starts[comm.rank + 1]].copy()
        part, all_parts = np.full(len(mine), 77), np.full(len(whole), 77)
        if collective == "scatter_v":
            find(collective, algorithm)(comm, whole if comm.rank == root else None, part, counts, root)
            return part, mine
        find(collective, algorithm)(comm, mine, all_parts if comm.rank == root else None, counts, root)
        return all_parts, whole if comm.rank == root else np.full(len(whole), 77)

    for held, expected in run_local(main, p)[0]:
        np.testing.assert_array_equal(held, expected)


@pytest.mark.parametrize("algorithm", UNEVEN["all_to_all_v"])
@pytest.mark.parametrize("p", (1, 2, 3, 5, 8))
def test_all_to_all_takes_uneven_chunks(algorithm, p):
    counts = np.random.default_rng(p).integers(0, 4, (p, p))

    def main(comm):
        r = comm.rank
        x = np.concatenate([np.full(counts[r, q], 100 * r + q) for q in range(p)])
        out = np.full(counts[:, r].sum(), 77)
        find("all_to_all_v", algorithm)(comm, x, out, list(counts[r]), list(counts[:, r]))
        return out, np.concatenate([np.full(counts[q, r], 100 * q + r) for q in range(p)])

    for held, expected in run_local(main, p)[0]:
        np.testing.assert_array_equal(held, expected)


@pytest.mark.parametrize("servers", (1, 2, 4, 5))
def test_a_parameter_server_may_be_several(servers):
    inputs = make_inputs("all_reduce", 5, 11)
    held, trace = run("all_reduce", "parameter_server", inputs, 11, options={"servers": servers})
    assert_right("all_reduce", inputs, held)
    assert sent_in_all(trace).messages == TABLE["all_reduce"]["parameter_server"].messages(5, 44, 4, servers=servers)


@pytest.mark.parametrize("between", ("ring", "rabenseifner", "tree"))
@pytest.mark.parametrize("nodes", [(0,) * 6, (0, 1, 2, 3, 4, 5), (0, 0, 0, 0, 1, 1), (2, 1, 2, 2, 1, 0)])
def test_hierarchical_takes_any_placement(between, nodes):
    inputs = make_inputs("all_reduce", 6, 11)
    held, _ = run("all_reduce", "hierarchical", inputs, 11, options={"nodes": nodes, "between": between})
    assert_right("all_reduce", inputs, held)


@pytest.mark.parametrize("segment_bytes", (1, 4, 12, 40, 10**6))
@pytest.mark.parametrize("collective, algorithm", [
    ("all_reduce", "segmented_ring"), ("all_reduce", "double_tree"), ("broadcast", "chain"), ("reduce", "chain"),
])  # fmt: skip
def test_any_segment_size_works(collective, algorithm, segment_bytes):
    inputs = make_inputs(collective, 5, 23)
    held, _ = run(collective, algorithm, inputs, 23, root=0, options={"segment_bytes": segment_bytes})
    assert_right(collective, inputs, held)


@pytest.mark.parametrize("collective, algorithm", ALGORITHMS)
@pytest.mark.parametrize("p", (2, 5, 8))
def test_no_send_needs_a_buffer(collective, algorithm, p, monkeypatch):
    """With every message forced to wait for its receive, nothing deadlocks."""
    monkeypatch.setattr("emu.comm.local.EAGER_BYTES", -1)
    inputs = make_inputs(collective, p, 40)
    held, _ = run(collective, algorithm, inputs, 40, options=options_for(algorithm, p, 16))
    assert_right(collective, inputs, held)


@pytest.mark.parametrize("algorithm", TABLE["all_reduce"])
def test_a_dry_run_records_the_same_trace(algorithm):
    def main(comm):
        find("all_reduce", algorithm)(comm, comm.empty(23, "int32"), **options_for(algorithm, 6, 16))

    def done(trace):
        columns = ["op", "a", "n", "x"]
        return [[trace.templates[row["a"]].rows[columns].tolist() for row in rows] for rows in trace.ranks]

    assert done(run_dry(main, 6)[1]) == done(run_local(main, 6)[1])


def test_an_array_of_any_shape_is_one_buffer():
    def main(comm):
        x = np.full((2, 3, 4), comm.rank)
        all_reduce(comm, x, algorithm="ring")
        return x

    np.testing.assert_array_equal(run_local(main, 4)[0][3], np.full((2, 3, 4), 6))


def test_groups_reduce_by_themselves():
    def main(comm):
        part = comm.split(comm.rank % 2, -comm.rank)
        x = np.full(5, 10**comm.rank)
        all_reduce(part, x, algorithm="ring")
        return x[0]

    assert run_local(main, 5)[0] == [10101, 1010, 10101, 1010, 10101]


def test_4096_ones_in_float16_stop_at_2048_unless_summed_in_float32():
    def main(comm):
        plain, wide = np.ones(1, "float16"), np.ones(1, "float16")
        all_reduce(comm, plain, algorithm="naive")
        all_reduce(comm, wide, algorithm="naive", accumulate="float32")
        return plain[0], wide[0]

    assert run_local(main, 4096)[0][7] == (2048, 4096)


@pytest.mark.parametrize("dtype", ("float16", ml_dtypes.bfloat16), ids=str)
def test_float32_accumulation_rounds_once(dtype):
    x = np.random.default_rng(0).normal(size=(5, 30)).astype(dtype)
    exact = x.astype("float32").sum(axis=0).astype(dtype)

    def main(comm):
        each, at_root, part = x[comm.rank].copy(), x[comm.rank].copy(), np.empty(6, dtype)
        all_reduce(comm, each, algorithm="naive", accumulate="float32")
        reduce(comm, at_root, algorithm="linear", accumulate="float32")
        reduce_scatter(comm, x[comm.rank], part, algorithm="ring", accumulate="float32")
        return each, at_root, part

    held = run_local(main, 5)[0]
    np.testing.assert_array_equal(held[3][0], exact)
    np.testing.assert_array_equal(held[0][1], exact)
    np.testing.assert_array_equal(held[3][1], x[3])
    np.testing.assert_allclose(held[1][2].astype("f4"), exact[6:12].astype("f4"), rtol=1e-2)


@pytest.mark.parametrize("collective, algorithm, there", [
    ("all_reduce", "rings", "ring"), ("reduce_scatter", "tree", "recursive_halving"), ("barrier", "ring", "tree"),
])  # fmt: skip
def test_asking_for_what_does_not_exist_lists_what_does(collective, algorithm, there):
    with pytest.raises(ConfigError, match=f"{collective} algorithm: must be one of .*{there}.*auto.*{algorithm}"):
        find(collective, algorithm)


@pytest.mark.parametrize("call, message", [
    (lambda c: find("all_reduce", "ring")(c, np.ones(3), op="mean"), "op: must be one of sum, prod"),
    (lambda c: find("broadcast", "binomial")(c, np.ones(3), root=4), "root must be a rank from 0 to 3, got 4"),
    (lambda c: find("all_gather", "ring")(c, np.ones(3), np.ones(11)), "4 parts of 3 elements, got 11"),
    (lambda c: find("all_gather", "ring")(c, np.ones(3), np.ones(12, "f4")), "one dtype, got float64 and float32"),
    (lambda c: find("all_gather", "bruck")(c, np.ones(1), np.ones(9), counts=[1, 2]), "counts must be 4 lengths"),
    (lambda c: find("all_to_all", "linear")(c, np.ones(6), np.ones(6)), "4 equal chunks"),
    (lambda c: find("all_reduce", "parameter_server")(c, np.ones(3), servers=9), "servers must be from 1 to 4, got 9"),
    (lambda c: find("all_reduce", "hierarchical")(c, np.ones(3), nodes=[0]), "node of each of 4 ranks"),
    (lambda c: all_reduce(c, np.ones(3, "f2"), accumulate="float64"), "accumulate: must be 'float32' or None"),
    (lambda c: find("all_reduce", "ring")(c, np.ones((4, 4))[:, 0]), "contiguous"),
])  # fmt: skip
def test_a_bad_call_says_what_must_hold(call, message):
    with pytest.raises(ConfigError, match=message):
        run_local(call, 4)


@pytest.mark.parametrize("calls", [
    lambda c: find("all_reduce", "ring")(c, np.ones(4 + (c.rank == 2))),
    lambda c: find("all_reduce", "ring")(c, np.ones(4, "f4" if c.rank else "f8")),
    lambda c: find("all_reduce", "ring" if c.rank else "tree")(c, np.ones(4)),
    lambda c: find("broadcast", "binomial")(c, np.ones(4), root=int(c.rank == 1)),
    lambda c: find("all_reduce", "ring")(c, np.ones(4), op="max" if c.rank else "min"),
    lambda c: find("barrier", "tree")(c) if c.rank else find("all_reduce", "ring")(c, np.ones(4)),
])  # fmt: skip
def test_ranks_that_disagree_get_an_error_that_names_both_calls(calls):
    with pytest.raises(MismatchError, match=r"rank 0: .*test_collectives.py:\d+; rank [12]: .*test_collectives.py:\d+"):
        run_local(calls, 3)
