"""A profile turns a recorded collective into the library's launch, steps, protocol and share of the wire."""

import numpy as np
import pytest

from emu.cluster import load_cluster
from emu.collectives import all_reduce, find
from emu.comm import run_dry
from emu.engine import resolve
from emu.engine.profiles import GLOO_LAUNCH_S, NCCL_LAUNCH_S
from emu.verify.measure import Job, measure_size

MIB = 1 << 20


def timed(cluster, p, nbytes, algorithm, profile="nccl", detail="totals"):
    def main(comm):
        comm.cluster, comm.profile = cluster, profile
        find("all_reduce", algorithm)(comm, comm.empty(nbytes // 4, "float32"))

    return resolve(run_dry(main, p)[1], cluster, profile=profile, detail=detail)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_a_large_ring_takes_launch_steps_wire_and_the_last_chunk_s_copy(p):
    nbytes, steps = 256 * MIB, 2 * (p - 1)
    wire = steps * nbytes / p / 240e9
    expected = NCCL_LAUNCH_S + 8.4e-6 + steps * 3.4e-6 + wire + nbytes / p / (24 * 24e9)
    assert timed(load_cluster("dgx-a100"), p, nbytes, "ring").end_s == pytest.approx(expected, rel=1e-6)


def test_a_small_ring_goes_by_ll_at_half_the_wire():
    nbytes = 8 * 1024
    wire = 14 * nbytes / 8 / 120e9
    bounded = 14 * nbytes / 8 / 87.7e9  # what LL reaches at most
    expected = NCCL_LAUNCH_S + 6.6e-6 + 14 * 0.6e-6 + max(wire, bounded) + nbytes / 8 / (24 * 24e9)
    assert timed(load_cluster("dgx-a100"), 8, nbytes, "ring").end_s == pytest.approx(expected, rel=1e-6)


def test_the_switch_carries_n_plus_one_parts_of_n():
    nbytes, segment = 1024 * MIB, 16 * MIB
    rate = 18 * 20.6e9 * 0.85
    expected = NCCL_LAUNCH_S + 25e-6 + (1 + 1 / 8) * nbytes / rate + segment / rate
    assert timed(load_cluster("hgx-h200"), 8, nbytes, "auto").end_s == pytest.approx(expected, rel=1e-6)


def test_a_call_shows_its_launch():
    spans = timed(load_cluster("dgx-a100"), 4, MIB, "ring", detail="spans").spans
    assert (spans["launch_s"] > NCCL_LAUNCH_S).all()
    assert (spans["end_s"] - spans["start_s"] > spans["launch_s"]).all()


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast"])
def test_nccl_takes_as_long_out_of_place_as_in_place(collective):
    job = Job(collective, "auto", load_cluster("dgx-a100"), 8, "nccl", dry=True)
    row = measure_size(job, 64 * MIB, np.dtype("float32"), "sum", 0).row()
    assert row.out_of_place.time_s == row.in_place.time_s


def test_gloo_hands_each_call_to_a_worker():
    cluster = load_cluster("tcp-25g", gpus=4)
    late = timed(cluster, 4, 4096, "ring", "gloo").end_s - timed(cluster, 4, 4096, "ring", "mpi").end_s
    assert late == pytest.approx(GLOO_LAUNCH_S)


@pytest.mark.parametrize(
    "kind, algorithm",
    [("dgx-a100:2", "channel_ring"), ("hgx-h200", "in_switch"), ("dgx-a100", "ring"), ("dgx-h100:2", "in_switch_tree"),
     ("a3-mega:2", "channel_tree")],
)  # fmt: skip
def test_auto_takes_what_nccl_takes(kind, algorithm):
    cluster = load_cluster(kind)
    decisions = {}

    def main(comm):
        comm.cluster, comm.profile, comm.decisions = cluster, "nccl", decisions
        all_reduce(comm, comm.empty(64 * MIB, "float32"))

    run_dry(main, cluster.size)
    assert list(decisions.values()) == [algorithm]


@pytest.mark.parametrize("to, step_us, rate", [(1, 3.4, 240e9), (8, 14.0, 24e9)])
def test_messages_outside_collectives_are_kernels_of_nccl_too(to, step_us, rate):
    cluster, nbytes = load_cluster("dgx-a100:2"), 256 * MIB

    def main(comm):
        x = comm.empty(nbytes // 4, "float32")
        if comm.rank == 0:
            comm.send(x, to)
        elif comm.rank == to:
            comm.recv(x, 0)

    took_s = resolve(run_dry(main, 16)[1], cluster, profile="nccl").end_s
    assert took_s == pytest.approx(NCCL_LAUNCH_S + 8.4e-6 + step_us * 1e-6 + nbytes / rate, rel=1e-3)


def test_a_chain_in_a_node_pays_one_step_for_all_its_hops():
    def main(comm):
        comm.cluster, comm.profile = cluster, "nccl"
        find("broadcast", "chain")(comm, comm.empty(2, "float32"))

    cluster = load_cluster("dgx-a100")
    took_s = resolve(run_dry(main, 8)[1], cluster, profile="nccl").end_s
    assert took_s == pytest.approx(NCCL_LAUNCH_S + (6.6 + 0.6) * 1e-6, abs=0.1e-6)


def test_the_same_call_by_two_groups_takes_each_group_s_links():
    cluster = load_cluster("dgx-a100:2")

    def main(comm):
        inside = comm.split(cluster.node_of(comm.rank))
        across = comm.split(comm.rank % 8)
        for group in (inside, across):
            find("all_reduce", "ring")(group, group.empty(1024, "float32"))

    spans = resolve(run_dry(main, 16)[1], cluster, profile="nccl").spans
    took = (spans["end_s"] - spans["start_s"])[spans["rank"] == 0]
    assert len(took) == 2 and took[0] != took[1]


def test_each_channel_has_a_tcp_connection_and_a_core_of_its_own():
    cluster, nbytes = load_cluster("tcp-100g", gpus=2), 256 * MIB
    one_s = timed(cluster, 2, nbytes, "ring", "mpi").end_s
    assert timed(cluster, 2, nbytes, "ring").end_s < 0.6 * one_s
    assert nbytes / timed(cluster, 2, nbytes, "ring").end_s < 12.5e9


def test_broadcast_and_reduce_take_the_rings_of_the_links():
    cluster = load_cluster("dgx-1")
    decisions = {}

    def main(comm):
        comm.cluster, comm.profile, comm.decisions = cluster, "nccl", decisions
        find("broadcast", "auto")(comm, comm.empty(MIB, "float32"))
        find("reduce", "auto")(comm, comm.empty(MIB, "float32"))

    run_dry(main, 8)
    assert list(decisions.values()) == ["channel_chain"] * 2


@pytest.mark.parametrize("heads, nodes", [(8, 2), (8, 4)])
def test_switches_and_trees_carry_what_nccl_bounds_them_to(heads, nodes):
    cluster, nbytes, p = load_cluster(f"dgx-h100:{nodes}"), 4096 * MIB, 8 * nodes
    bound = heads * {2: 57.7e9, 4: 45.5e9}[nodes]  # GB/s of bus bandwidth, less than links and NICs would carry
    busbw = nbytes / timed(cluster, p, nbytes, "auto").end_s * 2 * (p - 1) / p
    assert 0.95 * bound < busbw < bound


def test_a_narrow_nic_bounds_the_trees_between_switches():
    cluster, nbytes = load_cluster("dgx-h100:2", {"nic.bandwidth": "100 Gb/s"}), 1024 * MIB
    took_s = timed(cluster, 16, nbytes, "in_switch_tree").end_s
    assert 0.9 * 8 * 12e9 < nbytes / took_s < 8 * 12e9
