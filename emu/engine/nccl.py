"""NCCL's own model of what an all-reduce costs, and the choice of algorithm and protocol that it makes by it.

time = latency + bytes / bandwidth, for each algorithm (ring, tree, nvls) and protocol (LL, LL128, Simple); the
least wins. The constants are NCCL's published ones, in microseconds and GB/s as there, protocols in that order.
Which numbers describe a cluster is `graph_of`'s business.

Source: NVIDIA/nccl, src/graph/tuning.cc and topo.h (2026-06).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

PROTOCOLS = ("LL", "LL128", "Simple")
ALGORITHMS = ("ring", "tree", "nvls")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")

Three = tuple[float, float, float]

BASE_US = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
STEP_US = {
    ("nvlink", "ring"): (0.6, 1.9, 3.4), ("nvlink", "tree"): (0.6, 1.25, 4.0),
    ("pcie", "ring"): (1.0, 2.5, 5.7), ("pcie", "tree"): (1.0, 1.9, 4.0),
    ("net", "ring"): (2.7, 4.0, 14.0), ("net", "tree"): (5.0, 8.5, 14.0),
}  # fmt: skip
NVLS_US, NVLS_NET_US = 25.0, 18.0
NET_OVERHEAD_US = {"intel": 1.0, "amd": 2.0}
LINK_BYTES_PER_S = {  # of one NVLink, as the search of rings takes it
    "nvlink1": 18e9, "nvlink2": 20e9, "nvlink3": 20e9, "nvlink4": 20.6e9, "nvlink5": 40.1e9, "nvlink3-bridge": 12e9,
}  # fmt: skip
KERNEL_BYTES_PER_S = {**LINK_BYTES_PER_S, "nvlink2": 21.7e9}  # what NCCL's kernels move; MSCCL's fit of NVLink 2
PCIE_BYTES_PER_S = {"pcie1": 3e9, "pcie2": 6e9, "pcie3": 12e9, "pcie4": 24e9, "pcie5": 48e9, "pcie6": 96e9}  # x16
NET_FRACTION = 0.96  # 12 GB/s of a line of 100 Gb/s
LL128_FRACTION, LL_FRACTION, TREE_FRACTION = 0.92, 0.5, 0.92
BUFFER_BYTES = 4 << 20
NVLS_CHUNK_BYTES = 128 << 10  # of a channel and GPU; from memory

# By the size's power of two from 64 bytes on: what a tree's pipeline reaches of its bandwidth.
TREE_CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
)


@dataclass(frozen=True)
class Generation:
    """What NCCL takes from the GPU's generation; GB/s, for one, two and more nodes where there are three.

    `channels` and `nvls_channels` are how many it opens beside NVSwitch, from memory of its logs.
    """

    channels: int
    ll_max: Three
    tree_channel: Three
    tree_channel_ll128: Three
    ring_channel_ll128: float
    nvls_fraction: float = 0.0
    nvls_channels: int = 0
    late_factor: float = 1.4  # of a large multi-node ring's latency


GENERATIONS = {
    "volta": Generation(12, (39.0, 39.0, 20.4), (26.5, 18.5, 10.0), (20.0, 20.0, 20.0), 20.0, late_factor=1.9),
    "ampere": Generation(24, (87.7, 22.5, 19.0), (24.0, 23.6, 17.8), (20.0, 20.0, 20.0), 20.0),
    "hopper": Generation(24, (141.0, 45.0, 35.0), (38.7, 41.4, 36.0), (36.7, 36.7, 29.0), 36.7, 0.85, 16),
    "blackwell": Generation(32, (282.0, 90.0, 70.0), (70.0, 42.8, 24.0), (55.6, 31.67, 20.0), 40.0, 0.74, 32),
}


@dataclass(frozen=True)
class Graph:
    """The machine as NCCL's model sees it. Bandwidths are a channel's, in GB/s."""

    nodes: int
    local: int  # ranks a node
    generation: Generation
    channels: int
    inside_gb_per_s: float
    between_gb_per_s: float = 0.0
    inside: str = "nvlink"
    cpu: str = "intel"
    reduces: bool = False
    ll128: bool = True  # whether 128 bytes stay together on every way, as that protocol needs
    nics: int = 1  # that a node's ranks use

    @property
    def ranks(self) -> int:
        return self.nodes * self.local

    @property
    def _row(self) -> int:
        return min(self.nodes, 3) - 1

    def ll_max(self) -> float:
        """GB/s that LL reaches at most; between nodes the host's CPU bounds it."""
        if self.nodes == 1:
            return self.generation.ll_max[0]
        return GENERATIONS["volta" if self.cpu == "intel" else "ampere"].ll_max[self._row]

    def bus(self, algorithm: str) -> float:
        """GB/s of all channels on their narrowest stretch.

        A ring crosses each node's NICs once with all it carries; so do the two trees of two nodes with half of
        it, for an inner node of one is a leaf of the other.
        """
        if self.nodes == 1:
            return self.channels * self.inside_gb_per_s
        share = 2.0 if algorithm == "tree" and self.nodes == 2 else 1.0
        return self.channels * min(self.inside_gb_per_s, share * self.between_gb_per_s)


