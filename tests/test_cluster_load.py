"""What a user writes: names, numbers of nodes, files, links in one string, settings; and what identifies a cluster."""

import pickle

import pytest

from emu.catalog import builtin
from emu.cluster import link_cluster, load_cluster
from emu.errors import ConfigError

ELASTIC = ["tcp-10g", "tcp-40g", "tcp-100g", "roce-100g", "roce-400g", "nvlink3", "nvlink4", "pcie3", "pcie4"]


@pytest.mark.parametrize("name", builtin().names("clusters"))
def test_every_cluster_of_the_catalogue_has_routes_between_all(name):
    cluster = load_cluster(name)
    for src in range(min(cluster.size, 16)):
        for dst in range(min(cluster.size, 16)):
            route = cluster.route(src, dst)
            assert len(set(route.links)) == len(route.links)
            assert route.transport in cluster.transports
            assert src == dst or route.links
        for direction in ("h2d", "d2h"):
            assert cluster.host_route(src, direction).links


@pytest.mark.parametrize("name", ELASTIC)
def test_clusters_of_any_size_have_as_many_gpus_as_ranks(name):
    assert load_cluster(name, gpus=7).size == 7
    assert load_cluster(f"{name}:12").size == 12
    assert load_cluster(f"{name}:12", gpus=5).size == 12


def test_a_number_after_the_colon_is_nodes():
    cluster = load_cluster("dgx-a100:3")
    assert (cluster.size, cluster.nodes, cluster.node_of(8), cluster.local_rank(17)) == (24, 3, 1, 1)
    assert cluster.ranks_of(2) == tuple(range(16, 24))


def test_fewer_ranks_than_gpus_leave_gpus_idle():
    assert load_cluster("dgx-a100", gpus=4).size == 8


@pytest.mark.parametrize(
    ("spec", "gpus", "words"),
    [
        ("dgx-a100", 9, "has 8 GPUs, got 9 ranks; use at most 8 ranks, or dgx-a100:2"),
        ("dgx-a100:2", 40, "or dgx-a100:5"),
        ("tcp-10g:4", 5, "has 4 GPUs, got 5 ranks; use at most 4 ranks, or tcp-10g:5"),
        ("nvlink3:4", 6, "or nvlink3:6"),
    ],
)
def test_more_ranks_than_gpus_is_an_error(spec, gpus, words):
    with pytest.raises(ConfigError) as error:
        load_cluster(spec, gpus=gpus)
    assert words in str(error.value)
    with pytest.raises(ConfigError) as error:
        load_cluster(spec).check_ranks(gpus)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("dgx-a10", "unknown cluster 'dgx-a10'; did you mean 'dgx-a100'"),
        ("tcp10g", "did you mean 'tcp-10g'"),
        ("zzz", "unknown cluster 'zzz'; there are a3-mega, "),
        ("dgx-a100:two", "must be a number of nodes, got 'two'"),
        ("dgx-a100:0", "must be a number of nodes, got '0'"),
        ("none.toml", "none.toml: cannot be read"),
    ],
)
def test_an_unknown_cluster_is_an_error(spec, words):
    with pytest.raises(ConfigError) as error:
        load_cluster(spec)
    assert words in str(error.value)


# A link in one string.


def test_a_link_costs_exactly_its_latency_and_bandwidth():
    cluster = link_cluster("latency=5 us, bandwidth=12 Gb/s", gpus=4)
    form = cluster.closed_form(0, 3)
    assert (form.alpha_s, form.bandwidth_bytes_per_s) == (5e-6, 1.5e9)
    assert form.time_s(3e9) == 2.000005
    assert str(form) == "5 us + n / (1.5 GB/s)"
    assert [cluster.links[i].name for i in cluster.route(0, 3).links] == ["node0.nic0.up", "node3.nic0.down"]
    assert cluster.size == 4


def test_load_cluster_takes_a_link_too():
    assert load_cluster("latency=5 us, bandwidth=12 Gb/s", gpus=2) == link_cluster("latency=5 us, bandwidth=12 Gb/s", 2)


