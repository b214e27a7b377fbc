"""A cluster as it is described: frozen, in SI units, every name of the catalogue resolved.

What follows from it (links, routes) is built elsewhere; its hash stands for the whole cluster.
"""

import math
from dataclasses import dataclass, field

from emu.cluster.faults import Faults
from emu.cluster.parts import GpuSpec, Transport


@dataclass(frozen=True)
class LinkSpec:
    """A kind of link: rate of `lanes` lanes, a direction, before efficiency."""

    name: str
    medium: str
    bandwidth_bytes_per_s: float
    lanes: int = 1
    efficiency: float = 1.0
    latency_s: float = 0.0

    def rate(self, lanes: int) -> float:
        """Payload rate of so many lanes, in bytes/s."""
        return self.bandwidth_bytes_per_s * self.efficiency * (lanes / self.lanes)


@dataclass(frozen=True)
class CpuSpec:
    """One socket."""

    name: str
    cores: int
    lanes: int
    memory_bytes_per_s: float
    interconnect_bytes_per_s: float
    interconnect_peer_bytes_per_s: float
    interconnect_latency_s: float
    root_overhead: float = 1.0


@dataclass(frozen=True)
class SwitchSpec:
    """A switch: what one of its hops costs and what one of its ports holds."""

    name: str
    latency_s: float = 0.0
    buffer_bytes: float = math.inf
    ecn_threshold_bytes: float = math.inf
    ports: int | None = None


@dataclass(frozen=True)
class PcieSwitchSpec:
    """A PCIe switch: what it hangs under ("cpu0" or another switch), what hangs under it, its uplink's lanes."""

    name: str
    under: str
    gpus: tuple[int, ...] = ()
    nics: tuple[int, ...] = ()
    lanes: int = 16


@dataclass(frozen=True)
class PcieSpec:
    """The PCIe side of a node. `ideal` gives every device a full slot of one switch that never blocks."""

    link: LinkSpec
    switch_latency_s: float = 0.0
    switches: tuple[PcieSwitchSpec, ...] = ()
    gpu_sockets: tuple[int, ...] | None = None
    nic_sockets: tuple[int, ...] | None = None
    gpu_lanes: int = 16
    other_lanes: tuple[int, ...] = ()
    peer: str = "all"
    both_directions_bytes_per_s: float | None = None
    staging_latency_s: float = 0.0
    ideal: bool = False


@dataclass(frozen=True)
class ScaleupSpec:
    """The GPU fabric of a node: none, an NVSwitch, or direct links of so many lines a pair."""

    kind: str = "none"
    link: LinkSpec | None = None
    links: int = 1
    mesh: tuple[tuple[int, int, int], ...] = ()
    switches: int | None = None
    reduces: bool = False


@dataclass(frozen=True)
class NicSpec:
    """The NICs of a node. `lanes` is the width each wants of PCIe; `gpu_nics` names each GPU's NIC."""

    link: LinkSpec | None = None
    count: int = 0
    lanes: int = 16
    both_directions: bool = False
    gpu_nics: tuple[int, ...] | None = None


@dataclass(frozen=True)
class NodeSpec:
    """One machine. `lanes`, where given, replaces what a socket gives to slots."""

    name: str
    gpu: GpuSpec
    gpus: int
    cpu: CpuSpec
    sockets: int
    lanes: int
    pcie: PcieSpec
    gpu_pcie: LinkSpec
    scaleup: ScaleupSpec = field(default_factory=ScaleupSpec)
    nic: NicSpec = field(default_factory=NicSpec)
    memory_bytes: int | None = None


@dataclass(frozen=True)
class FabricSpec:
    """How NICs are joined; `oversubscription` is what was asked for, `down` and `up` what a leaf has."""

    kind: str = "switch"
    switch: SwitchSpec = field(default_factory=lambda: SwitchSpec("ideal"))
    ports: int | None = None  # a limit that the fabric itself names; one switch has as many as needed otherwise
    down: int | None = None
    up: int | None = None
    spines: int | None = None
    k: int | None = None
    oversubscription: float = 1.0
    routing: str = "ecmp"
    seed: int = 0
    uplink_bytes_per_s: float | None = None
    cross_rail: str = "spine"
    hop_latency_s: float | None = None


@dataclass(frozen=True)
class ClusterSpec:
    """Everything that times depend on."""

    name: str
    groups: tuple[tuple[NodeSpec, int], ...]
    transport: Transport
    inside: tuple[Transport, ...]
    fabric: FabricSpec
    faults: Faults
    gpus_a_unit: int = 1  # how many GPUs one more of `NAME:N` adds
