"""Resolve what the catalogue and a user's file say into a description: names looked up, defaults filled in."""

from collections.abc import Mapping
from typing import Any

from emu.catalog import Catalog, Entry
from emu.cluster.parts import DTYPE_OF, GpuSpec, Transport
from emu.cluster.spec import (
    CpuSpec,
    FabricSpec,
    LinkSpec,
    NicSpec,
    NodeSpec,
    PcieSpec,
    PcieSwitchSpec,
    ScaleupSpec,
    SwitchSpec,
)
from emu.cluster.tiers import read_fabric
from emu.errors import ConfigError


class Resolver:
    """Turns tables of the catalogue into specs; `overrides` are settings laid over each table."""

    def __init__(self, catalog: Catalog, overrides: Mapping[tuple[str, ...], Any]) -> None:
        self.catalog = catalog
        self.overrides = overrides

    def gpu(self, name: str, where: str) -> GpuSpec:
        entry = self.catalog.entry("gpus", name, where)
        entry.need("fp32", "memory", "memory_bandwidth")
        values = {**entry.values, **self._over("gpu")}
        return GpuSpec(
            entry.name,
            {dtype: values[key] for key, dtype in DTYPE_OF.items() if key in values},
            values["memory"],
            values["memory_bandwidth"],
            values.get("flops_efficiency", 1.0),
            values.get("memory_efficiency", 1.0),
            values.get("launch_overhead", 0.0),
            values.get("scaleup"),
            values.get("scaleup_links", 0),
            values.get("pcie", "pcie4"),
            values.get("pcie_lanes", 16),
            values.get("power"),
            values.get("memory_by_size", ()),
        )

    def cpu(self, name: str, where: str) -> CpuSpec:
        entry = self.catalog.entry("cpus", name, where)
        entry.need("cores", "lanes", "memory_bandwidth")
        values = {**entry.values, **self._over("cpu")}
        interconnect = values.get("interconnect", values["memory_bandwidth"])
        return CpuSpec(
            entry.name,
            values["cores"],
            values["lanes"],
            values["memory_bandwidth"],
            interconnect,
            values.get("interconnect_peer", interconnect),
            values.get("interconnect_latency", 0.0),
            values.get("root_overhead", 1.0),
        )

    def link(self, name: str, where: str) -> LinkSpec:
        entry = self.catalog.entry("links", name, where)
        entry.need("medium", "bandwidth")
        values = entry.values
        return LinkSpec(
            entry.name,
            values["medium"],
            values["bandwidth"],
            values.get("lanes", 1),
            values.get("efficiency", 1.0),
            values.get("latency", 0.0),
        )

    def switch(self, name: str, where: str) -> SwitchSpec:
        entry = self.catalog.entry("switches", name, where)
        values = {**entry.values, **self._over("switch")}
        return SwitchSpec(
            entry.name,
            values.get("latency", 0.0),
            values.get("buffer", float("inf")),
            values.get("ecn_threshold", float("inf")),
            values.get("ports"),
        )

    def transport(self, name: str, where: str, *, between_nodes: bool = False) -> Transport:
        entry = self.catalog.entry("transports", name, where)
        entry.need("kind")
        values = dict(entry.values)
        if between_nodes:
            for kind in ("tcp", "rdma"):
                if kind != values["kind"]:
                    self._refuse(kind, f"the transport between nodes is {entry.name} ({values['kind']})")
            values |= self._over("transport") | self._over(values["kind"])
        return _transport(entry, values)

    def node(self, name: str, gpus: int | None, where: str) -> NodeSpec:
        """Resolve a node; `gpus` is the number asked for where the node has "any"."""
        entry = self.catalog.entry("nodes", name, where)
        entry.need("gpu", "gpus", "cpu", "pcie")
        values = {**entry.values, **self._over("node")}
        for part in ("pcie", "scaleup", "nic"):
            values[part] = {**values.get(part, {}), **self._over(part)}
        cpu = self.cpu(values["cpu"], f"{entry.where} cpu")
        gpu = self.gpu(values["gpu"], f"{entry.where} gpu")
        count = values["gpus"] if values["gpus"] != "any" else gpus or 1
        return NodeSpec(
            entry.name,
            gpu,
            count,
            cpu,
            values.get("sockets", 1),
            values.get("lanes", cpu.lanes),
            self._pcie(values["pcie"], f"{entry.where} pcie"),
            self.link(gpu.pcie, f"{entry.where} gpu pcie"),
            self._scaleup(values["scaleup"], count, f"{entry.where} scaleup"),
            self._nic(values["nic"], f"{entry.where} nic"),
            values.get("memory"),
        )

    def fabric(self, table: str | Mapping[str, Any], where: str) -> FabricSpec:
        """Resolve a fabric by name, or a table of its own (on a `base` of the catalogue, if it names one)."""
        if isinstance(table, str):
            values: dict[str, Any] = dict(self.catalog.entry("fabrics", table, where).values)
        else:
            base = table.get("base")
            values = dict(self.catalog.entry("fabrics", base, f"{where} base").values) if base else {}
            values |= {key: value for key, value in table.items() if key != "base"}
        values |= self._over("fabric")
        return read_fabric(values, self.switch(values.get("switch", "ideal"), f"{where} switch"), where)

    def _over(self, part: str) -> dict[str, Any]:
        return {path[1]: value for path, value in self.overrides.items() if path[0] == part and len(path) == 2}

    def _refuse(self, part: str, reason: str, but: tuple[str, ...] = ()) -> None:
        """Raise ConfigError if a setting names a part that the cluster does not have."""
        for key in self._over(part):
            if key not in but:
                raise ConfigError(f"setting {part}.{key}: has nothing to change: {reason}")

    def _pcie(self, values: Mapping[str, Any], where: str) -> PcieSpec:
        if "link" not in values:
            raise ConfigError(f"{where}: needs the key 'link'")
        link = self.link(values["link"], f"{where} link")
        latency_s = self.switch(values["switch"], f"{where} switch").latency_s if "switch" in values else 0.0
        switches = []
        for i, item in enumerate(values.get("switches", ())):
            for key in ("name", "under"):
                if key not in item:
                    raise ConfigError(f"{where} switches[{i}]: needs the key {key!r}")
            switches.append(PcieSwitchSpec(**item))
        optional = {
            "gpu_sockets": "gpu_sockets", "nic_sockets": "nic_sockets", "gpu_lanes": "gpu_lanes",
            "other_lanes": "other_lanes", "peer": "peer", "both_directions": "both_directions_bytes_per_s",
            "staging_latency": "staging_latency_s", "ideal": "ideal",
        }  # fmt: skip
        if values.get("ideal"):
            self._refuse("pcie", f"{where} is one switch that never blocks", but=("link", "ideal", "both_directions"))
        given = {ours: values[theirs] for theirs, ours in optional.items() if theirs in values}
        return PcieSpec(link, latency_s, tuple(switches), **given)

    def _scaleup(self, values: Mapping[str, Any], gpus: int, where: str) -> ScaleupSpec:
        kind = values.get("kind", "none")
        if kind == "none":
            self._refuse("scaleup", f"{where.removesuffix(' scaleup')} has no GPU fabric", but=("kind",))
            return ScaleupSpec()
        if "link" not in values:
            raise ConfigError(f"{where}: needs the key 'link'")
        links = values.get("links", 1)
        if kind == "mesh":
            edges = values.get("mesh", ())
        elif kind == "pairs":
            edges = tuple((*pair, links) for pair in values.get("pairs", ()))
        else:
            edges = tuple((a, b, links) for a in range(gpus) for b in range(a + 1, gpus)) if kind == "all" else ()
        _check_edges(edges, gpus, f"{where} {kind}")
        return ScaleupSpec(
            "switch" if kind == "switch" else "mesh",
            self.link(values["link"], f"{where} link"),
            links,
            edges,
            values.get("switches"),
            values.get("reduces", False),
        )

    def _nic(self, values: Mapping[str, Any], where: str) -> NicSpec:
        count = values.get("count", 1 if "link" in values or "bandwidth" in values else 0)
        if count == 0:
            return NicSpec()
        if "link" in values:
            link = self.link(values["link"], f"{where} link")
        elif "bandwidth" in values:
            link = LinkSpec("nic", "ethernet", values["bandwidth"])
        else:
            raise ConfigError(f"{where}: needs the key 'link' or 'bandwidth'")
        if "bandwidth" in values:
            link = LinkSpec(link.name, link.medium, values["bandwidth"], link.lanes, link.efficiency)
        return NicSpec(
            link,
            count,
            values.get("lanes", 16),
            values.get("both_directions", False),
            values.get("gpu_nics"),
        )


