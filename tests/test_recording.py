"""What is recorded: one row an operation, collectives by reference, the same whatever the process."""

import numpy as np
import pytest

from emu.collectives.table import TABLE
from emu.comm import run_dry, run_local
from emu.comm.calls import SAMPLE_EVERY, collective
from emu.comm.merging import merge
from emu.comm.recording import Log, Tables
from emu.trace import COLLECTIVE, Op

ring = TABLE["all_reduce"]["ring"].function


def expanded(trace, rank):
    """One rank's messages as if no template were used: (op, peer, bytes)."""
    found = []
    for row in trace.ranks[rank]:
        if row["op"] in (Op.SEND, Op.RECV):
            found.append((int(row["op"]), int(row["a"]), int(row["n"])))
        elif row["op"] == Op.CALL:
            group = trace.groups[row["b"]]
            me = group.index(rank)
            for inner in trace.templates[row["a"]].rows:
                if inner["op"] in (Op.SEND, Op.RECV):
                    found.append((int(inner["op"]), group[(me + inner["a"]) % len(group)], int(inner["n"])))
    return found


@pytest.mark.parametrize("name", sorted(set(TABLE["all_reduce"]) - {"hierarchical"}))
@pytest.mark.parametrize("p", [2, 3, 5])
def test_templates_say_what_flat_recording_says(name, p):
    def program(comm, templates):
        comm.templates = templates
        for n in (7, 100, 7):
            TABLE["all_reduce"][name].function(comm, np.zeros(n))

    templated = run_local(lambda comm: program(comm, True), p)[1]
    flat = run_local(lambda comm: program(comm, False), p)[1]
    assert not any((rows["op"] == Op.CALL).any() for rows in flat.ranks)
    for rank in range(p):
        assert expanded(templated, rank) == expanded(flat, rank)


def test_equal_calls_are_recorded_once():
    _, trace = run_local(lambda comm: [ring(comm, np.zeros(12)) for _ in range(100)], 4)
    assert len(trace.templates) == 1  # equal for every rank: peers are relative
    assert all(len(rows) == 100 for rows in trace.ranks)


def test_rows_of_a_collective_carry_its_flag():
    def program(comm):
        comm.templates = False
        ring(comm, np.zeros(4))

    rows = run_local(program, 2)[1].ranks[0]
    assert (rows["flag"][(rows["op"] == Op.SEND) | (rows["op"] == Op.RECV)] == COLLECTIVE).all()
    assert rows["op"][0] == Op.BEGIN and rows["flag"][0] == COLLECTIVE and rows["op"][-1] == Op.END


@collective("test", "from_any")
def from_any(comm, x):
    if comm.rank == 0:
        for _ in range(comm.size - 1):
            comm.recv(x, -1)
    else:
        comm.send(x, 0)


def test_a_collective_that_receives_from_any_source_is_recorded_flat_and_says_why():
    _, trace = run_local(lambda comm: [from_any(comm, np.zeros(2)) for _ in range(3)], 3)
    assert (trace.ranks[0]["op"] != Op.CALL).all()
    assert "receives from any source" in trace.header["untemplated"]["from_any_test"]


def test_a_collective_that_changes_between_equal_calls_is_found_by_sampling():
    state = {"hops": 1}

    @collective("test", "fickle")
    def fickle(comm, x):
        for _ in range(state["hops"]):
            comm.sendrecv(x, comm.size - 1 - comm.rank, x.copy(), comm.size - 1 - comm.rank)

    def program(comm):
        for i in range(SAMPLE_EVERY + 2):
            if comm.rank == 0 and i == SAMPLE_EVERY - 10:
                state["hops"] = 2
            comm.wire.exchange(None)
            fickle(comm, np.zeros(2))

    _, trace = run_local(program, 2)
    assert trace.header["untemplated"]["fickle_test"] == "two calls with equal arguments did different things"


def test_waits_refer_to_requests_by_distance():
    def program(comm):
        x, y, z = (np.zeros(1) for _ in range(3))
        other = 1 - comm.rank
        requests = [comm.irecv(y, other, 1), comm.irecv(z, other, 2)]
        comm.waitall([comm.isend(x, other, 1), comm.isend(x, other, 2)])
        requests[1].wait()
        requests[0].wait()

    rows = run_local(program, 2)[1].ranks[0]
    waits = rows[rows["op"] == Op.WAIT]
    assert [(int(a), int(b)) for a, b in zip(waits["a"], waits["b"], strict=True)] == [(2, 2), (3, 1), (4, 1)]


def test_waiting_twice_is_recorded_once():
    def program(comm):
        request = comm.isend(np.zeros(1), 0)
        comm.recv(np.zeros(1), 0)
        request.wait()
        request.wait()

    rows = run_local(program, 1)[1].ranks[0]
    assert (rows["op"] == Op.WAIT).sum() == 2


def process_log(names, streams):
    """A log as a process of its own writes it, with its tables in its own order."""
    log = Log(0, Tables())
    for name in names:
        log.tables.label(name)
    for stream in streams:
        log.tables.streams.setdefault(stream, len(log.tables.streams))
    log.compute(0, log.tables.label("work"), 8, 1.0)
    log.stream = log.tables.streams["comm"]
    log.compute(0, log.tables.label("sum"), 8, 1.0)
    return bytes(log.data), log.tables


def test_merging_makes_one_numbering_of_labels_and_streams():
    first = process_log(["sum", "work"], ["comm"])
    second = process_log(["other", "work", "sum"], ["copy", "comm"])
    trace = merge([first, second], {})
    assert trace.labels == ("work", "sum")
    assert trace.streams == ("default", "comm")
    assert trace.ranks[0].tobytes() == trace.ranks[1].tobytes()


def test_dry_ranks_are_recorded_at_any_scale():
    _, trace = run_dry(lambda comm: [ring(comm, comm.empty(6000, "float32")) for _ in range(3)], 500)
    assert len(trace.templates) == 1
    assert all(len(rows) == 3 for rows in trace.ranks)
