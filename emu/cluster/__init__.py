"""Clusters: links, routes, transports and GPUs, from the catalogue, a TOML file or one string.

cluster = load_cluster("dgx-a100:2", {"nic.bandwidth": "100 Gb/s"})
cluster.route(0, 8)                    links, latency, transport
cluster.closed_form(0, 8)              alpha + n / B of a lone message
"""

from emu.cluster.cluster import Cluster
from emu.cluster.faults import Faults
from emu.cluster.load import link_cluster, load_cluster
from emu.cluster.parts import ClosedForm, GpuSpec, Link, LinkChange, LinkFlap, Route, Transport
from emu.cluster.routing import RouteList, RouteTable

__all__ = [
    "ClosedForm", "Cluster", "Faults", "GpuSpec", "Link", "LinkChange", "LinkFlap", "Route", "RouteList",
    "RouteTable", "Transport",
    "link_cluster", "load_cluster",
]  # fmt: skip
