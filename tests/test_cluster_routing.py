"""Routes of many pairs at once are those of each pair."""

import numpy as np
import pytest

from emu.cluster import RouteList, load_cluster

CLUSTERS = [
    ("dgx-1:2", {}),
    ("dgx-a100:3", {}),
    ("dgx-a100:3", {"fabric.cross_rail": "nvswitch"}),
    ("dgx-a100:3", {"transport": "tcp"}),
    ("pcie-box", {}),
    ("nvlink4:5", {}),
    ("tcp-10g:9", {}),
    ("roce-100g:70", {"fabric": "leaf-spine-4to1"}),
    ("roce-100g:70", {"fabric": "leaf-spine", "fabric.routing": "spray"}),
    ("roce-100g:90", {"fabric": "leaf-spine", "fabric.spines": "4"}),
    ("roce-100g:16", {"fabric.kind": "fat-tree", "fabric.k": "4"}),
    ("roce-100g:16", {"fabric.kind": "fat-tree", "fabric.k": "4", "fabric.routing": "spray"}),
]


@pytest.mark.parametrize(("name", "settings"), CLUSTERS)
def test_a_table_holds_each_pairs_own_route(name, settings):
    cluster = load_cluster(name, settings)
    src, dst = (side.ravel() for side in np.meshgrid(range(cluster.size), range(cluster.size)))
    table = cluster.route_table(src, dst)
    for i, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        route = cluster.route(a, b)
        assert tuple(table.links[table.first[i] : table.first[i + 1]]) == route.links
        assert table.latency_s[i] == route.latency_s
        assert table.cap_bytes_per_s[i] == route.cap_bytes_per_s
        assert table.transports[table.transport[i]] == route.transport


def test_groups_of_unlike_nodes_have_their_own_routes(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(
        '[cluster]\ngroups = [{ node = "dgx-1", nodes = 2 }, { node = "dgx-a100", nodes = 1 }, '
        '{ node = "dgx-1", nodes = 1 }]\n'
    )
    test_a_table_holds_each_pairs_own_route(str(path), {})


def test_no_pairs_make_an_empty_table():
    table = load_cluster("dgx-1").route_table([], [])
    assert len(table.links) == 0 and table.first.tolist() == [0]


def test_a_list_of_routes_makes_those_of_a_table_when_asked():
    cluster = load_cluster("dgx-a100:2")
    routes = RouteList([None])
    routes.append(cluster.route(0, 1))
    routes.extend(cluster.route_table([0, 3], [8, 12]))
    before = routes.copy()
    routes.append(cluster.route(1, 0))
    assert list(routes) == [None, *(cluster.route(*pair) for pair in [(0, 1), (0, 8), (3, 12), (1, 0)])]
    assert (len(before), len(routes), routes[-1], routes[3:4]) == (4, 5, cluster.route(1, 0), [cluster.route(3, 12)])
    with pytest.raises(IndexError):
        routes[5]
