"""What the engine's tests build on: rows in short, clusters without a catalogue."""

import math
from dataclasses import dataclass, field

import numpy as np

from emu.cluster import RouteTable
from emu.trace import COLLECTIVE, ROW, Op, Template, Trace


@dataclass(frozen=True)
class Link:
    name: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    kind: str = "nic"
    buffer_bytes: float = math.inf
    ecn_threshold_bytes: float = math.inf


@dataclass(frozen=True)
class Route:
    links: tuple[int, ...]
    latency_s: float
    transport: str = "plain"
    cap_bytes_per_s: float = math.inf


@dataclass(frozen=True)
class Transport:
    name: str = "plain"
    kind: str = "rdma"
    send_overhead_s: float = 0.0
    receive_overhead_s: float = 0.0
    eager_bytes: int = 0
    by_size: tuple = ()


@dataclass(frozen=True)
class Gpu:
    name: str = "unit"
    memory_bytes_per_s: float = 1e12
    flops_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    launch_overhead_s: float = 0.0
    memory_by_size: tuple = ()
    flops: float = 1e12

    def peak(self, dtype: str) -> float:
        return self.flops


@dataclass(frozen=True)
class PathCluster:
    """Any links, any paths."""

    links: tuple[Link, ...]
    paths: dict[tuple[int, int], Route]
    size: int
    transports: dict[str, Transport] = field(default_factory=lambda: {"plain": Transport()})
    device: Gpu = Gpu()
    speeds: tuple[float, ...] = ()
    host: dict[tuple[int, str], Route] = field(default_factory=dict)
    name: str = "paths"

    def route(self, src: int, dst: int) -> Route:
        return self.paths[src, dst]

    def route_table(self, src, dst) -> RouteTable:
        routes = [self.route(int(a), int(b)) for a, b in zip(src, dst, strict=True)]
        names = tuple(self.transports)
        return RouteTable(
            np.cumsum([0, *(len(route.links) for route in routes)]),
            np.array([link for route in routes for link in route.links], np.int32),
            np.array([route.latency_s for route in routes]),
            np.array([route.cap_bytes_per_s for route in routes]),
            np.array([names.index(route.transport) for route in routes], np.int32),
            names,
        )

    def host_route(self, rank: int, direction: str) -> Route:
        return self.host[rank, direction]

    def transport(self, name: str) -> Transport:
        return self.transports[name]

    def gpu(self, rank: int) -> Gpu:
        return self.device

    def speed(self, rank: int) -> float:
        return self.speeds[rank] if self.speeds else 1.0


@dataclass(frozen=True)
class StarCluster(PathCluster):
    """Each rank has a port in and a port out of one switch that never blocks."""


def star(p: int, bandwidth: float = 1e9, latency: float = 1e-6, **more) -> PathCluster:
    """Port out of rank r: link 2r; port in: 2r + 1."""
    links = tuple(Link(f"r{r}.{way}", bandwidth) for r in range(p) for way in ("out", "in"))
    paths = {(a, b): Route((2 * a, 2 * b + 1), latency) for a in range(p) for b in range(p) if a != b}
    return PathCluster(links, paths, p, **more)


def rows(*entries: tuple) -> np.ndarray:
    """Rows from (op, a, b, c, n, x, stream, flag), the rest of each being zeros."""
    out = np.zeros(len(entries), ROW)
    for k, entry in enumerate(entries):
        for name, value in zip(("op", "a", "b", "c", "n", "x", "stream", "flag"), entry, strict=False):
            out[name][k] = value
    return out


def send(to, n, tag=0, context=0, stream=0, flag=0):
    return (Op.SEND, to, tag, context, n, 0.0, stream, flag)


def recv(source, n, tag=0, context=0, stream=0, flag=0):
    return (Op.RECV, source, tag, context, n, 0.0, stream, flag)


def wait(back, count=None, stream=0):
    return (Op.WAIT, back, back if count is None else count, 0, 0, 0.0, stream)


def compute(flops=0.0, n=0, label=0, stream=0, flag=0):
    return (Op.COMPUTE, 1, label, 0, n, flops, stream, flag)


def elapsed(seconds, label=0, stream=0):
    return (Op.ELAPSED, 0, label, 0, 0, seconds, stream)


def trace(*ranks, labels=("a", "b", "c"), templates=(), groups=(), streams=("default", "comm", "third")) -> Trace:
    logs = tuple(r if isinstance(r, np.ndarray) else rows(*r) for r in ranks)
    return Trace(
        {"version": 1, "world_size": len(logs), "streams": streams},
        tuple(labels),
        logs,
        tuple(templates),
        tuple(groups),
    )


def ring_rows(p: int, n: int) -> np.ndarray:
    """One rank's part in a ring all-reduce of n bytes that p divides, peers relative."""
    chunk = n // p
    step = [recv(p - 1, chunk), send(1, chunk), wait(2)]
    out = rows(*(step * (2 * (p - 1)))) if p > 1 else rows()
    out["flag"] = COLLECTIVE
    return out


def ring_trace(p: int, n: int, calls: int = 1, templated: bool = True) -> Trace:
    part = ring_rows(p, n)
    group = tuple(range(p))
    if templated:
        call = rows(*[(Op.CALL, 0, 0, 0, n)] * calls)
        return trace(*[call] * p, templates=(Template("ring_all_reduce", p, part),), groups=(group,))
    flat = []
    for r in range(p):
        mine = np.tile(part, calls)
        both = (mine["op"] == Op.SEND) | (mine["op"] == Op.RECV)
        mine["a"][both] = (mine["a"][both] + r) % p
        flat.append(mine)
    return trace(*flat)
