"""Fabrics: links between switches, paths, collisions, spraying."""

from collections import Counter

import pytest

from emu.cluster import load_cluster
from emu.errors import ConfigError


def cluster_of(hosts, **fabric):
    settings = {f"fabric.{key}": str(value) for key, value in fabric.items()}
    return load_cluster(f"roce-100g:{hosts}", settings)


def fabric_part(cluster, src, dst):
    names = [cluster.links[i].name for i in cluster.route(src, dst).links]
    return [name.removeprefix("fabric.") for name in names if name.startswith("fabric")]


def test_one_switch_adds_no_links():
    assert fabric_part(cluster_of(6), 0, 5) == []


def test_ports_of_one_leaf_meet_in_it():
    cluster = cluster_of(8, kind="leaf-spine", down=4, up=4)
    assert fabric_part(cluster, 0, 3) == []
    assert cluster.leaf_of(3) == 0 and cluster.leaf_of(4) == 1


def test_leaves_meet_at_the_spine_that_the_hash_chooses():
    cluster = cluster_of(8, kind="leaf-spine", down=4, up=4)
    for dst in range(4, 8):
        up, down = fabric_part(cluster, 0, dst)
        assert up.startswith("leaf0.up") and down == f"leaf1.down{up[-1]}"


def test_the_hash_is_fixed_and_collides():
    first, again = (cluster_of(64, kind="leaf-spine", down=32, up=32) for _ in range(2))
    ups = [fabric_part(first, src, 32 + src)[0] for src in range(32)]
    assert ups == [fabric_part(again, src, 32 + src)[0] for src in range(32)]
    assert max(Counter(ups).values()) >= 2
    assert len(set(ups)) > 8


def test_another_seed_chooses_other_paths():
    paths = [
        [fabric_part(cluster_of(64, kind="leaf-spine", down=32, up=32, seed=seed), src, 32 + src) for src in range(32)]
        for seed in (0, 1)
    ]
    assert paths[0] != paths[1]


def test_spraying_gives_a_leaf_one_fat_link():
    cluster = cluster_of(8, kind="leaf-spine", down=4, oversubscription="2:1", routing="spray")
    assert fabric_part(cluster, 0, 5) == ["leaf0.up", "leaf1.down"]
    up = next(link for link in cluster.links if link.name == "fabric.leaf0.up")
    port = next(link for link in cluster.links if link.name == "node0.nic0.up")
    assert up.bandwidth_bytes_per_s == pytest.approx(2 * port.bandwidth_bytes_per_s)


@pytest.mark.parametrize(("ratio", "uplinks"), [("1:1", 12), ("3:1", 4), ("4", 3), ("12:1", 1)])
def test_oversubscription_takes_uplinks_away(ratio, uplinks):
    cluster = cluster_of(24, kind="leaf-spine", down=12, oversubscription=ratio)
    assert sum(link.name.startswith("fabric.leaf0.up") for link in cluster.links) == uplinks


def test_ports_divide_into_down_and_up():
    assert "48 down, 16 up" in cluster_of(64, kind="leaf-spine", ports=64, oversubscription="3:1").fabric_summary()


def test_each_switch_beyond_the_first_adds_its_latency():
    cluster = cluster_of(8, kind="leaf-spine", down=4, up=4, hop_latency="300 ns")
    assert cluster.route(0, 4).latency_s - cluster.route(0, 1).latency_s == pytest.approx(2 * 300e-9)


def test_several_uplinks_to_one_spine():
    cluster = cluster_of(64, kind="leaf-spine", down=32, up=8, spines=2)
    for src in range(32):
        up, down = fabric_part(cluster, src, 32 + src)
        assert int(up.removeprefix("leaf0.up")) % 2 == int(down.removeprefix("leaf1.down")) % 2


def test_uplinks_can_be_faster_than_ports():
    cluster = cluster_of(8, kind="leaf-spine", down=4, up=1, uplink="400 Gb/s")
    up = next(link for link in cluster.links if link.name == "fabric.leaf0.up0")
    assert up.bandwidth_bytes_per_s == pytest.approx(50e9 * 4096 / 4178)


@pytest.mark.parametrize(
    ("src", "dst", "tiers"),
    [(0, 1, []), (0, 2, ["edge0.up", "edge1.down"]), (0, 4, ["edge0.up", "pod0.up", "pod1.down", "edge2.down"])],
)
def test_a_fat_tree_climbs_as_far_as_it_must(src, dst, tiers):
    cluster = cluster_of(16, kind="fat-tree", k=4)
    path = fabric_part(cluster, src, dst)
    assert len(path) == len(tiers)
    assert all(link.startswith(tier) for link, tier in zip(path, tiers, strict=True))


def test_a_fat_tree_comes_down_through_the_switches_above_it_went_up():
    cluster = cluster_of(16, kind="fat-tree", k=4)
    for dst in range(4, 16):
        edge_up, pod_up, pod_down, edge_down = fabric_part(cluster, 0, dst)
        assert pod_up.removeprefix("pod0.up") == pod_down.split(".down")[1]
        assert edge_up[-1] == edge_down[-1] == pod_up.removeprefix("pod0.up")[0]


