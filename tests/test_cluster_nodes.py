"""Nodes: lanes, PCIe trees, NVLink, staging, NICs. Routes and widths worked out by hand."""

import doctest

import pytest

import emu.cluster.lanes as lanes
from emu.cluster import load_cluster
from emu.cluster.lanes import train
from emu.errors import ConfigError

PCIE3 = 15.754e9 * 0.84  # bytes/s of an x16 slot


def names(cluster, route):
    return [cluster.links[i].name.removeprefix("node0.") for i in route.links]


def widths(cluster):
    node = cluster.node(0)
    return [node.lanes(f"gpu{gpu}") for gpu in range(node.spec.gpus)]


def test_the_examples_in_the_docstring_hold():
    assert doctest.testmod(lanes).failed == 0


@pytest.mark.parametrize(
    ("wanted", "budget", "trained"),
    [
        ([16] * 3, 48, (16, 16, 16)),
        ([16] * 4, 48, (16, 16, 8, 8)),
        ([16] * 4, 40, (16, 8, 8, 8)),
        ([16] * 4, 32, (8, 8, 8, 8)),
        ([16] * 4, 24, (8, 8, 4, 4)),
        ([16, 8, 16], 40, (16, 8, 16)),
        ([16, 8, 16], 32, (16, 8, 8)),
        ([16, 4], 16, (8, 4)),
        ([1, 1], 2, (1, 1)),
        ([], 0, ()),
    ],
)
def test_lanes_that_are_short_halve_the_widest_slot_the_last_first(wanted, budget, trained):
    assert train(wanted, budget, "cpu0") == trained


def test_more_devices_than_lanes_is_an_error():
    with pytest.raises(ConfigError, match="cpu0: 3 devices need a lane each, got 2 lanes"):
        train([16, 16, 16], 2, "cpu0")


def test_a_slot_of_an_odd_width_is_an_error():
    with pytest.raises(ConfigError, match="1, 2, 4, 8 or 16 lanes, got 12"):
        train([12], 48, "cpu0")


def test_two_sockets_of_48_lanes_take_six_x16_and_a_seventh_changes_the_allocation():
    assert widths(load_cluster("slots-96")) == [16] * 6
    assert widths(load_cluster("slots-96", {"node.gpus": "7"})) == [16, 16, 8, 8, 16, 16, 16]


def test_two_sockets_of_96_lanes_take_twelve_x16():
    assert widths(load_cluster("slots-192")) == [16] * 12
    assert widths(load_cluster("slots-192", {"node.gpus": "13"}))[:7] == [16, 16, 16, 16, 16, 8, 8]


def test_four_cards_on_40_lanes():
    cluster = load_cluster("workstation")
    assert widths(cluster) == [16, 8, 8, 8]
    assert cluster.closed_form(0, 1).bandwidth_bytes_per_s == pytest.approx(PCIE3 / 2 / 1.2)


