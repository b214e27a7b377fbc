"""Collectives that are recorded for many ranks at once: the same rows and the same bits as rank by rank."""

from dataclasses import replace

import numpy as np
import pytest

from emu.cluster import load_cluster
from emu.collectives.cuts import even_cuts
from emu.collectives.table import TABLE
from emu.comm import run_dry, together
from emu.comm.at_once import Extent, NotAtOnce, Parted, Ranks, Table
from emu.engine import resolve
from emu.errors import TraceError
from emu.parallel.plan import Plan
from emu.parallel.training import train
from emu.program import run_here
from emu.timeline.volumes import bytes_sent
from emu.trace import Op, Trace

CLUSTER = load_cluster("dgx-a100:2")
EVERY = [(operation, name) for operation in TABLE for name in TABLE[operation] if name != "in_switch"]
RINGS = [("all_reduce", "ring"), ("all_reduce", "segmented_ring"), ("all_reduce", "hierarchical"),
         ("all_gather", "ring"), ("reduce_scatter", "ring"), ("reduce_scatter", "pairwise"), ("all_to_all", "pairwise")]


def call(operation, function, comm, n):
    """Make one collective call of about n elements a rank, whose chunks are uneven where they can be."""
    p = comm.size
    counts = [n + (rank % 3 == 0) for rank in range(p)]
    mine, whole = comm.empty(counts[comm.rank], "float32"), comm.empty(sum(counts), "float32")
    if operation in ("all_reduce", "reduce", "broadcast"):
        function(comm, whole)
    elif operation == "all_gather":
        function(comm, mine, whole, counts=counts)
    elif operation == "reduce_scatter":
        function(comm, whole, mine, counts=counts)
    elif operation == "barrier":
        function(comm)
    elif operation == "all_to_all":
        function(comm, comm.empty(n * p, "float32"), comm.empty(n * p, "float32"))
    else:
        each, all_of_them = comm.empty(n, "float32"), comm.empty(n * p, "float32")
        function(comm, *((each, all_of_them) if operation == "gather" else (all_of_them, each)))


@pytest.fixture
def recorded(monkeypatch):
    """Return a function that records a program rank by rank, and for all ranks at once."""

    def both(program, ranks):
        traces = []
        for fewest in (10**9, 1):
            monkeypatch.setattr(together, "FEWEST", fewest)
            traces.append(run_dry(program, ranks)[1])
        return traces

    return both


def program_of(operation, name, *sizes, profile="ideal"):
    def program(comm):
        comm.cluster, comm.profile = CLUSTER, profile
        for n in sizes:
            call(operation, TABLE[operation][name].function, comm, n)

    return program


def rows_of(trace):
    """Return all rows of all ranks, with what they call in place of the calls."""
    found = []
    for rank, log in enumerate(trace.ranks):
        for row in log:
            found.append((rank, row["n"], row["b"], row["c"], row.tobytes() if row["op"] != Op.CALL else
                          trace.templates[row["a"]].rows_at(trace.place(row["b"], rank)).tobytes()))
    return found


@pytest.mark.parametrize("ranks", [13, 16])
@pytest.mark.parametrize(("operation", "name"), EVERY)
def test_every_collective_has_the_same_rows_as_rank_by_rank(recorded, operation, name, ranks):
    one_by_one, at_once = recorded(program_of(operation, name, 0, 1, 40), ranks)
    assert rows_of(at_once) == rows_of(one_by_one)
    assert (at_once.labels, at_once.groups) == (one_by_one.labels, one_by_one.groups)


@pytest.mark.parametrize(("operation", "name", "templates"), [
    ("all_reduce", "ring", 1), ("all_reduce", "segmented_ring", 1), ("all_reduce", "hierarchical", 4)])
def test_ranks_that_differ_in_lengths_share_a_template(recorded, operation, name, templates):
    one_by_one, at_once = recorded(program_of(operation, name, 40), 16)
    assert len(at_once.templates) <= templates < len(one_by_one.templates)


