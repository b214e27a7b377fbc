"""Rings over the links that exist."""

from collections import Counter

import pytest

from emu.cluster import load_cluster
from emu.cluster.rings import disjoint_rings, ring_through


def hops(ring):
    return list(zip(ring, (*ring[1:], ring[0]), strict=True))


def test_the_ring_of_the_cube_mesh_runs_over_double_links():
    cluster = load_cluster("dgx-1")
    ring = cluster.ring_order(range(8))
    assert sorted(ring) == list(range(8))
    for a, b in hops(ring):
        assert cluster.closed_form(a, b).bandwidth_bytes_per_s == pytest.approx(2 * 25e9 * 0.96)


@pytest.mark.parametrize(("name", "count"), [("dgx-1", 3), ("dgx-1-p100", 2)])
def test_the_cube_mesh_holds_rings_that_use_each_line_once(name, count):
    cluster = load_cluster(name)
    rings = cluster.rings(range(8))
    assert len(rings) == count  # each runs both ways: six and four directed rings, all lines of a GPU used
    used = Counter(frozenset(hop) for ring in rings for hop in hops(ring))
    lines = {frozenset((a, b)): n for a, b, n in cluster.node(0).spec.scaleup.mesh}
    assert used == lines


def test_half_a_cube_mesh_has_rings_too():
    cluster = load_cluster("dgx-1")
    ring = cluster.ring_order([0, 1, 2, 3])
    assert sorted(ring) == [0, 1, 2, 3]
    assert all(cluster.route(a, b).transport == "nvlink" for a, b in hops(ring))


def test_gpus_without_a_ring_of_nvlink_get_the_best_there_is():
    cluster = load_cluster("dgx-1")
    assert sorted(cluster.ring_order([0, 5, 6])) == [0, 5, 6]
    assert cluster.rings([0, 5, 6]) == (cluster.ring_order([0, 5, 6]),)


@pytest.mark.parametrize("name", ["dgx-a100", "pcie-box", "tcp-10g:8", "nvlink4:8", "slots-192"])
def test_the_order_of_ranks_stays_where_it_is_as_good_as_any(name):
    cluster = load_cluster(name)
    assert cluster.ring_order(range(cluster.size)) == tuple(range(cluster.size))


def test_bridged_pairs_stay_neighbours():
    ring = load_cluster("pcie-bridged").ring_order([0, 2, 1, 3])
    assert {frozenset((0, 1)), frozenset((2, 3))} <= {frozenset(hop) for hop in hops(ring)}


def test_nodes_follow_one_another():
    cluster = load_cluster("dgx-1:2")
    ring = cluster.ring_order(range(16))
    assert [cluster.node_of(rank) for rank in ring] == [0] * 8 + [1] * 8


@pytest.mark.parametrize("ranks", [[], [3], [3, 1]])
def test_one_or_two_ranks_are_a_ring(ranks):
    assert load_cluster("dgx-1").ring_order(ranks) == tuple(sorted(ranks))


def test_the_slowest_hop_decides():
    rates = {frozenset("ab"): 9.0, frozenset("bc"): 9.0, frozenset("cd"): 9.0, frozenset("da"): 1.0}
    rates |= {frozenset("ac"): 5.0, frozenset("bd"): 5.0}
    ring = ring_through(list("abcd"), lambda a, b: rates[frozenset((a, b))] * 1e9)
    assert {frozenset(hop) for hop in hops(ring)} == {frozenset(pair) for pair in ("ab", "bd", "dc", "ca")}


def test_a_chain_has_no_ring():
    assert disjoint_rings([0, 1, 2], {(0, 1): 2, (1, 2): 2}) == []
