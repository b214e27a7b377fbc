"""Questions of time and order, answered by an engine beside the program."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import emu
from emu.errors import ConfigError, DeadlockError
from emu.trace import ANY

LINK = "latency=1 ms, bandwidth=8 Mb/s"  # 1 MB/s


@pytest.fixture
def run():
    from emu.cluster import link_cluster
    from emu.program import replay, run_here

    def start(main, ranks, dry=False):
        cluster = link_cluster(LINK, ranks)
        results, trace, _ = run_here(main, cluster, ranks, dry=dry)
        timeline = replay(trace, cluster)
        return results, trace, timeline

    return start


def busy(gpu, seconds):
    """Compute for so long."""
    gpu.comm.log.elapsed(gpu.comm.log.tables.label("work"), seconds)


def test_the_time_is_that_at_which_the_rank_stands(run):
    def main(gpu):
        times = [gpu.comm.now_s()]
        busy(gpu, 0.5 * (gpu.rank + 1))
        times.append(gpu.comm.now_s())
        return times

    assert run(main, 2)[0] == [[0, 0.5], [0, 1.0]]


@pytest.mark.parametrize("dry", [False, True])
def test_a_receive_from_any_source_takes_who_comes_first_in_emulated_time(run, dry):
    def main(gpu):
        x = gpu.empty(125_000, "float64")  # 1 MB: a second on the link
        if gpu.rank:
            busy(gpu, 10.0 - gpu.rank)
            gpu.comm.send(x, 0, tag=gpu.rank)
            return None
        order = []
        for _ in range(gpu.size - 1):
            request = gpu.comm.irecv(x, ANY, ANY)
            request.wait()
            order.append((request.source, request.tag))
        return order, gpu.comm.now_s()

    (order, end_s), *_ = run(main, 4, dry)[0]
    assert order == [(3, 3), (2, 2), (1, 1)]
    assert end_s == pytest.approx(10.001, rel=1e-9)  # rank 1's leaves at 9


def test_the_slower_worker_is_served_less_often(run):
    def main(gpu):
        x = np.zeros(1)
        if gpu.rank:
            while True:
                busy(gpu, 1.0 if gpu.rank == 1 else 3.0)
                gpu.comm.send(x, 0)
                gpu.comm.recv(x, 0)
                if x[0] < 0:
                    return None
        served, stopped = [0] * gpu.size, 0
        while stopped < gpu.size - 1:
            request = gpu.comm.irecv(x, ANY)
            request.wait()
            served[request.source] += 1
            over = sum(served) >= 20
            stopped += over
            gpu.comm.send(np.array([-1.0 if over else 1.0]), request.source)
        return served

    served = run(main, 3)[0][0]
    assert served[1] in range(14, 17) and sum(served) == 21


def test_replaying_gives_the_times_that_the_program_was_told(run):
    def main(gpu):
        x = np.zeros(1000)
        times = []
        for step in range(5):
            if gpu.rank:
                busy(gpu, 0.01 * (gpu.rank + step))
                gpu.comm.send(x, 0)
            else:
                for _ in range(gpu.size - 1):
                    gpu.comm.recv(x, ANY)
            times.append(gpu.comm.now_s())
        return times

    results, trace, timeline = run(main, 4)
    assert [times[-1] for times in results] == timeline.raw.rank_end_s.tolist()
    assert "order" in trace.header["marks"]


def test_a_program_that_asks_nothing_is_not_marked(run):
    def main(gpu):
        part = gpu.comm.split(gpu.rank % 2)
        part.sendrecv(np.zeros(1), 0, np.zeros(1), 0)

    assert run(main, 2)[1].header["marks"] == {}


def test_a_test_tells_what_is_so_in_emulated_time(run):
    def main(gpu):
        x = np.zeros(125_000)
        if gpu.rank:
            gpu.comm.send(x, 0)
            return None
        request = gpu.comm.irecv(x, 1)
        early = gpu.comm.test(request)
        busy(gpu, 2.0)
        return early, gpu.comm.test(request), gpu.comm.now_s()

    assert run(main, 2)[0][0] == (False, True, 2.0)


def test_a_program_that_polls_gets_on(run):
    def main(gpu):
        x = np.zeros(125_000)
        if gpu.rank:
            busy(gpu, 1.0)
            gpu.comm.send(x, 0)
            return None
        request = gpu.comm.irecv(x, 1)
        polls = 0
        while not gpu.comm.test(request):
            polls += 1
        began_s = gpu.comm.now_s()
        while gpu.comm.now_s() < began_s + 0.01:
            polls += 1
        return polls, began_s

    polls, end_s = run(main, 2)[0][0]
    assert 10 < polls < 5000
    assert 2.001 <= end_s < 2.05


def test_waitany_returns_the_first_in_emulated_time(run):
    def main(gpu):
        if gpu.rank:
            busy(gpu, 3.0 - gpu.rank)
            gpu.comm.send(np.full(1, gpu.rank), 0)
            return None
        buffers = [np.zeros(1, int) for _ in range(2)]
        requests = [gpu.comm.irecv(buffer, q) for q, buffer in ((1, buffers[0]), (2, buffers[1]))]
        first = gpu.comm.waitany(requests)
        gpu.comm.waitall(requests)
        return first, [int(buffer[0]) for buffer in buffers]

    assert run(main, 3)[0][0] == (1, [1, 2])


def test_receives_behind_one_from_any_source_keep_their_order(run):
    def main(gpu):
        if gpu.rank:
            busy(gpu, float(gpu.rank))
            gpu.comm.send(np.full(1, gpu.rank * 10), 0)
            gpu.comm.send(np.full(1, gpu.rank * 10 + 1), 0)
            return None
        x, y = np.zeros(1, int), np.zeros(1, int)
        requests = [gpu.comm.irecv(x, ANY), gpu.comm.irecv(y, 1)]
        gpu.comm.waitall(requests)
        rest = np.zeros(1, int)
        for _ in range(2):
            gpu.comm.recv(rest, 2)
        return int(x[0]), int(y[0])

    assert run(main, 3)[0][0] == (10, 11)


def test_splitting_brings_ranks_to_one_time_once_somebody_has_asked(run):
    def main(gpu):
        gpu.comm.now_s()
        busy(gpu, float(gpu.rank))
        gpu.comm.split(0)
        return gpu.comm.now_s()

    assert run(main, 3)[0] == [2.0, 2.0, 2.0]


def test_a_question_in_the_middle_of_a_first_collective_is_answered(run):
    from emu.collectives import linear_broadcast

    def main(gpu):
        x = np.zeros(125_000)
        if gpu.rank == 2:
            gpu.comm.recv(x, 1, tag=5)
        linear_broadcast(gpu.comm, x)
        if gpu.rank == 1:
            asked_s = gpu.comm.now_s()
            gpu.comm.send(x, 2, tag=5)
            return asked_s
        return None

    results, trace, _ = run(main, 3)
    assert results[1] >= 1.001


def test_a_deadlock_after_a_question_names_both_sides(run):
    def main(gpu):
        gpu.comm.now_s()
        gpu.comm.recv(np.zeros(1), ANY if gpu.rank == 0 else 0)

    with pytest.raises(DeadlockError, match="rank 0 .*rank 1 "):
        run(main, 2)


def test_without_a_cluster_there_is_no_time():
    from emu.comm import run_local

    with pytest.raises(ConfigError, match="a run with a cluster is expected"):
        run_local(lambda comm: comm.now_s(), 1)


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_processes_are_told_what_coroutines_are_told_bit_for_bit(run_job, mpi):
    program = str(Path(__file__).parent / "asking_program.py")
    local = run_job([sys.executable, program, "local", "4"])
    over_mpi = run_job(["python", program, "mpi"], 4, mpi)
    assert local.returncode == over_mpi.returncode == 0, local.output + over_mpi.output
    told = [json.loads(ended.stdout.strip().splitlines()[-1]) for ended in (local, over_mpi)]
    assert told[0] == told[1] and told[0][1] == {"order": "tcp-10g"}


@pytest.mark.parametrize("profile", ["ideal", "nccl", "mpi", "gloo"])
def test_a_trace_with_answers_ends_when_the_program_was_told(profile):
    def main(gpu):
        x = gpu.full(30_000, gpu.rank)
        began_s = gpu.comm.now_s()
        for _ in range(3):
            emu.all_reduce(gpu.comm, x)
        return began_s, gpu.comm.now_s()

    run = emu.run(main, "tcp-10g", ranks=3, profile=profile)
    ends_s = run.timeline.raw.rank_end_s
    assert [began_s for began_s, _ in run.results] == [0.0] * 3
    assert [end_s for _, end_s in run.results] == pytest.approx(list(ends_s), rel=1e-12)
    assert min(ends_s) > 0