def test_a_half_duplex_link_is_one_medium():
    cluster = link_cluster("latency=1 us, bandwidth=1 GB/s, duplex=half", gpus=2)
    assert set(cluster.route(0, 1).links) & set(cluster.route(1, 0).links)


def test_a_link_takes_a_gpu_and_overheads():
    cluster = link_cluster("latency=1 us, bandwidth=1 GB/s, gpu=h100, send_overhead=2 us, eager=4 KiB", gpus=2)
    assert cluster.gpu(1).name == "h100-sxm5-80"
    assert (cluster.transport("link").send_overhead_s, cluster.transport("link").eager_bytes) == (2e-6, 4096)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("latency=5 us", "needs 'bandwidth'"),
        ("bandwidth=5 GB/s", "needs 'latency'"),
        ("latency=5 us, bandwidth=12", "has no unit"),
        ("latency=5 us, bandwidth=-12 Gb/s", "must not be negative"),
        ("latency=5 us, bandwith=12 Gb/s", "unknown key 'bandwith'; did you mean 'bandwidth'?"),
        ("latency=5, bandwidth=12 Gb/s", "latency: has no unit"),
        ("latency=5 us, bandwidth", "must be such as 'latency=5 us"),
        ("latency=5 us, latency=6 us, bandwidth=1 GB/s", "names 'latency' twice"),
        ("latency=5 us, bandwidth=1 GB/s, duplex=both", "must be full or half"),
        ("latency=5 us, bandwidth=1 GB/s, gpu=z80", "unknown gpu 'z80'"),
    ],
)
def test_a_link_that_cannot_be_read_is_an_error(text, words):
    with pytest.raises(ConfigError) as error:
        link_cluster(text, gpus=2)
    assert words in str(error.value)


# Settings.


@pytest.mark.parametrize("key", ["nic", "nic.bandwidth"])
def test_a_setting_changes_the_nic(key):
    form = load_cluster("dgx-a100:2", {key: "100 Gb/s"}).closed_form(0, 8)
    assert form.bandwidth_bytes_per_s == pytest.approx(12.5e9 * 4096 / 4122)


@pytest.mark.parametrize(
    ("transport", "alpha_s"),
    [("rdma", 2e-6), ("tcp", 10e-6), ("tcp-100us", 100e-6), ("roce", 2e-6), ("infiniband", 1.87e-6)],
)
def test_a_transport_brings_its_latency(transport, alpha_s):
    cluster = load_cluster("roce-100g", {"transport": transport})
    assert cluster.closed_form(0, 1).alpha_s == alpha_s


@pytest.mark.parametrize(("mtu", "efficiency"), [("1500 B", 1448 / 1538), ("9000 B", 8948 / 9038)])
def test_headers_take_their_part(mtu, efficiency):
    cluster = load_cluster("tcp-10g", {"tcp.mtu": mtu})
    assert cluster.closed_form(0, 1).bandwidth_bytes_per_s == pytest.approx(1.25e9 * efficiency)


@pytest.mark.parametrize(("name", "efficiency"), [("roce", 4096 / 4178), ("infiniband", 4096 / 4122)])
def test_rdma_headers_take_their_part(name, efficiency):
    assert load_cluster("ib-edr", {"transport": name}).transport(name).efficiency == pytest.approx(efficiency)


def test_settings_of_other_parts():
    settings = {
        "gpu.memory": "64 GB", "cpu.lanes": "64", "node.gpus": "4", "transport.latency": "3 us",
        "links.pcie4.efficiency": "0.9", "nodes": "2", "switch.buffer": "1 MB",
    }  # fmt: skip
    cluster = load_cluster("pcie-box", settings)
    assert cluster.gpu(0).memory_bytes == 64e9
    assert (cluster.size, cluster.nodes) == (8, 2)
    assert cluster.transport("roce").latency_s == 3e-6
    assert cluster.closed_form(0, 1).bandwidth_bytes_per_s == pytest.approx(31.508e9 * 0.9)


