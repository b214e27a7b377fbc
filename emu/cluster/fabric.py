"""Fabrics: the switches between nodes, and the links that a message crosses from NIC to NIC.

The two NIC ports themselves belong to the nodes; one switch that never blocks adds nothing to them. Each link
beyond adds its switch's latency.

    leaf-spine            leaf i ─ up u ─▶ spine u ─▶ leaf j
    rail                  the same, where NIC i of a group of nodes sits on leaf i of the group
    fat-tree              edge ─▶ aggregation ─▶ core ─▶ aggregation ─▶ edge
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from emu.cluster.parts import Link
from emu.cluster.spec import FabricSpec
from emu.errors import ConfigError

_MASK = (1 << 64) - 1


class Port(NamedTuple):
    """A NIC of the cluster: its number over all nodes, its node, and which NIC of the node it is."""

    number: int
    node: int
    nic: int


class Ports(NamedTuple):
    """Many ports at once: arrays (pairs,) of int64."""

    number: np.ndarray
    node: np.ndarray
    nic: np.ndarray


class Fabric(Protocol):
    """Links between switches, and the path between two ports as numbers of these links.

    `paths` is `path` for many pairs at once: an array (pairs, hops) with -1 where a path is shorter.
    """

    @property
    def links(self) -> Sequence[Link]: ...

    def path(self, src: Port, dst: Port) -> tuple[int, ...]: ...

    def paths(self, src: Ports, dst: Ports) -> np.ndarray: ...

    def leaf_of(self, port: Port) -> int: ...

    def summary(self) -> str: ...


def choose(src: int, dst: int, seed: int, tier: int, ways: int) -> int:
    """Choose one of several equal paths, as a switch's hash of the flow does: fixed, but blind to load."""
    x = (src * 0x9E3779B97F4A7C15 + dst * 0xC2B2AE3D27D4EB4F + (seed * 8 + tier + 1) * 0x165667B19E3779F9) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return (x ^ (x >> 31)) % ways


def choose_many(src: np.ndarray, dst: np.ndarray, seed: int, tier: int, ways: int) -> np.ndarray:
    """Choose for many pairs at once, as `choose` does."""
    salt = np.uint64((seed * 8 + tier + 1) * 0x165667B19E3779F9 & _MASK)
    a, b = src.astype(np.uint64), dst.astype(np.uint64)
    x = a * np.uint64(0x9E3779B97F4A7C15) + b * np.uint64(0xC2B2AE3D27D4EB4F) + salt
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) % np.uint64(ways)).astype(np.int64)


@dataclass
class OneSwitch:
    """One switch that never blocks."""

    links: Sequence[Link] = ()

    def path(self, src: Port, dst: Port) -> tuple[int, ...]:
        return ()

    def paths(self, src: Ports, dst: Ports) -> np.ndarray:
        return np.empty((len(src.number), 0), np.int64)

    def leaf_of(self, port: Port) -> int:
        return 0

    def summary(self) -> str:
        return "one switch that never blocks"


