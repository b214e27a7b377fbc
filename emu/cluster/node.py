"""One node: its links, and the paths inside it from GPU to GPU, to a NIC and to host memory.

Built once for each kind of node; a cluster shifts the link numbers for each node of that kind.
"""

import math
from dataclasses import dataclass, field

from emu.cluster.parts import Link, Transport
from emu.cluster.spec import NodeSpec


@dataclass(frozen=True, slots=True)
class Segment:
    """A route within the node: link numbers within it, latency, and what bounds one message beside the links."""

    links: tuple[int, ...]
    latency_s: float = 0.0
    transport: str = "pcie"
    cap_bytes_per_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Way:
    """A segment between a GPU and the port of a NIC."""

    nic: int
    links: tuple[int, ...]
    latency_s: float


@dataclass(frozen=True)
class Edge:
    """A device's place in the PCIe tree: what it hangs under, and its link up and down."""

    under: str
    up: int
    down: int
    lanes: int


@dataclass
class Node:
    """The links of a node and the paths over them."""

    spec: NodeSpec
    transport: Transport
    links: list[Link] = field(default_factory=list)
    edges: dict[str, Edge] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    gpu_nic: tuple[int, ...] = ()
    _leaves: dict[tuple[int, int | None, int], Way] = field(default_factory=dict)
    _arrives: dict[int, Way] = field(default_factory=dict)

    def link(self, name: str) -> int:
        """Return the number of a link by its name within the node."""
        return self.numbers[name]

    def add(self, name: str, kind: str, rate: float, latency_s: float = 0.0, **port: float) -> int:
        """Add a directed link and return its number."""
        self.numbers[name] = len(self.links)
        self.links.append(Link(name, kind, rate, latency_s, **port))
        return self.numbers[name]

    # Paths.

    def peer(self, a: int, b: int) -> Segment:
        """Return the path from GPU a to GPU b of this node: NVLink where there is one, else PCIe."""
        if a == b:
            return Segment((), 0.0, "nvlink")
        direct = self._nvlink(a, b)
        if direct is not None:
            return self._segment(direct, "nvlink")
        u, v = f"gpu{a}", f"gpu{b}"
        if self.reaches(u, v):
            links, extra_s = self._tree(u, v, peer=True), 0.0
        else:
            links, extra_s = self._through_memory(u, v), self.spec.pcie.staging_latency_s
        return self._segment(links, "pcie", extra_s, self._root_cap(u, v, links))

    def has_nvlink(self, a: int, b: int) -> bool:
        """Whether two GPUs are joined by NVLink, directly or by a switch."""
        return self._nvlink(a, b) is not None

    def leave(self, gpu: int, relay: int | None, nic: int) -> Way:
        """Return the way from a GPU out of port `nic`, across NVLink to GPU `relay` first if one is given."""
        way = self._leaves.get((gpu, relay, nic))
        if way is None:
            hop = self.peer(gpu, relay) if relay is not None else Segment(())
            inside = self._to_device(f"gpu{gpu if relay is None else relay}", f"nic{nic}")
            links = (*hop.links, *inside, *self._wire(nic, "up"))
            way = self._leaves[gpu, relay, nic] = Way(nic, links, hop.latency_s + self._network_s(inside))
        return way

    def arrive(self, gpu: int) -> Way:
        """Return the way from the port of a GPU's NIC to the GPU."""
        way = self._arrives.get(gpu)
        if way is None:
            nic = self.gpu_nic[gpu]
            inside = self._to_device(f"nic{nic}", f"gpu{gpu}")
            way = self._arrives[gpu] = Way(nic, (*self._wire(nic, "down"), *inside), self._network_s(inside))
        return way

    def host(self, gpu: int, direction: str) -> Segment:
        """Return the path between a GPU and the memory of its own socket; direction "h2d" or "d2h"."""
        device = f"gpu{gpu}"
        up, down, cpu = self._root(device)
        root = self._root_limit(cpu)
        memory = (self.link(f"{cpu}.memory"),)
        links = (*memory, *root, *down) if direction == "h2d" else (*up, *root, *memory)
        return self._segment(links, "pcie")

    def socket(self, device: str) -> int:
        """Return the socket that a device ("gpu0", "nic1") hangs under."""
        return int(self._root(device)[2].removeprefix("cpu"))

    def switch(self, device: str) -> str:
        """Return what a device hangs under: a switch's name or a socket's."""
        return self.edges[device].under

    def lanes(self, device: str) -> int:
        """Return the width that a device's slot trained at."""
        return self.edges[device].lanes

    def reaches(self, u: str, v: str) -> bool:
        """Whether two devices read each other's memory over PCIe without staging."""
        if self.spec.pcie.ideal:
            return True
        same_socket = self.socket(u) == self.socket(v)
        allowed = {"all": True, "socket": same_socket, "switch": self.meet(u, v) is not None, "none": False}
        return allowed[self.spec.pcie.peer]

    def _nvlink(self, a: int, b: int) -> tuple[int, ...] | None:
        if self.spec.scaleup.kind == "switch":
            return self.link(f"nvlink.gpu{a}.up"), self.link(f"nvlink.gpu{b}.down")
        number = self.numbers.get(f"nvlink.gpu{a}.gpu{b}")
        return None if number is None else (number,)

    def _to_device(self, u: str, v: str) -> tuple[int, ...]:
        """Path between a GPU and a NIC: direct, or through host memory and, under TCP, the host's cores."""
        if self.spec.pcie.ideal:
            return ()
        if not self.transport.staged:
            return self._tree(u, v, peer=True)
        return self._through_memory(u, v)

    def _wire(self, nic: int, way: str) -> tuple[int, ...]:
        cores = (self.link("cores"),) if "cores" in self.numbers else ()
        both = (self.link(f"nic{nic}.both"),) if f"nic{nic}.both" in self.numbers else ()
        port = (self.link(f"nic{nic}.{way}"),)
        return (*cores, *both, *port) if way == "up" else (*port, *both, *cores)

    def _network_s(self, inside: tuple[int, ...]) -> float:
        """Latency beyond the transport's own, which holds the DMA across PCIe: other sockets and staging."""
        far_s = sum(self.links[i].latency_s for i in inside if self.links[i].kind == "interconnect")
        staged = self.transport.staged and self.transport.kind == "rdma"
        return far_s + (self.spec.pcie.staging_latency_s if staged else 0.0)

    def _segment(self, links: tuple[int, ...], transport: str, extra_s: float = 0.0, cap: float = math.inf) -> Segment:
        return Segment(links, sum(self.links[i].latency_s for i in links) + extra_s, transport, cap)

    def _root_cap(self, u: str, v: str, links: tuple[int, ...]) -> float:
        """What one message reaches through a socket's root ports: less than the slots would carry."""
        overhead = self.spec.cpu.root_overhead
        below = self.meet(u, v) is not None and self.reaches(u, v)
        if overhead == 1 or below or self.spec.pcie.ideal:
            return math.inf
        return min(self.links[i].bandwidth_bytes_per_s for i in links if self.links[i].kind == "pcie") / overhead

    # The PCIe tree.

    def _root(self, device: str) -> tuple[tuple[int, ...], tuple[int, ...], str]:
        """Return the links from a device up to its socket, those back down, and the socket."""
        up: list[int] = []
        down: list[int] = []
        while device in self.edges:
            edge = self.edges[device]
            up.append(edge.up)
            down.append(edge.down)
            device = edge.under
        return tuple(up), tuple(reversed(down)), device

    def meet(self, u: str, v: str) -> str | None:
        """Return the nearest switch above both devices, or None where only a socket is."""
        above = []
        while u in self.edges:
            u = self.edges[u].under
            above.append(u)
        while v in self.edges:
            v = self.edges[v].under
            if v in above and not v.startswith("cpu"):
                return v
        return None

    def _tree(self, u: str, v: str, *, peer: bool) -> tuple[int, ...]:
        meet = self.meet(u, v)
        if meet is not None:
            return (*self._below(u, meet)[0], *self._below(v, meet)[1])
        up, _, from_cpu = self._root(u)
        _, down, to_cpu = self._root(v)
        return (*up, *self._root_limit(from_cpu), *self._cross(from_cpu, to_cpu, peer), *down)

    def _below(self, device: str, switch: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        up: list[int] = []
        down: list[int] = []
        while device != switch:
            edge = self.edges[device]
            up.append(edge.up)
            down.append(edge.down)
            device = edge.under
        return tuple(up), tuple(reversed(down))

    def _cross(self, a: str, b: str, peer: bool) -> tuple[int, ...]:
        """Links from socket to socket; what GPUs reach through them is a limit of its own."""
        if a == b:
            return ()
        limit = self.numbers.get(f"{a}.peer")
        ways = (self.link(f"{a}.out"), self.link(f"{b}.in"))
        return (limit, *ways) if peer and limit is not None else ways

    def _through_memory(self, u: str, v: str) -> tuple[int, ...]:
        """Stage through the memory of the first device's socket."""
        up, _, from_cpu = self._root(u)
        _, down, to_cpu = self._root(v)
        memory = self.link(f"{from_cpu}.memory")
        ends = (*self._root_limit(from_cpu), memory, *self._cross(from_cpu, to_cpu, peer=False))
        return (*up, *ends, *down)

    def _root_limit(self, cpu: str) -> tuple[int, ...]:
        name = f"{cpu}.root"
        return (self.link(name),) if name in self.numbers else ()