def test_another_fabric_is_built_of_the_same_switches():
    cluster = load_cluster("tcp-10g:96", {"fabric": "leaf-spine-3to1"})
    assert "36 down, 12 up" in cluster.fabric_summary()  # of 48 ports
    assert {link.buffer_bytes for link in cluster.links if link.kind == "fabric"} == {187_500}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"nic.bandwith": "1 GB/s"}, "setting nic.bandwith: unknown key 'bandwith'; did you mean 'bandwidth'?"),
        ({"nic.bandwidth": "100"}, "setting nic.bandwidth: has no unit"),
        ({"nic.bandwidth": "0 Gb/s"}, "must be above zero"),
        ({"nick": "1 GB/s"}, "unknown setting 'nick'; did you mean"),
        ({"transport": "tpc"}, "unknown transport 'tpc'; did you mean 'tcp'"),
        ({"fabric": "leafspine"}, "unknown fabric 'leafspine'; did you mean 'leaf-spine'"),
        ({"gpu": "a1000"}, "unknown gpu 'a1000'; did you mean"),
        ({"node.pcie": "x"}, "is a table; set one of its keys"),
        ({"links.pcie9.latency": "1 us"}, "unknown link 'pcie9'"),
        ({"links.pcie4.latncy": "1 us"}, "unknown key 'latncy'; did you mean 'latency'"),
        ({"links.pcie4.latency": "1"}, "setting links.pcie4.latency: has no unit"),
        ({"slow": "99:0.5"}, "slow: the cluster has ranks 0 to 7, got 99"),
        ({"tcp.mtu": "40 B", "transport": "tcp"}, "mtu must exceed its headers of 52 B, got 40 B"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error(settings, words):
    with pytest.raises(ConfigError) as error:
        load_cluster("dgx-a100", settings)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("roce-100g", "tcp.mtu", "9000 B", "the transport between nodes is roce (rdma)"),
        ("tcp-10g", "rdma.mtu", "4096 B", "the transport between nodes is tcp (tcp)"),
        ("pcie-box", "scaleup.links", "4", "has no GPU fabric"),
        ("pcie4", "pcie.peer", "none", "one switch that never blocks"),
        ("tcp-10g", "fabric.routing", "spray", "'routing' is not for a fabric of kind 'switch'"),
    ],
)
def test_a_setting_that_would_change_nothing_is_an_error(name, key, value, words):
    with pytest.raises(ConfigError) as error:
        load_cluster(name, {key: value})
    assert words in str(error.value)


# Files.