@dataclass
class LeafSpine:
    """Two tiers. A leaf has `up` uplinks, uplink u to spine u mod `spines`; sprayed, they are one fat link."""

    spec: FabricSpec
    leaves: int
    up: int
    spines: int
    rails: int  # 0: ports fill leaf after leaf; else NIC i of each group of nodes on its leaf i
    down: int
    links: list[Link]
    ups: np.ndarray  # [leaf, uplink] -> link
    downs: np.ndarray

    def leaf_of(self, port: Any) -> Any:
        if self.rails:
            return port.node // self.down * self.rails + port.nic
        return port.number // self.down

    def paths(self, src: Ports, dst: Ports) -> np.ndarray:
        a, b = self.leaf_of(src), self.leaf_of(dst)
        if not self.links:
            return np.empty((len(a), 0), np.int64)
        u = v = np.zeros(len(a), np.int64)
        if self.spec.routing == "ecmp":
            u = choose_many(src.number, dst.number, self.spec.seed, 0, self.up)
            parallel = choose_many(src.number, dst.number, self.spec.seed, 1, self.up // self.spines)
            v = u % self.spines + self.spines * parallel
        found = np.stack([self.ups[a, u], self.downs[b, v]], axis=1)
        found[a == b] = -1
        return found

    def path(self, src: Port, dst: Port) -> tuple[int, ...]:
        a, b = self.leaf_of(src), self.leaf_of(dst)
        if a == b:
            return ()
        if self.spec.routing == "spray":
            return int(self.ups[a, 0]), int(self.downs[b, 0])
        u = choose(src.number, dst.number, self.spec.seed, 0, self.up)
        # The spine in turn hashes over its own links to the leaf, where it has several.
        parallel = choose(src.number, dst.number, self.spec.seed, 1, self.up // self.spines)
        return int(self.ups[a, u]), int(self.downs[b, u % self.spines + self.spines * parallel])

    def summary(self) -> str:
        shape = f"{self.leaves} leaves of {self.down} down, {self.up} up, {self.spines} spines"
        kind = "rail-optimised" if self.rails else "leaf-spine"
        return f"{kind}: {shape}, {self.down / self.up:g}:1, {self.spec.routing}"


@dataclass
class FatTree:
    """Three tiers of k-port switches; edge e of a pod reaches `up` of its aggregation switches, each k/2 cores."""

    spec: FabricSpec
    half: int
    up: int
    links: list[Link]
    tiers: dict[str, np.ndarray]  # "edge-up", …: [switch, uplink] -> link

    def leaf_of(self, port: Any) -> Any:
        return port.number // self.half

    def paths(self, src: Ports, dst: Ports) -> np.ndarray:
        a, b = self.leaf_of(src), self.leaf_of(dst)
        pod_a, pod_b = a // self.half, b // self.half
        agg = core = np.zeros(len(a), np.int64)
        if self.spec.routing == "ecmp":
            agg = choose_many(src.number, dst.number, self.spec.seed, 0, self.up)
            core = choose_many(src.number, dst.number, self.spec.seed, 1, self.half)
        slot = agg * self.half + core
        found = np.full((len(a), 4), -1, np.int64)
        far = pod_a != pod_b
        found[:, 0], found[:, 3] = self.tiers["edge-up"][a, agg], self.tiers["edge-down"][b, agg]
        found[far, 1] = self.tiers["pod-up"][pod_a[far], slot[far]]
        found[far, 2] = self.tiers["pod-down"][pod_b[far], slot[far]]
        found[a == b] = -1
        return found

    def path(self, src: Port, dst: Port) -> tuple[int, ...]:
        a, b = self.leaf_of(src), self.leaf_of(dst)
        if a == b:
            return ()
        pod_a, pod_b = a // self.half, b // self.half
        spray = self.spec.routing == "spray"
        agg = 0 if spray else choose(src.number, dst.number, self.spec.seed, 0, self.up)
        first, last = int(self.tiers["edge-up"][a, agg]), int(self.tiers["edge-down"][b, agg])
        if pod_a == pod_b:
            return first, last
        core = 0 if spray else choose(src.number, dst.number, self.spec.seed, 1, self.half)
        slot = agg * self.half + core
        up, down = self.tiers["pod-up"][pod_a, slot], self.tiers["pod-down"][pod_b, slot]
        return first, int(up), int(down), last

    def summary(self) -> str:
        ratio = f"{self.half / self.up:g}:1"
        return f"fat tree of {2 * self.half}-port switches, three tiers, {ratio}, {self.spec.routing}"


def build_fabric(spec: FabricSpec, ports: Sequence[Port], rate: float, efficiency: float, where: str) -> Fabric:
    """Build the switches that these ports need.

    `rate` is a NIC's payload rate and that of every link, unless the fabric names the wire rate of its uplinks;
    of that the transport leaves `efficiency`.
    """
    if spec.kind == "switch" or not ports:
        _check_one_switch(spec, len(ports), where)
        return OneSwitch()
    hop_s = spec.switch.latency_s if spec.hop_latency_s is None else spec.hop_latency_s
    speed = rate if spec.uplink_bytes_per_s is None else spec.uplink_bytes_per_s * efficiency
    if spec.kind == "fat-tree":
        return _fat_tree(spec, ports, speed, hop_s, where)
    return _leaf_spine(spec, ports, speed, hop_s)


def _check_one_switch(spec: FabricSpec, ports: int, where: str) -> None:
    if spec.ports is not None and ports > spec.ports:
        raise ConfigError(f"{where}: the switch has {spec.ports} ports, got {ports} NICs; use a leaf-spine")


def _link(spec: FabricSpec, name: str, rate: float, latency_s: float) -> Link:
    return Link(
        name, "fabric", rate, latency_s, spec.switch.buffer_bytes, spec.switch.ecn_threshold_bytes
    )  # fmt: skip


def _leaf_spine(spec: FabricSpec, ports: Sequence[Port], rate: float, hop_s: float) -> LeafSpine:
    assert spec.down is not None and spec.up is not None  # checked where the fabric is read
    rails = 1 + max(port.nic for port in ports) if spec.kind == "rail" else 0
    units = max(port.node for port in ports) // spec.down + 1 if rails else 0
    leaves = units * rails if rails else (len(ports) - 1) // spec.down + 1
    cables = 1 if spec.routing == "spray" else spec.up
    links: list[Link] = []
    tables = {way: np.zeros((leaves, cables), np.int64) for way in ("up", "down")}
    for leaf in range(leaves if leaves > 1 else 0):
        for way, table in tables.items():
            table[leaf] = len(links) + np.arange(cables)
            for u in range(cables):
                name = f"fabric.leaf{leaf}.{way}{u if cables > 1 or spec.routing == 'ecmp' else ''}"
                links.append(_link(spec, name, rate * spec.up / cables, hop_s))
    return LeafSpine(
        spec, leaves, spec.up, spec.spines or spec.up, rails, spec.down, links, tables["up"], tables["down"]
    )


def _fat_tree(spec: FabricSpec, ports: Sequence[Port], rate: float, hop_s: float, where: str) -> FatTree:
    assert spec.k is not None and spec.up is not None
    half, up = spec.k // 2, spec.up
    if len(ports) > spec.k**3 // 4:
        raise ConfigError(
            f"{where}: a fat tree of {spec.k}-port switches joins {spec.k**3 // 4} NICs, got {len(ports)}; raise k"
        )
    edges = (len(ports) - 1) // half + 1
    pods = (edges - 1) // half + 1
    links: list[Link] = []
    tiers: dict[str, np.ndarray] = {}
    shapes = {"edge": (edges, up), "pod": (pods if pods > 1 else 0, up * half)}
    for tier, (switches, ways) in shapes.items():
        cables = 1 if spec.routing == "spray" else ways
        for way in ("up", "down"):
            first = len(links)
            tiers[f"{tier}-{way}"] = first + np.arange(switches * cables).reshape(switches, cables)
            for switch in range(switches):
                for i in range(cables):
                    name = f"fabric.{tier}{switch}.{way}{_cable(tier, i, half) if cables > 1 else ''}"
                    links.append(_link(spec, name, rate * ways / cables, hop_s))
    return FatTree(spec, half, up, links, tiers)


def _cable(tier: str, i: int, half: int) -> str:
    """Name an uplink: of an edge by its aggregation switch, of a pod by that and the core."""
    return str(i) if tier == "edge" else f"{i // half}.core{i % half}"
