"""What NCCL's model is told of a cluster: which channels its search finds, and what they carry.

Source: NVIDIA/nccl, src/graph/search.cc, topo.h and topo.cc (2026-06).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from emu.engine.nccl import ALGORITHMS, GENERATIONS, PROTOCOLS, Generation, Graph

LINK_BYTES_PER_S = {  # of one NVLink, as the search of rings takes it
    "nvlink1": 18e9, "nvlink2": 20e9, "nvlink3": 20e9, "nvlink4": 20.6e9, "nvlink5": 40.1e9, "nvlink3-bridge": 12e9,
}  # fmt: skip
KERNEL_BYTES_PER_S = {**LINK_BYTES_PER_S, "nvlink2": 21.7e9}  # what NCCL's kernels move; MSCCL's fit of NVLink 2
PCIE_BYTES_PER_S = {"pcie1": 3e9, "pcie2": 6e9, "pcie3": 12e9, "pcie4": 24e9, "pcie5": 48e9, "pcie6": 96e9}  # x16
NET_FRACTION = 0.96  # 12 GB/s of a line of 100 Gb/s
MOST_CHANNELS = 16  # that the search looks for


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
    nic_rate, nics = 0.0, 1
    if len(members) > 1:
        nics = len({cluster.nic_of(rank) for rank in next(iter(members.values()))})
        line = spec.nic.link.rate(spec.nic.link.lanes)
        nic_rate = line / 1e9
    channels, speed = search(generation, total / 1e9, nic_rate, nics)
    transport = cluster.spec.transport
    efficiency = NET_FRACTION * min(1.0, transport.efficiency)
    return Graph(
        len(members), local, generation, channels, total / channels / 1e9,
        between_gb_per_s=min(speed, efficiency * nics * nic_rate / channels) if nic_rate else 0.0,
        inside=inside,
        cpu="amd" if spec.cpu.name.startswith("epyc") else "intel",
        reduces=spec.scaleup.reduces and generation.nvls_channels > 0,
        ll128=_keeps_order(cluster, members, local == 1 or inside == "nvlink"),
        nics=nics,
        alike=spec.scaleup.kind != "mesh",
        tree_gb_per_s=_tree_speed(generation, spec.scaleup, speed, channels, total / 1e9, local) if nic_rate else 0.0,
        tree_share=generation.tree_share if len(members) > 1 else 1.0,
        algorithms=transport.nccl_algorithms or ALGORITHMS,
        protocols=transport.nccl_protocols or PROTOCOLS,
        buffer_bytes=transport.nccl_buffer_bytes,
    )  # fmt: skip


def search(generation: Generation, inside: float, nic: float, nics: int) -> tuple[int, float]:
    """Return how many channels the search finds and the speed of each, in GB/s, as `inside` and a NIC's rate are.

    It goes down the list of speeds and keeps what carries most, the first of equals: as many channels as
    the GPU's links and the NICs carry at that speed. Few fast ones are halved in speed and doubled in number.
    `nic` is 0 on one node.

    >>> search(GENERATIONS["ampere"], 240, 0, 1), search(GENERATIONS["ampere"], 240, 25, 8)
    ((12, 20.0), (8, 24))
    """
    most, found = 0, 0.0
    for speed in generation.speeds[1 if nic else 0]:
        if most and (most * found >= inside or speed / found <= 0.49):
            break
        channels = min(int(inside / speed), MOST_CHANNELS)
        if nic:
            channels = min(channels, nics * int(nic / speed))
        if channels * speed > most * found:
            most, found = channels, speed
    if not most:
        return 1, min(inside, nic) if nic else inside
    late = generation.nvls_channels > 0  # from Hopper on
    if found >= 25 and not (late and found < 50 and most > 4):
        doubled = min(2 * most, MOST_CHANNELS)
        most, found = doubled, found * most / doubled
    return most, found


def _tree_speed(
    generation: Generation, scaleup: Any, speed: float, channels: int, inside: float, local: int
) -> float:
    """Return what a tree's channel has inside a node: the search raises it while links carry as many channels.

    In a mesh each of a chain's hops takes a link in both directions; up to twice what a NIC brings is of use.
    """
    a_link = link_gb_per_s(scaleup.link) if scaleup.kind == "mesh" else 0.0
    found = speed
    for faster in sorted(each for each in generation.speeds[1] if each > speed):
        hops = sum(int(lines * a_link / faster) for _, _, lines in scaleup.mesh)
        fits = hops >= channels * (local - 1) if a_link else channels * faster <= inside
        if not fits or found >= 2 * speed:
            break
        found = faster
    return found


def link_gb_per_s(link: Any) -> float:
    """Return what NCCL's search takes of one NVLink."""
    return LINK_BYTES_PER_S.get(link.name, 0.8 * link.bandwidth_bytes_per_s) / 1e9


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
        a_link = link_gb_per_s(scaleup.link) * 1e9
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