def _transport(entry: Entry, values: Mapping[str, Any]) -> Transport:
    names = {
        "latency": "latency_s", "send_overhead": "send_overhead_s", "receive_overhead": "receive_overhead_s",
        "eager": "eager_bytes", "mtu": "mtu_bytes", "headers": "header_bytes", "frame": "frame_bytes",
        "efficiency": "wire_efficiency", "cpu_per_packet": "cpu_s_per_packet", "cpu_per_byte": "cpu_s_per_byte",
        "offload": "offload", "segment": "segment_bytes", "sockets": "sockets", "gpudirect": "gpudirect",
        "initial_window": "initial_window_segments", "window_limit": "window_limit_bytes",
        "rto_min": "rto_min_s", "rto_initial": "rto_initial_s", "rto_max": "rto_max_s",
        "congestion": "congestion", "dctcp_gain": "dctcp_gain", "pfc": "pfc",
        "nccl_algorithms": "nccl_algorithms", "nccl_protocols": "nccl_protocols",
        "nccl_buffer": "nccl_buffer_bytes", "nccl_chunk": "nccl_chunk_bytes", "by_size": "by_size",
    }  # fmt: skip
    fields = {names[key]: value for key, value in values.items() if key in names}
    transport = Transport(entry.name, values["kind"], **fields)
    if transport.mtu_bytes is not None and transport.payload_bytes <= 0:
        raise ConfigError(
            f"{entry.where}: mtu must exceed its headers of {transport.header_bytes} B, got {transport.mtu_bytes} B"
        )
    if transport.kind == "tcp" and transport.mtu_bytes is None:
        raise ConfigError(f"{entry.where}: a tcp transport needs the key 'mtu'")
    return transport


def _check_edges(edges: tuple[tuple[int, ...], ...], gpus: int, where: str) -> None:
    seen = set()
    for edge in edges:
        if len(edge) != 3 or edge[0] == edge[1] or edge[2] < 1:
            raise ConfigError(f"{where}: must list [gpu, other gpu, number of links], got {list(edge)}")
        if max(edge[:2]) >= gpus:
            raise ConfigError(f"{where}: the node has GPUs 0 to {gpus - 1}, got {list(edge)}")
        pair = frozenset(edge[:2])
        if pair in seen:
            raise ConfigError(f"{where}: names the pair {sorted(pair)} twice")
        seen.add(pair)