def steps(collective: str, p: int) -> int:
    """Return how many times a chunk changes hands round a ring of p ranks."""
    return {"all_reduce": 2 * (p - 1), "broadcast": p, "reduce": p}.get(collective, p - 1)


def predicted_us(graph: Graph, collective: str, algorithm: str, protocol: str, nbytes: int) -> float:
    """Return NCCL's own estimate of a collective's time; infinite for what it can't do."""
    if algorithm == "nvls":
        return _nvls_us(graph, collective, protocol, nbytes)
    if algorithm == "tree" and (collective != "all_reduce" or graph.ranks < 3):
        return float("inf")
    if graph.ranks < 2:
        return 0.0
    if protocol == "LL128" and not graph.ll128:
        return float("inf")
    k = PROTOCOLS.index(protocol)
    latency = _ring_us(graph, collective, k) if algorithm == "ring" else _tree_us(graph, k)
    rate = _ring_rate(graph, collective, k) if algorithm == "ring" else _tree_rate(graph, k, nbytes)
    if algorithm == "ring" and k == 2 and graph.nodes > 1 and collective == "all_reduce":
        if nbytes / (graph.channels * graph.ranks) >= 64:
            latency *= graph.generation.late_factor
    return latency + nbytes / (1000 * rate)


def choice(
    graph: Graph, collective: str, nbytes: int, algorithms: Sequence[str] = ALGORITHMS
) -> tuple[str, str, float]:
    """Return the algorithm and the protocol that NCCL's model calls fastest, and its estimate in microseconds."""
    times = [(predicted_us(graph, collective, a, p, nbytes), a, p) for a in algorithms for p in PROTOCOLS]
    time_us, algorithm, protocol = min(times, key=lambda each: each[0])
    return algorithm, protocol, time_us


def _ring_us(graph: Graph, collective: str, k: int) -> float:
    inside = STEP_US[graph.inside, "ring"][k]
    between = STEP_US["net", "tree" if graph.local == 1 else "ring"][k]
    if graph.nodes > 1:
        inside = max(inside, NET_OVERHEAD_US[graph.cpu] * (3 if k == 2 else 1))
    crossings = 0 if graph.nodes == 1 else (2 if collective == "all_reduce" else 1) * (graph.nodes - 1)
    return BASE_US["ring"][k] + (steps(collective, graph.ranks) - crossings) * inside + crossings * between


def _tree_us(graph: Graph, k: int) -> float:
    inside, between = STEP_US[graph.inside, "tree"][k], STEP_US["net", "tree"][k]
    return BASE_US["tree"][k] + 2 * ((graph.local - 1) * inside + (graph.nodes.bit_length() - 1) * between)


def _ring_rate(graph: Graph, collective: str, k: int) -> float:
    bus = graph.bus("ring")
    if k == 0:
        bus = min(graph.ll_max(), LL_FRACTION * bus)
    elif k == 1:
        bus = min(LL128_FRACTION * bus, graph.channels * graph.generation.ring_channel_ll128)
    return bus * graph.ranks / steps(collective, graph.ranks)


def _tree_rate(graph: Graph, k: int, nbytes: int) -> float:
    row, generation = min(graph.nodes, 3) - 1, graph.generation
    bus = min(TREE_FRACTION * graph.bus("tree"), graph.channels * generation.tree_channel[row])
    if k == 0:
        bus = min(bus / 3.8, graph.ll_max())
    elif k == 1:
        share = 7 / 9 if graph.nodes == 1 else 120 / 128
        bus = min(bus * share, graph.channels * generation.tree_channel_ll128[row])
    power = (nbytes >> 6).bit_length() - 1
    return bus * 0.5 * (TREE_CORRECTION[k][power] if 0 <= power < 24 else 1.0)


def _nvls_us(graph: Graph, collective: str, protocol: str, nbytes: int) -> float:
    """Each GPU sends n + 1 parts of n, in place of a ring's 2(n - 1): the switch adds and copies."""
    generation = graph.generation
    if not graph.reduces or protocol != "Simple" or collective != "all_reduce" or graph.nodes > 1 or graph.ranks < 3:
        return float("inf")
    channels = generation.nvls_channels
    bus = graph.channels * graph.inside_gb_per_s * generation.nvls_fraction * (channels - 1) / channels
    return NVLS_US + (1 + 1 / graph.ranks) * nbytes / (1000 * bus)


