"""NCCL's own model of what a collective costs, and the choice of algorithm and protocol that it makes by it.

time = latency + bytes / bandwidth, for each algorithm (ring, tree, nvls, nvls_tree) and protocol (LL, LL128, Simple);
the least wins. The constants are NCCL's published ones, in microseconds and GB/s as there, protocols in that order.
Which numbers describe a cluster is the business of `nccl_graph`.

Source: NVIDIA/nccl, src/graph/tuning.cc and topo.h (2026-06).
"""

from dataclasses import dataclass

PROTOCOLS = ("LL", "LL128", "Simple")
ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")

Three = tuple[float, float, float]

BASE_US = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
STEP_US = {
    ("nvlink", "ring"): (0.6, 1.9, 3.4), ("nvlink", "tree"): (0.6, 1.25, 4.0),
    ("pcie", "ring"): (1.0, 2.5, 5.7), ("pcie", "tree"): (1.0, 1.9, 4.0),
    ("net", "ring"): (2.7, 4.0, 14.0), ("net", "tree"): (5.0, 8.5, 14.0),
}  # fmt: skip
NVLS_US, NVLS_TREE_NET_US = 25.0, 20.9
NET_OVERHEAD_US = {"intel": 1.0, "amd": 2.0}
LL128_FRACTION, LL_FRACTION, TREE_FRACTION = 0.92, 0.5, 0.92
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

    `speeds` are what its search of channels tries, within a node and between nodes. `nvls_channels` is how many it
    opens beside one NVSwitch, from memory of its logs. `tree_share` is what a tree is worth whose head has both
    the parent and the children on its NIC.
    """

    speeds: tuple[tuple[float, ...], tuple[float, ...]]
    ll_max: Three
    tree_channel: Three
    tree_channel_ll128: Three
    ring_channel_ll128: float
    nvls_fraction: float = 0.0
    nvls_channels: int = 0
    nvls_tree_channel: Three = (0.0, 0.0, 0.0)
    tree_share: float = 1.0
    late_factor: float = 1.4  # of a large multi-node ring's latency


_SLOW = (2.4, 1.2, 0.24, 0.12)
_SPEEDS = (
    (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, *_SLOW),
)
_SPEEDS_HOPPER = (
    (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, *_SLOW),
)
_SPEEDS_BLACKWELL = (
    (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18, 12, 6, 3),
    (96, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, *_SLOW),
)

GENERATIONS = {
    "volta": Generation(
        _SPEEDS, (39.0, 39.0, 20.4), (26.5, 18.5, 10.0), (20.0, 20.0, 20.0), 20.0, late_factor=1.9
    ),
    "ampere": Generation(_SPEEDS, (87.7, 22.5, 19.0), (24.0, 23.6, 17.8), (20.0, 20.0, 20.0), 20.0),
    "hopper": Generation(
        _SPEEDS_HOPPER, (141.0, 45.0, 35.0), (38.7, 41.4, 36.0), (36.7, 36.7, 29.0), 36.7, 0.85, 16,
        (0.0, 57.7, 45.5), 0.85,
    ),
    "blackwell": Generation(
        _SPEEDS_BLACKWELL, (282.0, 90.0, 70.0), (70.0, 42.8, 24.0), (55.6, 31.67, 20.0), 40.0, 0.74, 32,
        (0.0, 96.0, 80.0), 0.85,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Graph:
    """The machine as NCCL's model sees it: what its search found. Bandwidths are a channel's, in GB/s.

    `algorithms` and `protocols` are those that it may use.
    """

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
    alike: bool = True  # every channel passes the GPUs in the same order
    tree_share: float = 1.0
    tree_gb_per_s: float = 0.0  # that a tree's channel has inside each of two nodes
    algorithms: tuple[str, ...] = ALGORITHMS
    protocols: tuple[str, ...] = PROTOCOLS
    buffer_bytes: int = 4 << 20  # of a channel

    @property
    def ranks(self) -> int:
        return self.nodes * self.local

    @property
    def kernels(self) -> int:
        """Channels that run: two for each that the search finds."""
        return min(64, 2 * self.channels)

    @property
    def _row(self) -> int:
        return min(self.nodes, 3) - 1

    @property
    def heads(self) -> int:
        """GPUs of a node that head trees between nodes: one a NIC."""
        return min(self.nics, self.local)

    @property
    def nvls_tree_gb_per_s(self) -> float:
        """What goes through the switch's sums and the trees between nodes, in bytes of the result."""
        heads, generation = self.heads, self.generation
        inside = 2 * self.channels * self.inside_gb_per_s / heads * generation.nvls_fraction * (heads - 1) / heads
        between = self.channels * self.between_gb_per_s / heads * (2 if self.nodes == 2 else 1)
        bus = heads * min(inside, between, generation.nvls_tree_channel[self._row])
        return bus * self.ranks / (2 * (self.ranks - 1))

    def ll_max(self) -> float:
        """GB/s that LL reaches at most; between nodes the host's CPU bounds it."""
        if self.nodes == 1:
            return self.generation.ll_max[0]
        return GENERATIONS["volta" if self.cpu == "intel" else "ampere"].ll_max[self._row]

    def bus(self, algorithm: str) -> float:
        """GB/s of all channels on their narrowest stretch.

        A ring crosses each node's NICs once with all it carries; the two trees of two nodes with half of it, for
        an inner node of one is a leaf of the other, so NCCL counts what they have inside the nodes.
        """
        if self.nodes == 1:
            return self.channels * self.inside_gb_per_s
        if algorithm == "tree" and self.nodes == 2 and self.tree_gb_per_s:
            return self.channels * self.tree_gb_per_s
        return self.channels * min(self.inside_gb_per_s, self.between_gb_per_s)


