"""NCCL's cost model gives the values that its formula gives."""

import pytest

from emu.cluster import load_cluster
from emu.engine.nccl import GENERATIONS, PROTOCOLS, Graph, choice, predicted_us
from emu.engine.nccl_graph import graph_of, search

ONE = Graph(1, 8, GENERATIONS["hopper"], 16, 20.0)
FOUR = Graph(4, 8, GENERATIONS["hopper"], 16, 20.0, 20.0)

GOLDEN = [
    (ONE, 1 << 10, (15.0, 40.6, 56.0), (15.2, 31.5, 64.4)),
    (ONE, 1 << 20, (28.0, 46.8, 61.7), (69.3, 46.8, 78.6)),
    (ONE, 256 << 20, (3346.6, 1636.3, 1524.0), (6944.9, 2376.1, 2090.6)),
    (FOUR, 1 << 10, (78.9, 144.4, 282.8), (35.3, 65.5, 120.4)),
    (FOUR, 1 << 20, (178.4, 151.3, 402.3), (240.8, 78.2, 134.6)),
    (FOUR, 256 << 20, (25573.6, 1911.0, 2021.2), (26352.4, 2010.7, 2146.6)),
]


@pytest.mark.parametrize("graph, nbytes, ring, tree", GOLDEN)
def test_all_reduce_costs_what_the_published_formula_says(graph, nbytes, ring, tree):
    for algorithm, expected in (("ring", ring), ("tree", tree)):
        got = [predicted_us(graph, "all_reduce", algorithm, protocol, nbytes) for protocol in PROTOCOLS]
        assert got == pytest.approx(expected, rel=1e-3, abs=0.06)


@pytest.mark.parametrize(
    "graph, nbytes, algorithm, protocol",
    [
        (ONE, 1 << 10, "ring", "LL"),
        (ONE, 256 << 20, "ring", "Simple"),
        (FOUR, 1 << 10, "tree", "LL"),
        (FOUR, 1 << 20, "tree", "LL128"),
        (FOUR, 256 << 20, "ring", "LL128"),
    ],
)
def test_the_least_estimate_is_chosen(graph, nbytes, algorithm, protocol):
    assert choice(graph, "all_reduce", nbytes)[:2] == (algorithm, protocol)


@pytest.mark.parametrize(
    "cluster, gpus, algorithm",
    [
        ("hgx-h200", 4, "ring"),
        ("hgx-h200", 5, "nvls"),
        ("hgx-h200", 8, "nvls"),
        ("b200", 5, "ring"),
        ("b200", 6, "nvls"),
        ("dgx-a100", 8, "ring"),
    ],
)
def test_the_switch_reduces_where_that_pays(cluster, gpus, algorithm):
    graph = graph_of(load_cluster(cluster, gpus=gpus), range(gpus))
    assert choice(graph, "all_reduce", 8 << 30)[0] == algorithm


@pytest.mark.parametrize(
    "cluster, gpus, there",
    [("dgx-a100", 8, True), ("dgx-1", 8, True), ("dgx-a100:2", 16, True), ("dgx-1-p100", 8, False),
     ("pcie-box", 8, False), ("tcp-100g", 2, False), ("ib-hdr", 2, False)],
)  # fmt: skip
def test_ll128_is_for_nvlink_from_volta_on_and_nics_under_the_gpu_s_switch(cluster, gpus, there):
    loaded = load_cluster(cluster) if ":" in cluster else load_cluster(cluster, gpus=gpus)
    graph = graph_of(loaded, range(gpus))
    assert graph.ll128 == there
    assert (predicted_us(graph, "all_reduce", "ring", "LL128", 1 << 20) < float("inf")) == there


@pytest.mark.parametrize(
    "generation, inside, nic, nics, found",
    [
        ("ampere", 240.0, 0.0, 1, (12, 20.0)),  # as A100's logs say
        ("hopper", 370.8, 0.0, 1, (12, 30.0)),  # as H100's logs say
        ("blackwell", 721.8, 0.0, 1, (16, 45.0)),
        ("ampere", 240.0, 25.0, 8, (8, 24.0)),
        ("ampere", 240.0, 12.5, 16, (16, 12.0)),
        ("hopper", 370.8, 50.0, 8, (8, 45.0)),
        ("ampere", 24.0, 12.5, 1, (1, 12.0)),
        ("volta", 12.0, 0.1, 1, (1, 0.1)),
    ],
)
def test_the_search_finds_the_channels_that_carry_most(generation, inside, nic, nics, found):
    assert search(GENERATIONS[generation], inside, nic, nics) == pytest.approx(found, rel=0.25 if nic == 0.1 else 0)


@pytest.mark.parametrize(
    "cluster, nbytes, algorithm",
    [
        ("dgx-a100:2", 1 << 20, "tree"),
        ("dgx-a100:2", 1 << 30, "ring"),  # a channel's part of a tree is bounded, and there are 8 channels
        ("dgx-h100:2", 1 << 10, "tree"),
        ("dgx-h100:2", 1 << 28, "nvls_tree"),
        ("dgx-h100:4", 1 << 33, "nvls_tree"),
        ("b200:2", 1 << 30, "nvls_tree"),
        ("dgx-1:2", 1 << 30, "ring"),  # 24 links carry no faster chains for four NICs than rings
        ("a3-mega:2", 1 << 30, "tree"),  # its transport's settings leave rings and trees
    ],
)
def test_between_nodes_nccl_takes(cluster, nbytes, algorithm):
    loaded = load_cluster(cluster)
    assert choice(graph_of(loaded, range(loaded.size)), "all_reduce", nbytes)[0] == algorithm


def test_a_cluster_can_leave_some_algorithms_and_protocols_alone():
    left = {"transport.nccl_algorithms": "ring", "transport.nccl_protocols": "LL, Simple"}
    graph = graph_of(load_cluster("dgx-a100:2", left), range(16))
    assert choice(graph, "all_reduce", 1 << 10)[:2] == ("ring", "LL")
    assert choice(graph, "all_reduce", 1 << 30)[:2] == ("ring", "Simple")


def test_a_broadcast_pays_a_step_where_channels_are_alike_and_all_steps_on_a_mesh():
    alike, mesh = (graph_of(load_cluster(name), range(8)) for name in ("dgx-a100", "dgx-1"))
    assert predicted_us(alike, "broadcast", "ring", "LL", 8) == pytest.approx(7.2, abs=0.01)
    assert predicted_us(mesh, "broadcast", "ring", "LL", 8) == pytest.approx(6.6 + 8 * 0.6, abs=0.01)