def test_other_devices_draw_on_the_lanes_too(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[nodes.box]\nbase="slots-96"\n[nodes.box.pcie]\nother_lanes=[16]\n[cluster]\nnode="box"\n')
    assert widths(load_cluster(str(path))) == [16, 16, 8] * 2


def test_a_card_older_than_its_slot_runs_at_its_own_generation():
    cluster = load_cluster("pcie-box", {"gpu": "v100-pcie-16"})
    assert cluster.closed_form(0, 1).bandwidth_bytes_per_s == pytest.approx(PCIE3)


def test_what_crosses_an_intel_root_port_reaches_five_sixths_of_the_slot():
    cluster = load_cluster("pcie3-box")
    assert cluster.closed_form(0, 1).bandwidth_bytes_per_s == pytest.approx(PCIE3)  # below one switch
    assert cluster.closed_form(0, 2).bandwidth_bytes_per_s == pytest.approx(PCIE3 / 1.2)
    assert cluster.closed_form(0, 4).bandwidth_bytes_per_s == pytest.approx(PCIE3 / 1.2)  # staged
    assert load_cluster("pcie-box").route(0, 2).cap_bytes_per_s == float("inf")  # AMD


def test_cards_in_one_switch_never_see_its_uplink():
    cluster = load_cluster("pcie-box")
    assert names(cluster, cluster.route(0, 1)) == ["pcie.gpu0.up", "pcie.gpu1.down"]


def test_cards_in_two_switches_share_the_uplinks():
    cluster = load_cluster("pcie-box")
    assert names(cluster, cluster.route(0, 2)) == ["pcie.gpu0.up", "pcie.sw0.up", "pcie.sw1.down", "pcie.gpu2.down"]
    assert names(cluster, cluster.route(1, 2))[1] == "pcie.sw0.up"


def test_cards_on_two_sockets_are_staged_through_host_memory():
    cluster = load_cluster("pcie-box")
    route = cluster.route(0, 4)
    assert names(cluster, route) == [
        "pcie.gpu0.up", "pcie.sw0.up", "cpu0.memory", "cpu0.out", "cpu1.in", "pcie.sw2.down", "pcie.gpu4.down",
    ]  # fmt: skip
    # Two slots at 0.25 us, two switches at 125 ns, the interconnect at 100 ns, staging at 9.5 us.
    assert route.latency_s == pytest.approx(0.5e-6 + 0.25e-6 + 0.1e-6 + 9.5e-6)
    assert route.transport == "pcie"


@pytest.mark.parametrize(
    ("peer", "path"),
    [
        ("all", ["cpu0.peer", "cpu0.out", "cpu1.in"]),
        ("none", ["cpu0.memory", "cpu0.out", "cpu1.in"]),
    ],
)  # fmt: skip
def test_how_far_cards_read_each_other_is_a_setting(peer, path):
    cluster = load_cluster("pcie-box", {"pcie.peer": peer})
    up, down = ["pcie.gpu0.up", "pcie.sw0.up"], ["pcie.sw2.down", "pcie.gpu4.down"]
    assert names(cluster, cluster.route(0, 4)) == [*up, *path, *down]


def test_without_peer_to_peer_a_pair_crosses_its_uplink_both_ways():
    cluster = load_cluster("pcie-box", {"pcie.peer": "none"})
    assert names(cluster, cluster.route(0, 1)) == [
        "pcie.gpu0.up", "pcie.sw0.up", "cpu0.memory", "pcie.sw0.down", "pcie.gpu1.down",
    ]  # fmt: skip


def test_peer_to_peer_across_sockets_is_as_slow_as_the_processors_make_it():
    cluster = load_cluster("pcie3-box", {"pcie.peer": "all"})
    assert cluster.closed_form(0, 4).bandwidth_bytes_per_s == 10e9


def test_a_host_can_limit_both_directions_together():
    cluster = load_cluster("pcie-box", {"pcie.both_directions": "30 GB/s"})
    assert "cpu0.root" in names(cluster, cluster.route(0, 2))
    assert "cpu0.root" in names(cluster, cluster.route(2, 0))
    assert "cpu0.root" not in names(cluster, cluster.route(0, 1))


def test_host_copies_share_memory_and_uplink():
    cluster = load_cluster("pcie-box")
    assert names(cluster, cluster.host_route(5, "h2d")) == ["cpu1.memory", "pcie.sw2.down", "pcie.gpu5.down"]
    assert names(cluster, cluster.host_route(5, "d2h")) == ["pcie.gpu5.up", "pcie.sw2.up", "cpu1.memory"]
    with pytest.raises(ConfigError, match="must be h2d or d2h, got 'up'"):
        cluster.host_route(5, "up")


def test_gpus_on_nvswitch_have_a_port_each():
    cluster = load_cluster("dgx-a100")
    assert names(cluster, cluster.route(3, 6)) == ["nvlink.gpu3.up", "nvlink.gpu6.down"]
    form = cluster.closed_form(3, 6)
    assert form.bandwidth_bytes_per_s == pytest.approx(12 * 25e9 * 0.91)
    assert form.alpha_s == pytest.approx(2.3e-6)


@pytest.mark.parametrize(("a", "b", "lines"), [(0, 1, 2), (0, 2, 1), (3, 7, 1), (5, 7, 2), (6, 4, 1)])
def test_the_cube_mesh_has_its_links(a, b, lines):
    cluster = load_cluster("dgx-1")
    assert names(cluster, cluster.route(a, b)) == [f"nvlink.gpu{a}.gpu{b}"]
    assert cluster.closed_form(a, b).bandwidth_bytes_per_s == pytest.approx(lines * 25e9 * 0.96)


def test_every_gpu_of_the_cube_mesh_has_six_lines():
    mesh = load_cluster("dgx-1").node(0).spec.scaleup.mesh
    for gpu in range(8):
        assert sum(lines for a, b, lines in mesh if gpu in (a, b)) == 6


def test_a_pair_without_nvlink_falls_back_to_pcie():
    cluster = load_cluster("dgx-1")
    route = cluster.route(0, 5)
    assert route.transport == "pcie"
    assert "cpu0.memory" in names(cluster, route)


def test_bridges_join_pairs_and_no_others():
    cluster = load_cluster("pcie-bridged")
    assert cluster.route(2, 3).transport == "nvlink"
    assert cluster.route(3, 2).transport == "nvlink"
    assert cluster.route(1, 2).transport == "pcie"


def test_xgmi_gives_each_pair_one_link():
    cluster = load_cluster("mi300x-box")
    assert names(cluster, cluster.route(2, 7)) == ["nvlink.gpu2.gpu7"]
    assert cluster.closed_form(2, 7).bandwidth_bytes_per_s == pytest.approx(64e9 * 0.75)


def test_a_rank_reaches_itself_at_once():
    cluster = load_cluster("pcie-box")
    assert (cluster.route(3, 3).links, cluster.route(3, 3).latency_s) == ((), 0.0)


@pytest.mark.parametrize(
    ("name", "nics"),
    [
        ("dgx-1", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("dgx-a100", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("pcie-box", [0, 0, 0, 0, 1, 1, 1, 1]),
        ("tcp-10g", [0, 0, 0, 0]),
    ],
)
def test_a_gpu_uses_the_nearest_nic(name, nics):
    cluster = load_cluster(name)
    assert [cluster.nic_of(rank) for rank in range(cluster.size)] == nics


def test_gpudirect_stays_below_the_switch_and_staging_goes_through_memory():
    direct = load_cluster("dgx-a100:2")
    staged = load_cluster("dgx-a100:2", {"transport": "infiniband-staged"})
    assert names(direct, direct.route(0, 8))[:3] == ["pcie.gpu0.up", "pcie.nic0.down", "nic0.up"]
    assert names(staged, staged.route(0, 8))[:6] == [
        "pcie.gpu0.up", "pcie.sw0.up", "cpu0.memory", "pcie.sw0.down", "pcie.nic0.down", "nic0.up",
    ]  # fmt: skip
    across_pcie_s = 1e-6  # which staging has in its own figure
    assert staged.route(0, 8).latency_s - direct.route(0, 8).latency_s == pytest.approx(2 * 9.5e-6 - across_pcie_s)


def test_tcp_takes_the_hosts_cores_at_both_ends():
    cluster = load_cluster("tcp-100g")
    route = cluster.route(0, 1)
    assert [cluster.links[i].name for i in route.links] == [
        "node0.pcie.gpu0.up", "node0.cpu0.memory", "node0.pcie.nic0.down", "node0.cores", "node0.nic0.up",
        "node1.nic0.down", "node1.cores", "node1.pcie.nic0.up", "node1.cpu0.memory", "node1.pcie.gpu0.down",
    ]  # fmt: skip
    assert route.cap_bytes_per_s == pytest.approx(42e9 / 8, rel=1e-5)  # one flow, one core
    cores = next(link for link in cluster.links if link.name == "node0.cores")
    assert cores.bandwidth_bytes_per_s == pytest.approx(64 * route.cap_bytes_per_s)


def test_more_sockets_let_a_flow_use_more_cores():
    form = load_cluster("tcp-100g", {"tcp.sockets": "4"}).closed_form(0, 1)
    assert form.bandwidth_bytes_per_s == pytest.approx(12.5e9 * 1448 / 1538)


def test_without_offload_every_packet_costs():
    cap = load_cluster("tcp-10g", {"transport": "tcp-no-offload"}).route(0, 1).cap_bytes_per_s
    assert cap == pytest.approx(1 / (0.1752172e-9 + 1e-6 / 1448))


def test_a_half_duplex_nic_limits_both_directions_together():
    cluster = load_cluster("roce-100g", {"nic.both_directions": "true"})
    there, back = (names(cluster, cluster.route(*pair)) for pair in ((0, 1), (1, 0)))
    assert "nic0.both" in there and "nic0.both" in back


PCIE = "gpus = 3\n[nodes.box.pcie]\nlink = 'pcie3'\n"
MESH = "gpus = 3\npcie = { link = 'pcie3' }\n[nodes.box.scaleup]\nkind = 'mesh'\nlink = 'nvlink2'\n"
NIC = "gpus = 3\npcie = { link = 'pcie3' }\n[nodes.box.nic]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PCIE + "switches = [{ name = 'a', under = 'cpu7' }]", "'a' must hang under a socket"),
        (PCIE + "switches = [{ name = 'gpu1', under = 'cpu0' }]", "a name of its own"),
        (PCIE + "switches = [{ name = 'a' }]", "needs the key 'under'"),
        (PCIE + "switches = [{ name = 'a', under = 'cpu0', gpus = [1, 1] }]", "each of the gpus once"),
        (PCIE + "gpu_sockets = [0, 4, 0]", "must name one of 1 sockets"),
        ("gpus = 3\n[nodes.box.pcie]\nlink = 'pcie9'", "unknown link 'pcie9'"),
        ("gpus = 3\n[nodes.box.pcie]\npeer = 'all'", "needs the key 'link'"),
        (MESH + "mesh = [[0, 3, 1]]", "GPUs 0 to 2"),
        (MESH + "mesh = [[0, 1, 1], [1, 0, 1]]", "twice"),
        (MESH + "mesh = [[0, 1]]", "number of links"),
        ("gpus = 3\npcie = { link = 'pcie3' }\n[nodes.box.scaleup]\nkind = 'switch'", "needs the key 'link'"),
        (NIC + "count = 2", "needs the key 'link' or 'bandwidth'"),
        (NIC + "link = 'eth-10'\ngpu_nics = [0, 1, 0]", "one of 1 NICs"),
        ("gpus = 3", "needs the key 'pcie'"),
    ],
)
def test_a_node_that_cannot_be_is_an_error(tmp_path, text, words):
    path = tmp_path / "c.toml"
    path.write_text(f"[cluster]\nnode = 'box'\n[nodes.box]\ngpu = 't4'\ncpu = 'xeon-8168'\n{text}\n")
    with pytest.raises(ConfigError) as error:
        load_cluster(str(path))
    assert words in str(error.value)
