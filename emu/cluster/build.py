"""Build a cluster from its description: number all links and ports, apply what is degraded for good."""

import fnmatch
from collections.abc import Sequence
from dataclasses import replace

from emu.catalog.schema import nearest
from emu.cluster.cluster import Cluster
from emu.cluster.fabric import Fabric, Port, build_fabric
from emu.cluster.faults import Faults
from emu.cluster.layout import lay_out
from emu.cluster.node import Node
from emu.cluster.parts import Link, LinkChange, LinkFlap
from emu.cluster.spec import ClusterSpec, NodeSpec
from emu.errors import ConfigError


def build(spec: ClusterSpec) -> Cluster:
    """Return the cluster that a description describes; the same description gives the same numbers."""
    layouts = {id(node): lay_out(node, spec.transport, spec.fabric.switch) for node, _ in spec.groups}
    kinds = [layouts[id(node)] for node, count in spec.groups for _ in range(count)]
    links: list[Link] = []
    nodes: list[tuple[Node, int, int]] = []
    places: list[tuple[int, int]] = []
    ports: list[Port] = []
    for number, node in enumerate(kinds):
        nodes.append((node, len(links), len(ports)))
        links += [_rename(link, f"node{number}.") for link in node.links]
        places += [(number, gpu) for gpu in range(node.spec.gpus)]
        ports += [Port(len(ports) + nic, number, nic) for nic in range(node.spec.nic.count)]
    fabric = _fabric(spec, ports)
    first = len(links)
    links += fabric.links
    degraded, changes, flaps = _apply(links, spec.faults)
    return Cluster(
        spec.name, spec, tuple(degraded), changes, flaps, tuple(nodes), tuple(places), fabric, first
    )  # fmt: skip


def _rename(link: Link, prefix: str) -> Link:
    return Link(
        prefix + link.name, link.kind, link.bandwidth_bytes_per_s, link.latency_s,
        link.buffer_bytes, link.ecn_threshold_bytes,
    )  # fmt: skip


def _fabric(spec: ClusterSpec, ports: Sequence[Port]) -> Fabric:
    """Build the fabric at the rate of the fastest NIC; one node alone needs none."""
    rate = max((_nic_rate(node, spec) for node, _ in spec.groups), default=0.0)
    joined = ports if sum(count for _, count in spec.groups) > 1 else ()
    return build_fabric(spec.fabric, joined, rate, spec.transport.efficiency, f"cluster {spec.name} fabric")


def _nic_rate(node: NodeSpec, spec: ClusterSpec) -> float:
    link = node.nic.link
    return 0.0 if link is None else link.rate(link.lanes) * spec.transport.efficiency


def _apply(links: list[Link], faults: Faults) -> tuple[list[Link], tuple[LinkChange, ...], tuple[LinkFlap, ...]]:
    """Apply permanent degradations to the links; resolve the names of all other link faults to numbers."""
    changes: list[LinkChange] = []
    for fault in faults.degradations:
        for i in matching(links, fault.link, "degrade"):
            if fault.permanent:
                links[i] = replace(links[i], bandwidth_bytes_per_s=links[i].bandwidth_bytes_per_s * fault.factor)
            else:
                changes.append(LinkChange(fault.start_s, i, fault.factor))
                if fault.end_s != float("inf"):
                    changes.append(LinkChange(fault.end_s, i, 1.0))
    flaps = tuple(
        LinkFlap(i, flap.period_s, flap.down_s, flap.start_s)
        for flap in faults.flaps
        for i in matching(links, flap.link, "flap")
    )
    return links, tuple(sorted(changes, key=lambda change: (change.time_s, change.link))), flaps


def matching(links: Sequence[Link], pattern: str, where: str) -> list[int]:
    """Return the links whose names are, or begin with, the pattern part by part: "node0.nic0", "*.nic0.up"."""
    wanted = pattern.split(".")
    found = [i for i, link in enumerate(links) if _begins(link.name.split("."), wanted)]
    if not found:
        names = {link.name for link in links} | {link.name.rsplit(".", 1)[0] for link in links}
        close = nearest(pattern, sorted(names))
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"such as {links[0].name!r}"
        raise ConfigError(f"{where}: unknown link {pattern!r}; {hint}")
    return found


def _begins(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    return len(parts) >= len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
