"""All-reduce over several rings or trees: right values, and links that are all used."""

import numpy as np
import pytest

from emu.cluster import load_cluster
from emu.collectives.all_reduce_channels import channel_ring_all_reduce, channel_tree_all_reduce
from emu.collectives.channels import ring_orders
from emu.collectives.gather_channels import channel_ring_all_gather, channel_ring_reduce_scatter
from emu.comm import run_dry, run_local
from emu.engine import resolve

NODES = {1: ((0,),), 2: ((0, 1),), 3: ((0, 1, 2),), 7: ((0, 2, 4), (1, 3, 5, 6)), 8: ((0, 1, 2, 3), (4, 5, 6, 7))}


def orders(p):
    """Three rings through p ranks, in both directions and from other starts."""
    return (tuple(range(p)), tuple(reversed(range(p))), (*range(p // 2, p), *range(p // 2)))


def summed(function, p, n, **options):
    inputs = [np.random.default_rng([p, n, r]).integers(-9, 9, n).astype("float32") for r in range(p)]

    def main(comm):
        x = inputs[comm.rank].copy()
        function(comm, x, **options)
        return x

    return run_local(main, p)[0], np.sum(inputs, axis=0)


@pytest.mark.parametrize("p", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("n", [0, 1, 5, 64, 1001])
def test_every_rank_gets_the_sum_by_rings(p, n):
    held, expected = summed(channel_ring_all_reduce, p, n, rings=orders(p))
    assert all(np.array_equal(x, expected) for x in held)


@pytest.mark.parametrize("p", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("n", [0, 1, 5, 64, 1001])
def test_every_rank_gets_the_sum_by_trees(p, n):
    g = min(len(node) for node in NODES[p])
    chains = [(*range(head, g), *range(head)) for head in range(g)]
    held, expected = summed(channel_tree_all_reduce, p, n, nodes=NODES[p], chains=chains, segment_bytes=128)
    assert all(np.array_equal(x, expected) for x in held)


@pytest.mark.parametrize("p", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("n", [0, 1, 5, 64])
def test_chunks_are_gathered_and_scattered_by_rings(p, n):
    inputs = [np.random.default_rng([p, n, r]).integers(-9, 9, p * n).astype("float32") for r in range(p)]

    def main(comm):
        mine, whole = np.empty(n, "float32"), np.empty(p * n, "float32")
        x = inputs[comm.rank].copy()
        channel_ring_reduce_scatter(comm, x, mine, rings=orders(p))
        assert np.array_equal(x, inputs[comm.rank])
        channel_ring_all_gather(comm, mine, whole, rings=orders(p))
        return whole

    assert all(np.array_equal(whole, np.sum(inputs, axis=0)) for whole in run_local(main, p)[0])


def test_a_cube_mesh_has_two_rings_and_both_directions():
    rings = ring_orders(load_cluster("dgx-1-p100"), range(8))
    hops = [hop for ring in rings for hop in zip(ring, (*ring[1:], ring[0]), strict=True)]
    assert len(rings) == 4
    assert len(set(hops)) == 32


@pytest.mark.parametrize("nodes", [2, 4])
def test_rings_between_nodes_use_each_rail_once_each_way(nodes):
    cluster = load_cluster(f"dgx-a100:{nodes}")
    rings = ring_orders(cluster, range(cluster.size))
    between = [
        (a, b) for ring in rings for a, b in zip(ring, (*ring[1:], ring[0]), strict=True)
        if cluster.node_of(a) != cluster.node_of(b)
    ]  # fmt: skip
    assert len(rings) == 8
    assert all(cluster.local_rank(a) == cluster.local_rank(b) for a, b in between)
    assert len(set(between)) == len(between) == 8 * nodes


def test_four_rings_carry_four_times_what_one_does():
    cluster = load_cluster("dgx-1-p100")

    def time_s(rings):
        def main(comm):
            channel_ring_all_reduce(comm, comm.empty(1 << 28, "float32"), rings=rings)

        return resolve(run_dry(main, 8)[1], cluster, detail="totals").end_s

    rings = ring_orders(cluster, range(8))
    assert time_s(rings[:1]) == pytest.approx(4 * time_s(rings), rel=1e-3)


def test_many_trees_at_once_leave_no_flow_behind(monkeypatch):
    from emu.collectives import all_reduce_tree

    monkeypatch.setattr(all_reduce_tree, "TURNS", 1)  # the densest schedule: all links carry flows of many trees
    cluster = load_cluster("a3-mega:2")

    def main(comm):
        comm.cluster = cluster
        channel_tree_all_reduce(comm, comm.empty(1 << 26, "float32"), segment_bytes=1 << 19)

    assert resolve(run_dry(main, 16)[1], cluster, detail="totals").end_s == pytest.approx(1.622e-3, rel=1e-3)
