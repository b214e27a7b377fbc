"""Fabrics: the switches between nodes, and the links that a message crosses from NIC to NIC.

The two NIC ports themselves belong to the nodes; one switch that never blocks adds nothing to them. Each link
beyond adds its switch's latency.

    leaf-spine            leaf i ─ up u ─▶ spine u ─▶ leaf j
    rail                  the same, where NIC i of a group of nodes sits on leaf i of the group
    fat-tree              edge ─▶ aggregation ─▶ core ─▶ aggregation ─▶ edge
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from emu.cluster.parts import Link
from emu.cluster.spec import FabricSpec
from emu.errors import ConfigError

_MASK = (1 << 64) - 1


class Port(NamedTuple):
    """A NIC of the cluster: its number over all nodes, its node, and which NIC of the node it is."""

    number: int
    node: int
    nic: int


class Fabric(Protocol):
    """Links between switches, and the path between two ports as numbers of these links."""

    @property
    def links(self) -> Sequence[Link]: ...

    def path(self, src: Port, dst: Port) -> tuple[int, ...]: ...

    def leaf_of(self, port: Port) -> int: ...

    def summary(self) -> str: ...


def choose(src: int, dst: int, seed: int, tier: int, ways: int) -> int:
    """Choose one of several equal paths, as a switch's hash of the flow does: fixed, but blind to load."""
    x = (src * 0x9E3779B97F4A7C15 + dst * 0xC2B2AE3D27D4EB4F + (seed * 8 + tier + 1) * 0x165667B19E3779F9) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return (x ^ (x >> 31)) % ways


@dataclass
class OneSwitch:
    """One switch that never blocks."""

    links: Sequence[Link] = ()

    def path(self, src: Port, dst: Port) -> tuple[int, ...]:
        return ()

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
    ups: list[tuple[int, ...]]
    downs: list[tuple[int, ...]]

    def leaf_of(self, port: Port) -> int:
        if self.rails:
            return port.node // self.down * self.rails + port.nic
        return port.number // self.down

    def path(self, src: Port, dst: Port) -> tuple[int, ...]:
        a, b = self.leaf_of(src), self.leaf_of(dst)
        if a == b:
            return ()
        if self.spec.routing == "spray":
            return self.ups[a][0], self.downs[b][0]
        u = choose(src.number, dst.number, self.spec.seed, 0, self.up)
        # The spine in turn hashes over its own links to the leaf, where it has several.
        parallel = choose(src.number, dst.number, self.spec.seed, 1, self.up // self.spines)
        return self.ups[a][u], self.downs[b][u % self.spines + self.spines * parallel]

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
    tier: dict[tuple[str, int, int], int]  # (which way, switch, uplink) -> link

    def leaf_of(self, port: Port) -> int:
        return port.number // self.half

    def path(self, src: Port, dst: Port) -> tuple[int, ...]:
        a, b = self.leaf_of(src), self.leaf_of(dst)
        if a == b:
            return ()
        pod_a, pod_b = a // self.half, b // self.half
        spray = self.spec.routing == "spray"
        agg = 0 if spray else choose(src.number, dst.number, self.spec.seed, 0, self.up)
        first, last = self.tier["edge-up", a, agg], self.tier["edge-down", b, agg]
        if pod_a == pod_b:
            return first, last
        core = 0 if spray else choose(src.number, dst.number, self.spec.seed, 1, self.half)
        slot = agg * self.half + core
        return first, self.tier["pod-up", pod_a, slot], self.tier["pod-down", pod_b, slot], last

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
    fabric = LeafSpine(
        spec, leaves, spec.up, spec.spines or spec.up, rails, spec.down, [], [], []
    )  # fmt: skip
    if leaves == 1:
        fabric.ups.append(())
        fabric.downs.append(())
        return fabric
    sprayed = spec.routing == "spray"
    for leaf in range(leaves):
        for way, table in (("up", fabric.ups), ("down", fabric.downs)):
            first = len(fabric.links)
            names = [f"fabric.leaf{leaf}.{way}"] if sprayed else [f"fabric.leaf{leaf}.{way}{u}" for u in range(spec.up)]
            speed = rate * spec.up if sprayed else rate
            fabric.links += [_link(spec, name, speed, hop_s) for name in names]
            table.append(tuple(range(first, len(fabric.links))))
    return fabric


def _fat_tree(spec: FabricSpec, ports: Sequence[Port], rate: float, hop_s: float, where: str) -> FatTree:
    assert spec.k is not None and spec.up is not None
    half, up = spec.k // 2, spec.up
    if len(ports) > spec.k**3 // 4:
        raise ConfigError(
            f"{where}: a fat tree of {spec.k}-port switches joins {spec.k**3 // 4} NICs, got {len(ports)}; raise k"
        )
    fabric = FatTree(spec, half, up, [], {})
    edges = (len(ports) - 1) // half + 1
    pods = (edges - 1) // half + 1
    sprayed = spec.routing == "spray"
    for way in ("up", "down"):
        for edge in range(edges):
            ways = 1 if sprayed else up
            for a in range(ways):
                fabric.tier[f"edge-{way}", edge, a] = len(fabric.links)
                name = f"fabric.edge{edge}.{way}{'' if sprayed else a}"
                fabric.links.append(_link(spec, name, rate * up / ways, hop_s))
        for pod in range(pods if pods > 1 else 0):
            slots = 1 if sprayed else up * half
            for slot in range(slots):
                fabric.tier[f"pod-{way}", pod, slot] = len(fabric.links)
                part = "" if sprayed else f"{slot // half}.core{slot % half}"
                name = f"fabric.pod{pod}.{way}{part}"
                fabric.links.append(_link(spec, name, rate * up * half / slots, hop_s))
    return fabric
