"""All-reduce over several rings or trees: right values, and links that are all used."""

import numpy as np
import pytest

from emu.cluster import load_cluster
from emu.collectives.all_reduce_channels import channel_ring_all_reduce, channel_tree_all_reduce
from emu.collectives.all_reduce_switch import in_switch_tree_all_reduce
from emu.collectives.channels import heads, ring_orders
from emu.collectives.gather_channels import channel_ring_all_gather, channel_ring_reduce_scatter
from emu.collectives.rooted_channels import channel_chain_broadcast, channel_chain_reduce
from emu.comm import run_dry, run_local
from emu.engine import resolve
from emu.errors import ConfigError

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


@pytest.mark.parametrize("p", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("n", [0, 1, 5, 64, 1001])
def test_every_rank_gets_the_sum_by_switches_and_trees(p, n):
    held, expected = summed(in_switch_tree_all_reduce, p, n, nodes=NODES[p], chains=[(0,), (1,)], segment_bytes=128)
    assert all(np.array_equal(x, expected) for x in held)


@pytest.mark.parametrize("p", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("n", [0, 1, 5, 64, 1001])
def test_chains_bring_the_root_s_values_and_take_the_sum_to_it(p, n):
    inputs = [np.random.default_rng([p, n, r]).integers(-9, 9, n).astype("float32") for r in range(p)]
    root = p - 1

    def main(comm):
        x, y = inputs[comm.rank].copy(), inputs[comm.rank].copy()
        channel_chain_broadcast(comm, x, root, rings=orders(p), segment_bytes=64)
        channel_chain_reduce(comm, y, root, rings=orders(p), segment_bytes=64)
        return x, y

    held = run_local(main, p)[0]
    assert all(np.array_equal(x, inputs[root]) for x, _ in held)
    assert np.array_equal(held[root][1], np.sum(inputs, axis=0))
    assert all(np.array_equal(held[r][1], inputs[r]) for r in range(p - 1))


@pytest.mark.parametrize("profile, least", [("ideal", 0.9), ("mpi", 0.8), ("nccl", 0.8)])
def test_a_broadcast_is_nearly_as_fast_as_all_six_links_of_a_gpu(profile, least):
    cluster, nbytes = load_cluster("dgx-1"), 1 << 29
    rings = ring_orders(cluster, range(8))

    def main(comm):
        channel_chain_broadcast(comm, comm.empty(nbytes // 4, "float32"), rings=rings)

    took_s = resolve(run_dry(main, 8)[1], cluster, profile=profile, detail="totals").end_s
    assert least * 6 * 24e9 < nbytes / took_s < 6 * 24e9


def test_rings_and_chains_of_mesh_nodes_follow_their_links():
    cluster = load_cluster("dgx-1:2")
    rings = ring_orders(cluster, range(16))
    nodes, chains = heads(cluster, range(16))
    hops = [hop for ring in rings for hop in zip(ring, (*ring[1:], ring[0]), strict=True)]
    hops += [hop for node in nodes for chain in chains for hop in zip(chain, chain[1:], strict=False)]
    inside = [(a, b) for a, b in hops if cluster.node_of(a) == cluster.node_of(b)]
    between = [(a, b) for a, b in hops if cluster.node_of(a) != cluster.node_of(b)]
    assert all(cluster.node(0).has_nvlink(cluster.local_rank(a), cluster.local_rank(b)) for a, b in inside)
    assert len(rings) == len(chains) == 4
    assert sorted(cluster.nic_of(a) for a, _ in between) == sorted(2 * [0, 1, 2, 3])


def test_switches_that_only_forward_do_not_add():
    cluster = load_cluster("dgx-a100:2")

    def main(comm):
        comm.cluster = cluster
        in_switch_tree_all_reduce(comm, comm.empty(64, "float32"))

    with pytest.raises(ConfigError, match="a switch that reduces in every node is expected, and dgx-a100"):
        run_dry(main, 16)


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
