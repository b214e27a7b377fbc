"""What an algorithm's formula needs to know of a cluster: latency and bandwidth, in a node and between nodes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

SUM_PASSES = 3  # a sum reads two operands and writes one


@dataclass(frozen=True)
class Level:
    """Latency and bandwidth of a message, alone and while every rank of a node sends."""

    alpha_s: float
    alone_bytes_per_s: float
    shared_bytes_per_s: float


@dataclass(frozen=True)
class Network:
    """The ranks of a group as they lie on a cluster."""

    node_sizes: tuple[int, ...]
    inside: Level
    between: Level
    gamma_s_per_byte: float = 0.0
    overhead_s: float = 1e-6  # of a rank, for each message that it sends and receives
    reduces: bool = False  # a switch between all ranks adds

    @property
    def levels(self) -> int:
        """2 if several nodes hold several ranks each, else 1."""
        return 2 if len(self.node_sizes) > 1 and min(self.node_sizes) > 1 else 1


_UNKNOWN = Level(5e-6, 12e9, 12e9)


def network_of(cluster: Any, group: Sequence[int]) -> Network:
    """Describe how the world ranks `group` lie on `cluster`; without a cluster, as if on one switch."""
    if cluster is None or len(group) < 2:
        return Network((len(group),), _UNKNOWN, _UNKNOWN)
    return _network(cluster.sha256, tuple(group), _Held(cluster))


class _Held:
    """A cluster as an argument that does not count in the cache's key: the hash beside it does."""

    def __init__(self, cluster: Any):
        self.cluster = cluster

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=64)
def _network(sha256: str, group: tuple[int, ...], held: _Held) -> Network:
    cluster = held.cluster
    nodes: dict[int, list[int]] = {}
    for rank in group:
        nodes.setdefault(cluster.node_of(rank), []).append(rank)
    members = list(nodes.values())
    largest = max(members, key=len)
    inside = between = None
    if len(largest) > 1:
        inside = _level(cluster, [(a, b) for a, b in zip(largest, largest[1:] + largest[:1], strict=True)])
    if len(members) > 1:
        lanes = min(len(members[0]), len(members[1]))
        between = _level(cluster, [(members[0][i], members[1][i]) for i in range(lanes)])
    gamma = SUM_PASSES / cluster.gpu(group[0]).memory_bytes_per_s
    either = between or inside or _UNKNOWN
    transport = cluster.transport(cluster.route(group[0], group[-1]).transport)
    overhead_s = transport.send_overhead_s + transport.receive_overhead_s
    sizes = tuple(len(node) for node in members)
    return Network(sizes, inside or either, either, gamma, overhead_s, reduces_in_switch(cluster, group))


def reduces_in_switch(cluster: Any, group: Sequence[int]) -> bool:
    """Tell whether all these world ranks hang on one switch that adds."""
    return len({cluster.node_of(rank) for rank in group}) == 1 and reduces_in_switches(cluster, group)


def reduces_in_switches(cluster: Any, group: Sequence[int]) -> bool:
    """Tell whether each of these world ranks hangs on its node's switch, which adds."""
    return all(_reduces(cluster, node) for node in {cluster.node_of(rank) for rank in group})


def _reduces(cluster: Any, place: int) -> bool:
    for spec, count in cluster.spec.groups:
        if place < count:
            return bool(spec.scaleup.reduces)
        place -= count
    return False


def _level(cluster: Any, pairs: Sequence[tuple[int, int]]) -> Level:
    routes = [cluster.route(a, b) for a, b in pairs]
    used = Counter(link for route in routes for link in route.links)
    alone = min(_rate(cluster, route, Counter()) for route in routes)
    shared = min(_rate(cluster, route, used) for route in routes)
    return Level(max(route.latency_s for route in routes), alone, shared)


def _rate(cluster: Any, route: Any, used: Counter[int]) -> float:
    links = [cluster.links[i].bandwidth_bytes_per_s / max(1, used[i]) for i in route.links]
    return min([route.cap_bytes_per_s, *links])