def graph_of(cluster: Any, group: Sequence[int]) -> Graph:
    """Describe the ranks `group` of a cluster as NCCL's model sees them."""
    return _graph(cluster, tuple(group))


@lru_cache(maxsize=256)
def _graph(cluster: Any, group: tuple[int, ...]) -> Graph:
    members: dict[int, list[int]] = {}
    for rank in group:
        members.setdefault(cluster.node_of(rank), []).append(rank)
    local = max(len(ranks) for ranks in members.values())
    if not hasattr(cluster, "node"):
        rates = _plain_rates(cluster, members)
        return Graph(len(members), local, GENERATIONS["ampere"], 1, *rates, "pcie", ll128=False)
    node = cluster.node(next(iter(members)))
    spec = node.spec
    generation = generation_of(cluster.gpu(group[0]))
    total, inside = _inside(cluster, spec, list(members.values()))
    channels = generation.channels if inside == "nvlink" else 2
    between, nics = 0.0, 1
    if len(members) > 1:
        nics = len({cluster.nic_of(rank) for rank in next(iter(members.values()))})
        line = spec.nic.link.rate(spec.nic.link.lanes)
        between = nics * NET_FRACTION * min(line * cluster.spec.transport.efficiency, line) / channels / 1e9
    cpu = "amd" if spec.cpu.name.startswith("epyc") else "intel"
    reduces = spec.scaleup.reduces and generation.nvls_channels > 0
    rate, ll128 = total / channels / 1e9, _keeps_order(cluster, members, local == 1 or inside == "nvlink")
    return Graph(len(members), local, generation, channels, rate, between, inside, cpu, reduces, ll128, nics)


def _keeps_order(cluster: Any, members: dict[int, list[int]], inside: bool) -> bool:
    """Whether LL128's 128 bytes arrive as they left: by NVLink from Volta on, by NICs under the GPU's own switch."""
    number, ranks = next(iter(members.items()))
    node = cluster.node(number)
    if not inside or cluster.gpu(ranks[0]).scaleup == "nvlink1":
        return False
    if len(members) == 1:
        return True
    own = [(f"gpu{cluster.local_rank(rank)}", f"nic{cluster.nic_of(rank)}") for rank in ranks]
    return not node.transport.staged and all(node.meet(gpu, nic) is not None for gpu, nic in own)


def _plain_rates(cluster: Any, members: dict[int, list[int]]) -> tuple[float, float]:
    ranks = [rank for node in members.values() for rank in node]
    route = cluster.route(ranks[0], ranks[-1])
    rate = min([route.cap_bytes_per_s, *(cluster.links[i].bandwidth_bytes_per_s for i in route.links)]) / 1e9
    return rate, rate


def _inside(cluster: Any, spec: Any, nodes: list[list[int]]) -> tuple[float, str]:
    """Return the rate at which a GPU sends to its neighbours within the node, and by what."""
    scaleup = spec.scaleup
    ranks = max(nodes, key=len)
    if scaleup.link is not None and scaleup.kind in ("switch", "mesh", "all"):
        a_link = LINK_BYTES_PER_S.get(scaleup.link.name, 0.8 * scaleup.link.bandwidth_bytes_per_s)
        if scaleup.kind == "switch":
            return a_link * scaleup.links, "nvlink"
        rings = cluster.rings(ranks)
        order = rings[0] + rings[0][:1]
        local = [cluster.local_rank(rank) for rank in order]
        node = cluster.node(cluster.node_of(ranks[0]))
        if all(node.has_nvlink(a, b) for a, b in zip(local, local[1:], strict=False)):
            return a_link * 2 * len(rings), "nvlink"
    name = spec.pcie.link.name
    return PCIE_BYTES_PER_S.get(name, 0.76 * spec.pcie.link.rate(16)), "pcie"


def generation_of(gpu: Any) -> Generation:
    """Return the generation that a GPU counts as in NCCL's tables; older ones count as Volta."""
    by_link = {"nvlink1": "volta", "nvlink2": "volta", "nvlink3": "ampere", "nvlink4": "hopper", "nvlink5": "blackwell"}
    if gpu.scaleup in by_link:
        return GENERATIONS[by_link[gpu.scaleup]]
    return GENERATIONS["volta" if gpu.pcie in ("pcie1", "pcie2", "pcie3") else "ampere"]
