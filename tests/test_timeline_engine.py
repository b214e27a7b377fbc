"""The accounting and the critical path of traces that the engine timed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from emu.cluster import link_cluster, load_cluster
from emu.collectives import binomial_broadcast, parameter_server_all_reduce, ring_all_reduce
from emu.engine import resolve
from emu.gpu import Cost
from emu.program import run
from emu.timeline import Timeline
from emu.timeline.accounting import PART_NAMES
from emu.trace import ANY

LINK = "latency=5 us, bandwidth=1 GB/s"


def kernel(gpu, milliseconds, name="forward"):
    spec = link_cluster(LINK, 2).gpu(0)
    flops = milliseconds * 1e-3 * spec.peak("float32") * spec.flops_efficiency
    gpu.launch(lambda: None, cost=Cost(flops, 0, "float32"), name=name)


def timed(program, ranks, cluster=LINK, profile="ideal", **settings):
    return run(program, cluster, ranks, way="local", profile=profile, **settings).timeline


def pipeline(microbatches):
    """Forward passes of one millisecond, handed from stage to stage."""

    def program(gpu):
        comm = gpu.comm
        with gpu.step(0), gpu.span("pipeline forward"):
            for index in range(microbatches):
                x = gpu.empty(1)
                if comm.rank > 0:
                    comm.waitall([comm.irecv(x, comm.rank - 1, tag=index)])
                kernel(gpu, 1)
                if comm.rank + 1 < comm.size:
                    comm.isend(x, comm.rank + 1, tag=index)

    return program


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_the_bubble_of_a_pipeline_is_its_closed_form(stages, microbatches):
    found = timed(pipeline(microbatches), stages)
    hop_s = 5e-6 + 4 / 1e9
    assert found.step["time_s"] == pytest.approx(1e-3 * (microbatches + stages - 1) + (stages - 1) * hop_s, rel=1e-9)
    for rank in range(stages):
        step = found.step_of(rank)
        assert step["compute_s"] == pytest.approx(1e-3 * microbatches, rel=1e-9)
        waits = step["bubble_s"] + step["exposed_communication_s"]
        assert waits == pytest.approx((stages - 1) * (1e-3 + hop_s), rel=1e-9)
        assert step["bubble_s"] >= (stages - 1) * 1e-3
        assert step["idle_s"] == step["straggler_wait_s"] == 0.0


def test_the_critical_path_of_a_pipeline_goes_through_all_stages():
    path = timed(pipeline(1), 4).critical_path
    assert [(s.rank, s.kind) for s in path if s.kind == "kernel"] == [(r, "kernel") for r in range(4)]
    messages = [s for s in path if s.kind == "communication"]
    assert [s.because for s in messages] == [f"rank {r} came last" for r in range(3)]
    assert {s.label for s in messages} == {"pipeline forward"}


def test_a_slow_gpu_makes_the_others_wait_for_as_long_as_it_is_behind():
    def program(gpu):
        x = gpu.zeros(1000)
        with gpu.step(0):
            kernel(gpu, 1)
            ring_all_reduce(gpu.comm, x)

    found = timed(program, 4, slow="2:0.5")
    for rank in (0, 1, 3):
        assert found.step_of(rank)["straggler_wait_s"] == pytest.approx(1e-3, rel=1e-9)
    assert found.step_of(2)["straggler_wait_s"] == 0.0
    assert found.critical_path[0].rank == 2


@pytest.mark.parametrize(("at", "start"), [("0.5 ms", 0.5), ("1 ms", 1.0)])
def test_a_paused_rank_is_stalled_and_the_others_wait_for_it(at, start):
    def program(gpu):
        x = gpu.zeros(1000)
        with gpu.step(0):
            kernel(gpu, 1)
            ring_all_reduce(gpu.comm, x)
            kernel(gpu, 1, "optimizer")

    found = timed(program, 2, pause=f"1@{at}+3 ms")
    late_s = (start + 3 - 1) * 1e-3
    assert found.step_of(1)["stall_s"] == pytest.approx(late_s, rel=1e-9)
    assert found.step_of(0)["straggler_wait_s"] == pytest.approx(late_s, rel=1e-9)
    assert found.step_of(0)["stall_s"] == found.step_of(1)["straggler_wait_s"] == 0.0
    assert [(s.rank, s.kind) for s in found.critical_path][:2] == [(1, "kernel"), (1, "stall")]


@pytest.mark.parametrize("stream", ["default", "comm"])
@pytest.mark.parametrize("collective", [True, False])
def test_communication_over_a_link_that_is_down_is_stalled(stream, collective):
    def program(gpu):
        x, comm = gpu.zeros(500_000), gpu.comm
        with gpu.step(0):
            with gpu.stream(stream):
                if collective:
                    ring_all_reduce(comm, x)
                else:
                    comm.waitall([comm.isend(x, 1 - gpu.rank), comm.irecv(gpu.empty(500_000), 1 - gpu.rank)])
                done = gpu.record()
            gpu.wait(done)

    up = timed(program, 2).step
    found = timed(program, 2, flap="node1.nic0:100 ms/0.5 ms@1.2 ms").step
    assert found["time_s"] == pytest.approx(up["time_s"] + 0.5e-3, rel=1e-9)
    assert found["stall_s"] == pytest.approx(0.5e-3, rel=1e-9)
    assert found["exposed_communication_s"] == pytest.approx(up["exposed_communication_s"], rel=1e-9)
    assert up["stall_s"] == 0.0


def test_communication_behind_a_kernel_is_hidden():
    def program(gpu):
        x = gpu.zeros(250_000)
        with gpu.step(0):
            kernel(gpu, 1)
            ready = gpu.record()
            with gpu.stream("comm"):
                gpu.wait(ready)
                ring_all_reduce(gpu.comm, x)
                done = gpu.record()
            kernel(gpu, 1, "backward")
            gpu.wait(done)

    found = timed(program, 2)
    ring_s = 2 * (5e-6 + 500_000 / 1e9)
    assert found.step["exposed_communication_s"] == pytest.approx(ring_s - 1e-3, rel=1e-9)
    assert found.overlap_fraction() == pytest.approx(1e-3 / ring_s, rel=1e-9)


def test_any_source_receives_wait_for_whoever_comes():
    def program(gpu):
        x = gpu.empty(1000)
        if gpu.rank:
            kernel(gpu, gpu.rank)
            gpu.comm.waitall([gpu.comm.isend(x, 0)])
        else:
            gpu.comm.waitall([gpu.comm.irecv(x, ANY)])
            gpu.comm.waitall([gpu.comm.irecv(x, ANY)])

    found = timed(program, 3)
    step = found.step_of(0)
    assert step["straggler_wait_s"] + step["exposed_communication_s"] == step["time_s"] > 2e-3


@pytest.mark.parametrize("profile", ["ideal", "mpi", "nccl"])
@pytest.mark.parametrize("cluster", ["dgx-a100:2", "dgx-1", "tcp-10g", "pcie-box"])
@pytest.mark.parametrize("ranks", [2, 7, 8])
def test_every_step_is_told_whole_and_the_critical_path_has_no_hole(cluster, ranks, profile):
    def program(gpu):
        x = gpu.zeros(100_000)
        rng = np.random.default_rng(gpu.rank)
        for index in range(3):
            with gpu.step(index):
                x = gpu.array(np.zeros(1000, dtype="float32"))
                kernel(gpu, rng.random() * 0.01)
                ready = gpu.record()
                with gpu.stream("comm"):
                    gpu.wait(ready)
                    parameter_server_all_reduce(gpu.comm, x)
                    ring_all_reduce(gpu.comm, x)
                    done = gpu.record()
                kernel(gpu, rng.random() * 0.1)
                gpu.comm.waitall([
                    gpu.comm.irecv(gpu.empty(100), (gpu.rank - 1) % gpu.size),
                    gpu.comm.isend(gpu.empty(100), (gpu.rank + 1) % gpu.size),
                ])  # fmt: skip
                gpu.wait(done)
                binomial_broadcast(gpu.comm, x)

    found = run(program, cluster, ranks, way="local", profile=profile).timeline
    for account in [found.step, *found.steps(), *(found.step_of(r) for r in range(ranks)), *found.steps(0)]:
        named = [account[name] for name in PART_NAMES]
        assert min(named) >= 0.0
        assert sum(named) == account["time_s"]
        assert sum(account["exposed_by_link"].values()) == account["exposed_communication_s"]
        if "start_s" in account:
            assert account["time_s"] == pytest.approx(account["end_s"] - account["start_s"], rel=1e-12, abs=0)
    path = found.critical_path
    assert path[0].start_s == 0.0 and path[-1].end_s == found.end_s
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(path))
    assert sum(s.time_s for s in path if s.kind == "idle") < 0.02 * found.end_s


def test_spans_alone_give_the_same_accounting_as_spans_and_flows():
    def program(gpu):
        with gpu.step(0):
            kernel(gpu, 1 + gpu.rank)
            ring_all_reduce(gpu.comm, gpu.zeros(1000))

    trace, cluster = run(program, LINK, 3, way="local").trace, load_cluster(LINK, gpus=3)
    with_flows, without = (Timeline(resolve(trace, cluster, detail=d), trace, cluster) for d in ("flows", "spans"))
    assert with_flows.steps() == without.steps()
    assert with_flows.link_use()[0].bytes == without.link_use()[0].bytes


def incast(senders, part=40_000, queries=3):
    """Rank 0 asks the others, who answer all at once."""

    def program(gpu):
        comm, answer, ask = gpu.comm, gpu.empty(part // 4), gpu.empty(25)
        for _ in range(queries):
            if comm.rank == 0:
                asked = [comm.isend(ask, r) for r in range(1, senders + 1)]
                comm.waitall([*asked, *(comm.irecv(answer, r) for r in range(1, senders + 1))])
            else:
                comm.recv(ask, 0)
                comm.send(answer, 0)

    settings = {"transport": "tcp", "switch.buffer": "64 kB", "tcp.rto_min": "200 ms"}
    return timed(program, senders + 1, "tcp-1g", "mpi", **settings)


def test_a_timeout_is_a_stall_of_the_step_and_of_the_critical_path():
    found = incast(20)
    timeouts = found.raw.counters["tcp_timeouts"]
    assert timeouts > 0 and len(found.raw.stalls) == 2 * timeouts
    step = found.step_of(0)
    assert step["stall_s"] >= 0.2
    assert sum(step[part] for part in PART_NAMES) == step["time_s"]
    stalls = [stretch for stretch in found.critical_path if stretch.kind == "stall"]
    assert stalls and all(stretch.label.startswith("timeout of rank ") for stretch in stalls)
    assert found.critical_path[0].start_s == 0.0 and found.critical_path[-1].end_s == found.end_s
    for one, other in itertools.pairwise(found.critical_path):
        assert one.end_s == other.start_s


def test_timeouts_are_told_with_spans_alone_and_windows_and_queues_with_flows():
    found = incast(20)
    windows, queues = found.tcp_windows(), found.port_queues()
    assert {pair for pair in windows if pair[1] == 0} == {(r, 0) for r in range(1, 21)}
    assert all((np.diff(log["time_s"]) >= 0).all() for log in (*windows.values(), *queues.values()))
    assert max(log["bytes"].max() for log in queues.values()) <= 64e3
    spans = resolve(found.trace, found.cluster, profile="mpi", detail="spans")
    assert (spans.stalls == found.raw.stalls).all()


def test_a_library_s_launch_is_launch_and_not_communication():
    found = timed(lambda gpu: ring_all_reduce(gpu.comm, gpu.zeros(1 << 20)), 4, "dgx-a100", "nccl")
    launch_s = float(found.spans["launch_s"][0])
    step = found.step_of(0)
    assert step["launch_gap_s"] == pytest.approx(launch_s, rel=1e-9)
    assert step["exposed_communication_s"] == pytest.approx(found.end_s - launch_s, rel=1e-9)
    assert [stretch.kind for stretch in found.critical_path] == ["launch", "communication"]