def write(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


FILE = """
[gpus.small]
base = "t4"
memory = "8 GB"

[links.home]
medium = "ethernet"
bandwidth = "2.5 Gb/s"

[nodes.pc]
base = "host"
gpu = "small"
[nodes.pc.nic]
link = "home"

[cluster]
name = "home"
node = "pc"
nodes = 3
transport = "tcp"
"""


def test_a_file_describes_a_cluster(tmp_path):
    cluster = load_cluster(write(tmp_path, FILE))
    assert (cluster.name, cluster.size, cluster.gpu(2).memory_bytes) == ("home", 3, 8e9)
    assert cluster.closed_form(0, 1).bandwidth_bytes_per_s == pytest.approx(2.5e9 / 8 * 1448 / 1538)


def test_a_file_takes_a_number_of_nodes_and_settings(tmp_path):
    cluster = load_cluster(write(tmp_path, FILE) + ":5", {"nic": "10 Gb/s"})
    assert cluster.size == 5
    assert cluster.closed_form(0, 1).bandwidth_bytes_per_s == pytest.approx(1.25e9 * 1448 / 1538)


def test_a_file_builds_on_a_cluster_of_the_catalogue(tmp_path):
    cluster = load_cluster(write(tmp_path, '[cluster]\nbase = "dgx-a100"\nnodes = 2\n'))
    assert cluster.size == 16
    assert cluster.route(0, 8) == load_cluster("dgx-a100:2").route(0, 8)


def test_groups_of_unlike_nodes(tmp_path):
    text = '[cluster]\ngroups = [{ node = "dgx-a100", nodes = 2 }, { node = "dgx-1", nodes = 1 }]\nfabric = "rail"\n'
    cluster = load_cluster(write(tmp_path, text))
    assert cluster.size == 24
    assert (cluster.gpu(0).name, cluster.gpu(23).name) == ("a100-sxm4-40", "v100-sxm2-16")
    assert cluster.node_of(16) == 2
    assert cluster.closed_form(0, 23).bandwidth_bytes_per_s == pytest.approx(12.5e9 * 4096 / 4122)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gpus.x]\nbase = 't4'\n", "needs a [cluster] table"),
        ("[cluster]\nnodes = 2\n", "[cluster]: needs the key 'node'"),
        ("[cluster]\nnode = 'dgx'\n", "[cluster] node: unknown node 'dgx'; did you mean"),
        ("[cluster]\nnode = 'dgx-1'\nfabric = 'ring'\n", "[cluster] fabric: unknown fabric 'ring'"),
        ("[cluster]\nnode = 'dgx-1'\ntransport = 'ipx'\n", "[cluster] transport: unknown transport 'ipx'"),
        ("[cluster]\ngroups = [{ node = 'dgx-1' }]\n", "groups[0]: needs the key 'nodes'"),
        ("[cluster]\nnode = 'x'\ngroups = [{ node = 'dgx-1', nodes = 1 }]\n", "groups of nodes of its own"),
        ("[cluster]\nbase = 'dgx'\n", "[cluster] base: unknown cluster 'dgx'"),
        ("[cluster]\nnode = 'dgx-1'\nfabric = { leafs = 3 }\n", "[cluster.fabric]: unknown key 'leafs'"),
        ("[cluster]\nnode = 'dgx-1'\n[cluster.faults]\nslows = 'x'\n", "[cluster.faults]: unknown key 'slows'"),
        ("cluster = 3\n", "[cluster]: must be a table, got 3"),
    ],
)  # fmt: skip
def test_a_file_that_describes_no_cluster_is_an_error(tmp_path, text, words):
    with pytest.raises(ConfigError) as error:
        load_cluster(write(tmp_path, text))
    assert words in str(error.value)


def test_a_node_without_nic_reaches_no_other():
    cluster = load_cluster("slots-96:2")
    with pytest.raises(ConfigError, match="node 0 .slots-96. has no NIC"):
        cluster.route(0, 6)


# What a cluster is.


def test_equal_descriptions_have_one_hash_and_others_another():
    assert load_cluster("dgx-a100").sha256 == load_cluster("dgx-a100:1").sha256
    hashes = {
        load_cluster(name, settings).sha256
        for name, settings in [
            ("dgx-a100", {}),
            ("dgx-a100:2", {}),
            ("dgx-a100-80", {}),
            ("dgx-a100", {"slow": "3:0.5"}),
            ("dgx-a100", {"nic": "100 Gb/s"}),
            ("dgx-a100", {"transport": "tcp"}),
        ]
    }
    assert len(hashes) == 6


def test_a_cluster_is_described_in_plain_values():
    described = load_cluster("dgx-1").describe()
    assert described["groups"][0][0]["gpu"]["name"] == "v100-sxm2-16"


def test_a_cluster_travels_by_pickle():
    cluster = load_cluster("dgx-a100:2")
    cluster.route(0, 9)
    other = pickle.loads(pickle.dumps(cluster))
    assert other == cluster and other.route(0, 9) == cluster.route(0, 9)


def test_a_rank_beyond_the_cluster_is_an_error():
    cluster = load_cluster("dgx-a100")
    for ask in (lambda: cluster.route(0, 8), lambda: cluster.gpu(8), lambda: cluster.node_of(-1)):
        with pytest.raises(ConfigError, match="has ranks 0 to 7"):
            ask()


def test_six_thousand_gpus_are_a_cluster_like_any_other():
    cluster = load_cluster("dgx-a100:760")
    assert cluster.size == 6080
    assert cluster.route(0, 6079).transport == "infiniband"