def test_a_full_fat_tree_has_as_many_links_as_the_formula():
    cluster = cluster_of(16, kind="fat-tree", k=4)
    # 3k^3/4 cables, of which k^3/4 are the hosts' own; two directions.
    assert sum(link.kind == "fabric" for link in cluster.links) == 2 * (48 - 16)


def test_a_fat_tree_sprays_over_all_cores():
    cluster = cluster_of(16, kind="fat-tree", k=4, routing="spray")
    assert fabric_part(cluster, 0, 15) == ["edge0.up", "pod0.up", "pod3.down", "edge7.down"]
    rates = {link.name: link.bandwidth_bytes_per_s for link in cluster.links}
    assert rates["fabric.pod0.up"] == pytest.approx(4 * rates["node0.nic0.up"])


def test_an_oversubscribed_fat_tree_has_fewer_uplinks():
    cluster = cluster_of(16, kind="fat-tree", k=8, oversubscription="2:1")
    assert sum(link.name.startswith("fabric.edge0.up") for link in cluster.links) == 2


def test_rails_meet_in_their_leaf_and_others_at_the_spine():
    cluster = load_cluster("dgx-a100:2")
    assert fabric_part(cluster, 3, 11) == []
    assert cluster.leaf_of(3) == cluster.leaf_of(11) == 3
    up, down = fabric_part(cluster, 3, 12)
    assert up.startswith("leaf3.up") and down.startswith("leaf4.down")


def test_rails_without_a_spine_cross_nvswitch_first():
    cluster = load_cluster("dgx-a100:2", {"fabric.cross_rail": "nvswitch"})
    names = [cluster.links[i].name for i in cluster.route(3, 12).links]
    assert names == [
        "node0.nvlink.gpu3.up", "node0.nvlink.gpu4.down", "node0.pcie.gpu4.up", "node0.pcie.nic4.down",
        "node0.nic4.up", "node1.nic4.down", "node1.pcie.nic4.up", "node1.pcie.gpu4.down",
    ]  # fmt: skip


def test_a_second_group_of_nodes_has_rails_of_its_own():
    cluster = load_cluster("dgx-a100:21")
    assert cluster.leaf_of(20 * 8) == 8
    assert len(fabric_part(cluster, 0, 20 * 8)) == 2


def test_superpod_leaves_and_uplinks():
    cluster = load_cluster("b200:64")  # two scalable units: 16 leaves, 512 cables up (NVIDIA's reference)
    ups = [link for link in cluster.links if link.kind == "fabric" and ".up" in link.name]
    assert len({link.name.split(".up")[0] for link in ups}) == 16
    assert len(ups) == 512


def test_a_port_of_a_switch_has_its_buffer_and_a_host_has_none():
    links = {link.name: link for link in load_cluster("tcp-1g").links}
    assert links["node0.nic0.down"].buffer_bytes == 150_000
    assert links["node0.nic0.down"].ecn_threshold_bytes == 30_000
    assert links["node0.nic0.up"].buffer_bytes == float("inf")


@pytest.mark.parametrize(
    ("fabric", "words"),
    [
        ({"kind": "leaf-spine", "ports": 4, "oversubscription": "4:1"}, "4 ports at 4:1 leave 0 up"),
        ({"kind": "leaf-spine", "k": 4}, "'k' is not for a fabric of kind 'leaf-spine'"),
        ({"kind": "leaf-spine", "down": 10, "oversubscription": "4:1"}, "10 ports down at 4:1 need 2.5 uplinks"),
        ({"kind": "leaf-spine", "down": 10, "up": 4, "spines": 3}, "divide evenly over the spines, got 4 over 3"),
        ({"kind": "leaf-spine", "down": 40, "up": 30}, "has 64 ports, got 40 down and 30 up"),
        ({"kind": "fat-tree"}, "an even number of ports 'k'"),
        ({"kind": "fat-tree", "k": 3}, "an even number of ports 'k'"),
        ({"kind": "fat-tree", "k": 2}, "joins 2 NICs, got 20; raise k"),
        ({"kind": "fat-tree", "k": 4, "oversubscription": "4:1"}, "must be whole"),
        ({"kind": "switch", "ports": 8}, "has 8 ports, got 20 NICs"),
        ({"kind": "torus"}, "must be one of switch, leaf-spine, fat-tree, rail"),
        ({"oversubscription": "4:1"}, "choose another kind, such as leaf-spine"),
        ({"oversubscription": "1:4"}, "at least 1:1"),
        ({"oversubscription": "a:b"}, "must be a number"),
        ({"oversubscription": "4:0"}, "must be above zero"),
    ],
)
def test_a_fabric_that_cannot_be_is_an_error(fabric, words):
    with pytest.raises(ConfigError) as error:
        cluster_of(20, **fabric)
    assert words in str(error.value)