@pytest.mark.parametrize("profile", ["ideal", "mpi", "nccl"])
@pytest.mark.parametrize(("operation", "name"), RINGS)
def test_lengths_in_a_template_give_the_same_bits(recorded, operation, name, profile):
    traces = recorded(program_of(operation, name, 5, 30_000, profile=profile), 16)
    one, other = (resolve(trace, CLUSTER, profile=profile, detail="flows") for trace in traces)
    assert np.array_equal(one.rank_end_s, other.rank_end_s)
    for name_of_table in ("spans", "flows"):
        a, b = getattr(one, name_of_table), getattr(other, name_of_table)
        assert [one.labels[k] for k in a["label"]] == [other.labels[k] for k in b["label"]]
        for column in set(a.dtype.names) - {"label"}:
            assert np.array_equal(a[column], b[column]), column


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
def test_training_takes_the_same_time(monkeypatch, strategy, algorithm):
    plan = Plan(model="mlp", strategy=strategy, algorithm=algorithm, batch=16, steps=2)
    ends = []
    for fewest in (10**9, 2):
        monkeypatch.setattr(together, "FEWEST", fewest)
        _, trace, _ = run_here(lambda gpu: train(gpu, plan), CLUSTER, 16, dry=True)
        ends.append(resolve(trace, CLUSTER).rank_end_s)
    assert np.array_equal(*ends)


def test_bytes_sent_are_those_of_each_rank(recorded):
    one_by_one, at_once = recorded(program_of("all_reduce", "ring", 1, 40), 13)
    assert bytes_sent(at_once).tolist() == bytes_sent(one_by_one).tolist()
    assert len(set(bytes_sent(at_once).tolist())) > 1


def test_lengths_are_saved_and_loaded(recorded, tmp_path):
    trace = recorded(program_of("all_reduce", "ring", 40), 13)[1]
    trace.save(tmp_path / "trace.emu")
    assert rows_of(Trace.load(tmp_path / "trace.emu")) == rows_of(trace)


@pytest.mark.parametrize("broken", [
    {"column": np.full(13, 99, np.int32)}, {"column": np.zeros(3, np.int32)}, {"values": np.zeros(0, np.int64)}])
def test_lengths_that_point_nowhere_are_refused(recorded, tmp_path, broken):
    trace = recorded(program_of("all_reduce", "ring", 40), 13)[1]
    template = trace.templates[0]
    wrong = replace(template, lengths=replace(template.lengths, **broken))
    replace(trace, templates=(wrong,)).save(tmp_path / "trace.emu")
    with pytest.raises(TraceError):
        Trace.load(tmp_path / "trace.emu")


def test_a_rank_with_other_sizes_is_recorded_by_itself(recorded):
    def program(comm):
        x = comm.empty(40 if comm.rank != 5 else 41, "float32")
        comm.checks = False
        TABLE["all_reduce"]["ring"].function(comm, x)

    one_by_one, at_once = recorded(program, 13)
    assert rows_of(at_once) == rows_of(one_by_one)


# Numbers of many ranks at once


@pytest.mark.parametrize("by", [7, 16])
def test_ranks_wrap_round_as_whole_numbers_do(by):
    values = list(range(-by, 2 * by)) + [5 * by + 3]
    assert (Ranks.of(values) % by).tolist() == [v % by for v in values]
    assert (Ranks.of(values[:-1]) % by).tolist() == [v % by for v in values[:-1]]


def test_a_branch_parts_ranks_that_go_different_ways():
    assert Ranks.of([3, 3]) == 3 and not Ranks.of([3, 3]) == 4
    with pytest.raises(Parted) as parted:
        bool(Ranks.of([3, 4]) == 3)
    assert parted.value.values.tolist() == [True, False]


def test_a_place_in_a_plain_list_parts_ranks_by_it():
    assert [10, 11, 12][Ranks.of([1, 1])] == 11
    with pytest.raises(Parted):
        [10, 11, 12][Ranks.of([1, 2])]


def test_a_table_is_looked_up_for_one_rank_and_for_many():
    table = Table((5, 9, 2))
    assert table[1] == 9 and table[Ranks.of([2, 0])].tolist() == [2, 5]
    assert table.index(2) == 2 and table.index(Ranks.of([9, 5])).tolist() == [1, 0]
    with pytest.raises(ValueError):
        table.index(Ranks.of([3, 3]))


def test_a_part_of_an_array_has_a_length_for_each_rank():
    cut, r = even_cuts(7, 3), Ranks.of([0, 1, 2])
    part = Extent(7, "float32")[cut[r] : cut[r + 1]]
    assert part.size.tolist() == [3, 2, 2] and part.nbytes.each == 4
    assert Extent(6, "float32")[Ranks.of([0, 2]) : Ranks.of([2, 4])].size == 2
    with pytest.raises(NotAtOnce):
        Extent(6, "float32")[Ranks.of([0, 5]) : Ranks.of([2, 7])]
