"""The cluster: nodes, GPUs, links, transports, and the route between any two GPUs. A frozen value.

Ranks are GPUs in order, node by node. Routes are made when asked for and kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from emu.catalog.schema import unknown
from emu.cluster.fabric import Fabric, Port
from emu.cluster.faults import Faults
from emu.cluster.identity import describe, digest
from emu.cluster.node import Node, Way
from emu.cluster.parts import ClosedForm, GpuSpec, Link, LinkChange, LinkFlap, Route, Transport
from emu.cluster.rings import disjoint_rings, ring_through
from emu.cluster.routing import RouteTable, route_table
from emu.cluster.spec import ClusterSpec
from emu.errors import ConfigError


@dataclass(frozen=True, eq=False)
class Cluster:
    """A cluster ready for timing; make one by load_cluster or link_cluster."""

    name: str
    spec: ClusterSpec
    links: tuple[Link, ...]
    link_changes: tuple[LinkChange, ...]
    link_flaps: tuple[LinkFlap, ...]
    _nodes: tuple[tuple[Node, int, int], ...] = field(repr=False)  # node, its first link, its first port
    _places: tuple[tuple[int, int], ...] = field(repr=False)  # rank -> (node, GPU within it)
    fabric: Fabric = field(repr=False)
    first_fabric_link: int = field(repr=False)
    _routes: dict[tuple[int, int], Route] = field(default_factory=dict, repr=False)
    _host_routes: dict[tuple[int, str], Route] = field(default_factory=dict, repr=False)

    # What there is.

    @property
    def size(self) -> int:
        """Number of GPUs."""
        return len(self._places)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self._nodes)

    @property
    def faults(self) -> Faults:
        return self.spec.faults

    @cached_property
    def transports(self) -> Mapping[str, Transport]:
        """Return every transport that a route may name."""
        return {item.name: item for item in (*self.spec.inside, self.spec.transport)}

    def transport(self, name: str) -> Transport:
        """Return a transport of this cluster by name."""
        if name not in self.transports:
            raise ConfigError(f"cluster {self.name}: {unknown('transport', name, self.transports)}")
        return self.transports[name]

    def gpu(self, rank: int) -> GpuSpec:
        """Return the GPU of a rank."""
        return self.node(self.node_of(rank)).spec.gpu

    def speed(self, rank: int) -> float:
        """Return the speed of a rank's GPU: 1.0 unless it was declared slow."""
        return self.spec.faults.speed(rank)

    def node_of(self, rank: int) -> int:
        """Return the number of the node that a rank's GPU sits in."""
        return self._places[self._known(rank)][0]

    def local_rank(self, rank: int) -> int:
        """Return the number of a rank's GPU within its node."""
        return self._places[self._known(rank)][1]

    def ranks_of(self, node: int) -> tuple[int, ...]:
        """Return the ranks of a node, in order."""
        return self._ranks_by_node[node]

    def node(self, number: int) -> Node:
        """Return the layout of a node."""
        return self._nodes[number][0]

    def leaf_of(self, rank: int) -> int:
        """Return the first switch that a rank's NIC is plugged into."""
        return self.fabric.leaf_of(self._port(rank))

    def nic_of(self, rank: int) -> int | None:
        """Return the number, within its node, of the NIC that a rank uses; None where there is none."""
        node = self.node(self.node_of(rank))
        return node.gpu_nic[self.local_rank(rank)] if node.gpu_nic else None

    def fabric_summary(self) -> str:
        """Say in a line how the nodes are joined."""
        return self.fabric.summary()

    def check_ranks(self, ranks: int) -> None:
        """Raise ConfigError if there are fewer GPUs than ranks."""
        if ranks > self.size:
            raise ConfigError(too_many(self.name, ranks, self.size, self.spec.gpus_a_unit))

    # Routes.

    def route(self, src: int, dst: int) -> Route:
        """Return the route of a message from rank src to rank dst."""
        route = self._routes.get((src, dst))
        if route is None:
            route = self._routes[src, dst] = self._make_route(self._known(src), self._known(dst))
        return route

    def route_table(self, src: Sequence[int] | np.ndarray, dst: Sequence[int] | np.ndarray) -> RouteTable:
        """Return the routes from src[i] to dst[i] as arrays: for many pairs at once."""
        return route_table(self, src, dst)

    def host_route(self, rank: int, direction: str) -> Route:
        """Return the route of a copy between a rank's GPU and its host's memory; direction "h2d" or "d2h"."""
        route = self._host_routes.get((rank, direction))
        if route is None:
            if direction not in ("h2d", "d2h"):
                raise ConfigError(f"copy: direction must be h2d or d2h, got {direction!r}")
            node, first, _ = self._nodes[self.node_of(rank)]
            segment = node.host(self.local_rank(rank), direction)
            links = tuple(first + i for i in segment.links)
            route = self._host_routes[rank, direction] = Route(links, segment.latency_s, segment.transport)
        return route

    def closed_form(self, src: int, dst: int) -> ClosedForm:
        """Return alpha and B of a lone message from src to dst, without overheads."""
        route = self.route(src, dst)
        rates = [self.links[i].bandwidth_bytes_per_s for i in route.links]
        by_size = self.transport(route.transport).by_size if route.links else ()
        return ClosedForm(route.latency_s, min([*rates, route.cap_bytes_per_s]), by_size)

    def _make_route(self, src: int, dst: int) -> Route:
        (m, a), (n, b) = self._places[src], self._places[dst]
        node, first, port = self._nodes[m]
        if m == n:
            segment = node.peer(a, b)
            links = _shift(segment.links, first)
            return Route(links, segment.latency_s, segment.transport, segment.cap_bytes_per_s)
        other_first, other_port = self._nodes[n][1:]
        leave, arrive = self.ways(src, dst)
        path = self.fabric.path(Port(port + leave.nic, m, leave.nic), Port(other_port + arrive.nic, n, arrive.nic))
        transport = self.spec.transport
        latency_s = transport.latency_s + leave.latency_s + arrive.latency_s
        if path:
            latency_s += sum(self.fabric.links[i].latency_s for i in path)
        links = _shift(leave.links, first) + _shift(path, self.first_fabric_link) + _shift(arrive.links, other_first)
        return Route(links, latency_s, transport.name, transport.flow_bytes_per_s)

    def ways(self, src: int, dst: int) -> tuple[Way, Way]:
        """Return the way out of the sender's node and that into the receiver's, link numbers within each node."""
        (m, a), (n, b) = self._places[src], self._places[dst]
        nic, relay = self._leaving(src, dst)
        return self.node(m).leave(a, relay, nic), self.node(n).arrive(b)

    def _leaving(self, src: int, dst: int) -> tuple[int, int | None]:
        """Return the NIC that a message leaves by, and the GPU that it crosses NVSwitch to first, if any.

        It crosses where rails do not meet: to the GPU whose NIC is on the receiver's rail.
        """
        (m, a), (n, b) = self._places[src], self._places[dst]
        node, other = self.node(m), self.node(n)
        for end, number in ((node, m), (other, n)):
            if not end.gpu_nic:
                raise ConfigError(
                    f"cluster {self.name}: node {number} ({end.spec.name}) has no NIC, so ranks {src} and {dst} "
                    "cannot reach each other; give the node a [nic]"
                )
        nic, rail = node.gpu_nic[a], other.gpu_nic[b]
        if nic == rail or self.spec.fabric.cross_rail != "nvswitch" or self.spec.fabric.kind != "rail":
            return nic, None
        if rail not in node.gpu_nic or not node.has_nvlink(a, node.gpu_nic.index(rail)):
            raise ConfigError(
                f"cluster {self.name}: rails meet only across NVSwitch, and GPU {a} of {node.spec.name} has no "
                f'NVLink to a GPU of rail {rail}; use cross_rail = "spine"'
            )
        return rail, node.gpu_nic.index(rail)

    # Rings.

    def ring_order(self, ranks: Sequence[int]) -> tuple[int, ...]:
        """Return the ranks in the order of a ring over the best links that exist, node after node."""
        by_node: dict[int, list[int]] = {}
        for rank in ranks:
            by_node.setdefault(self.node_of(rank), []).append(rank)
        ordered: list[int] = []
        for number in sorted(by_node):
            ordered += self._ring_in_node(number, by_node[number])
        return tuple(ordered)

    def rings(self, ranks: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Return several rings that share no direct NVLink, each link's lines used once; at least one ring.

        A cube mesh has as many as its links allow (each also runs backwards over the other direction); elsewhere
        there is one order, since a switch joins all.
        """
        numbers = {self.node_of(rank) for rank in ranks}
        if len(numbers) == 1:
            node = self.node(numbers.pop())
            local = {self.local_rank(rank): rank for rank in ranks}
            lines = {(a, b): n for a, b, n in node.spec.scaleup.mesh if a in local and b in local}
            found = disjoint_rings(sorted(local), lines)
            if found:
                return tuple(tuple(local[gpu] for gpu in ring) for ring in found)
        return (self.ring_order(ranks),)

    def _ring_in_node(self, number: int, ranks: Sequence[int]) -> list[int]:
        node = self.node(number)
        local = {self.local_rank(rank): rank for rank in ranks}
        if node.spec.scaleup.kind == "switch" or node.spec.pcie.ideal:
            return [local[gpu] for gpu in sorted(local)]

        def rate(a: int, b: int) -> float:
            segment = node.peer(a, b)
            rates = [node.links[i].bandwidth_bytes_per_s for i in segment.links]
            slowest = min([*rates, segment.cap_bytes_per_s])
            # Of equally fast paths the one with the least latency, then with the fewest links.
            return slowest / (1 + 1e-3 * segment.latency_s * 1e6 + 1e-3 * len(segment.links))

        return [local[gpu] for gpu in ring_through(sorted(local), rate)]

    # Identity.

    def describe(self) -> dict[str, Any]:
        """Return everything that times depend on, as plain JSON values."""
        return describe(self.spec)

    @cached_property
    def sha256(self) -> str:
        """Return the hash of the description without the cluster's name: equal clusters, equal hash."""
        return digest(self.spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cluster) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_routes": {}, "_host_routes": {}}

    # Numbers.

    @cached_property
    def _ranks_by_node(self) -> tuple[tuple[int, ...], ...]:
        ranks: list[list[int]] = [[] for _ in self._nodes]
        for rank, (node, _) in enumerate(self._places):
            ranks[node].append(rank)
        return tuple(tuple(group) for group in ranks)

    @cached_property
    def places(self) -> np.ndarray:
        """Return (node, kind of node, GPU within it) of each rank: an array (ranks, 3)."""
        kinds = {id(node): i for i, (node, _, _) in reversed(list(enumerate(self._nodes)))}
        order = {key: number for number, key in enumerate(kinds)}
        kind = [order[id(node)] for node, _, _ in self._nodes]
        return np.array([(node, kind[node], gpu) for node, gpu in self._places], np.int64)

    @cached_property
    def hop_latencies_s(self) -> np.ndarray:
        """Return the latency of each link between switches, and 0 at the end for "none"."""
        return np.array([link.latency_s for link in self.fabric.links] + [0.0])

    @cached_property
    def first_links(self) -> np.ndarray:
        """Return the number of each node's first link."""
        return np.array([first for _, first, _ in self._nodes], np.int64)

    @cached_property
    def first_ports(self) -> np.ndarray:
        """Return the number of each node's first NIC, over all nodes."""
        return np.array([port for _, _, port in self._nodes], np.int64)

    def _port_of(self, node: int, nic: int) -> Port:
        return Port(self._nodes[node][2] + nic, node, nic)

    def _port(self, rank: int) -> Port:
        nic = self.nic_of(rank)
        return self._port_of(self.node_of(rank), nic if nic is not None else 0)

    def _known(self, rank: int) -> int:
        if not 0 <= rank < len(self._places):
            raise ConfigError(f"cluster {self.name}: has ranks 0 to {self.size - 1}, got {rank}")
        return rank


def _shift(links: tuple[int, ...], first: int) -> tuple[int, ...]:
    return tuple([first + i for i in links])


def too_many(name: str, ranks: int, size: int, a_unit: int) -> str:
    """Write the error of more ranks than GPUs, with what to ask for instead; a unit of 0 cannot be added."""
    more = f", or {name.rsplit(':', 1)[0]}:{-(-ranks // a_unit)}" if a_unit and "=" not in name else ""
    return f"cluster {name}: has {size} GPUs, got {ranks} ranks; use at most {size} ranks{more}"