def steps(collective: str, p: int) -> int:
    """Return how many times a chunk changes hands round a ring of p ranks."""
    return {"all_reduce": 2 * (p - 1), "broadcast": p, "reduce": p}.get(collective, p - 1)


def predicted_us(graph: Graph, collective: str, algorithm: str, protocol: str, nbytes: int) -> float:
    """Return NCCL's own estimate of a collective's time; infinite for what it can't do."""
    if algorithm.startswith("nvls"):
        estimate = _nvls_us if algorithm == "nvls" else _nvls_tree_us
        able = graph.reduces and protocol == "Simple" and collective == "all_reduce"
        return estimate(graph, nbytes) if able else float("inf")
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
        if nbytes / (graph.kernels * graph.ranks) >= 64:
            latency *= graph.generation.late_factor
    return latency + nbytes / (1000 * rate)


def choice(graph: Graph, collective: str, nbytes: int) -> tuple[str, str, float]:
    """Return the algorithm and the protocol that NCCL's model calls fastest, and its estimate in microseconds."""
    ways = [(a, p) for a in graph.algorithms for p in graph.protocols]
    times = [(predicted_us(graph, collective, a, p, nbytes), a, p) for a, p in ways]
    time_us, algorithm, protocol = min(times, key=lambda each: each[0])
    return algorithm, protocol, time_us


def _ring_us(graph: Graph, collective: str, k: int) -> float:
    inside = STEP_US[graph.inside, "ring"][k]
    between = STEP_US["net", "tree" if graph.local == 1 else "ring"][k]
    if collective in ("broadcast", "reduce"):
        return BASE_US["ring"][k] + _chain_us(graph, k)
    if graph.nodes > 1:
        inside = max(inside, NET_OVERHEAD_US[graph.cpu] * (3 if k == 2 else 1))
    crossings = 0 if graph.nodes == 1 else (2 if collective == "all_reduce" else 1) * (graph.nodes - 1)
    return BASE_US["ring"][k] + (steps(collective, graph.ranks) - crossings) * inside + crossings * between


def _chain_us(graph: Graph, k: int) -> float:
    """Return the latency of a chain along a ring: a step's where all channels are alike, else that of all steps."""
    way = graph.inside if graph.nodes == 1 else "net"
    if graph.alike:
        return STEP_US[way, "ring"][k]
    return graph.ranks * STEP_US[way, "tree" if k == 2 else "ring"][k]


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
    bus *= graph.tree_share
    power = (nbytes >> 6).bit_length() - 1
    return bus * 0.5 * (TREE_CORRECTION[k][power] if 0 <= power < 24 else 1.0)


def _nvls_us(graph: Graph, nbytes: int) -> float:
    """Each GPU sends n + 1 parts of n, in place of a ring's 2(n - 1): the switch adds and copies."""
    if graph.nodes > 1 or graph.ranks < 3:
        return float("inf")
    channels = graph.generation.nvls_channels
    bus = graph.channels * graph.inside_gb_per_s * graph.generation.nvls_fraction * (channels - 1) / channels
    return NVLS_US + (1 + 1 / graph.ranks) * nbytes / (1000 * bus)


def _nvls_tree_us(graph: Graph, nbytes: int) -> float:
    if graph.nodes < 2 or graph.local < 2 or graph.heads < 2:
        return float("inf")
    latency = NVLS_US + 2 * (graph.nodes.bit_length() - 1) * NVLS_TREE_NET_US
    return latency + nbytes / (1000 * graph.nvls_tree_gb_per_s)
