"""What a library makes of a recorded collective: its launch, the protocol it takes, what a step and a byte cost then.

A call of a template becomes a call of a copy whose messages go by `ways` of their own. A way is a route of the
pair with another latency and another share of the wire; to the engine it is a route like any other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from emu.cluster.routing import RouteTable
from emu.engine import layout as L
from emu.engine import nccl, nccl_graph
from emu.engine.profiles import Profile
from emu.trace import Template

LOCAL = {"nvlink": "nvlink", "pcie": "pcie"}  # kinds of transport that stay in the node; others are "net"


@dataclass(frozen=True)
class Step:
    """What a message over one kind of route costs: latency, bytes of wire for a byte, and a bound of one flow."""

    latency_s: float
    wire: float
    cap_bytes_per_s: float = math.inf


@dataclass(frozen=True)
class Terms:
    """How the library runs one call.

    A step pays its latency once however long its message is: while one half of a channel's buffer is on its way, the
    sender fills the other.
    """

    launch_s: float
    steps: Mapping[str, Step]
    buffer_bytes: int  # a sender runs ahead by so many
    drain_bytes_per_s: float  # at which a ring's last chunk leaves the buffer, nothing beside it
    fill_s: float = 0.0  # until a pipeline of chunks runs full
    sockets: int = 1  # of a pair over TCP: each channel has connections of its own

    def __hash__(self) -> int:
        return hash((self.launch_s, tuple(self.steps.items()), self.drain_bytes_per_s, self.fill_s, self.sockets))


class Library:
    """What a profile makes of calls on one cluster."""

    def __init__(self, profile: Profile, cluster: Any):
        self.profile = profile
        self.cluster = cluster
        self._codes: dict[Terms, int] = {}
        # By code; 0 is a message outside of collectives, None as the cluster has it.
        self._terms: list[Terms | None] = [_alone(cluster, profile.launch_s) if profile.tuned else None]
        self._known: dict[tuple[str, tuple[int, ...], int], Terms] = {}

    @property
    def tunes(self) -> bool:
        """Whether calls are changed at all."""
        return self.profile.tuned or self.profile.launch_s > 0

    def terms(self, name: str, group: tuple[int, ...], nbytes: int) -> Terms:
        """Return how the library runs the collective `name` of so many bytes on these ranks."""
        key = (name, group, nbytes)
        if key not in self._known:
            self._known[key] = self._nccl(name, group, nbytes) if self.profile.tuned else self._plain()
        return self._known[key]

    def variant(self, template: Template, terms: Terms) -> Template:
        """Return the template with its messages on their ways, and the last chunk's way out of the buffer."""
        rows = template.rows.copy()
        if terms.steps:
            moves = (rows["op"] == L.SEND) | (rows["op"] == L.RECV)
            rows["b"][moves] += self._code(terms) << L.WAY_SHIFT
        received = rows[rows["op"] == L.RECV]
        if len(received):
            drained = _elapsed(int(received["n"][-1]), terms.drain_bytes_per_s, int(received["c"][-1]))
            filled = _elapsed(0, terms.fill_s, 0)
            more = [filled] if terms.fill_s > 0 else []
            more += [drained] if terms.drain_bytes_per_s < math.inf else []
            rows = np.concatenate([rows, *more])
        return replace(template, rows=rows)

    def by_way(self, way: int, table: RouteTable) -> tuple[RouteTable, np.ndarray, int]:
        """Return routes as a way has them, the wire's bytes for a byte on each, and the buffer."""
        terms = self._terms[way]
        if terms is None:
            return table, np.ones(len(table)), 0
        kinds = [LOCAL.get(self.cluster.transport(name).kind, "net") for name in table.transports]
        steps = [terms.steps[kind] for kind in kinds]
        latency = np.array([step.latency_s for step in steps])[table.transport]
        net = np.array([kind == "net" for kind in kinds])[table.transport]
        latency = np.where(net, np.maximum(latency, table.latency_s), latency)
        cap = np.array([step.cap_bytes_per_s * step.wire for step in steps])[table.transport]
        wire = np.array([step.wire for step in steps])[table.transport]
        tcp = np.array([self.cluster.transport(name).kind == "tcp" for name in table.transports])[table.transport]
        own = table.cap_bytes_per_s * np.where(tcp, terms.sockets, 1)
        changed = replace(table, latency_s=latency, cap_bytes_per_s=np.minimum(cap, own))
        return changed, wire, terms.buffer_bytes

    def _code(self, terms: Terms) -> int:
        if terms not in self._codes:
            self._codes[terms] = len(self._terms)
            self._terms.append(terms)
        return self._codes[terms]

    def _plain(self) -> Terms:
        return Terms(self.profile.launch_s, {}, 0, math.inf)

    def _nccl(self, name: str, group: tuple[int, ...], nbytes: int) -> Terms:
        if len(group) < 2:
            return self._plain()
        graph = nccl_graph.graph_of(self.cluster, group)
        collective = next((each for each in nccl.COLLECTIVES if name.endswith(each)), "all_gather")
        family = _family(name, collective, graph)
        protocol = _protocol(graph, collective, family, nbytes)
        terms = terms_of(self.cluster, graph, family, protocol, nbytes, self.profile.launch_s)
        return _chained(terms, graph) if collective in ("broadcast", "reduce") else terms


def _elapsed(nbytes: int, x: float, number: int) -> np.ndarray:
    """Return the row of a duration: of x seconds, or of so many bytes (a number of lengths beside them) at rate x."""
    row = np.zeros(1, L.ROW)
    row["op"], row["flag"], row["c"], row["n"], row["x"] = L.ELAPSED, L.COLLECTIVE, number, nbytes, x
    return row


def _family(name: str, collective: str, graph: nccl.Graph) -> str:
    """Return the algorithm of NCCL's tables that a collective's steps cost as: of trees, of the switch, or of rings."""
    if name.startswith("in_switch"):
        return "nvls_tree" if "tree" in name else "nvls"
    return "tree" if "tree" in name and collective == "all_reduce" and graph.ranks > 2 else "ring"


def _protocol(graph: nccl.Graph, collective: str, family: str, nbytes: int) -> str:
    if family.startswith("nvls"):
        return "Simple"
    return min(graph.protocols, key=lambda each: nccl.predicted_us(graph, collective, family, each, nbytes))


def terms_of(cluster: Any, graph: nccl.Graph, family: str, protocol: str, nbytes: int, launch_s: float) -> Terms:
    """Return what NCCL's constants make of a call by an algorithm and a protocol."""
    k, row = nccl.PROTOCOLS.index(protocol), min(graph.nodes, 3) - 1
    if family.startswith("nvls"):
        return _in_switch(cluster, graph, family, nbytes, launch_s)
    wire = (1 / nccl.LL_FRACTION, 1 / nccl.LL128_FRACTION, 1.0)[k]
    cap = graph.ll_max() * 1e9 if k == 0 else math.inf
    steps = {}
    for kind in ("nvlink", "pcie", "net"):
        more = _slack(cluster, kind)
        if family == "tree" and k > 0 and kind != "net":
            more /= nccl.TREE_FRACTION
        steps[kind] = Step(nccl.STEP_US[kind, family][k] * 1e-6, wire * more, cap)
    drain = graph.kernels * graph.generation.tree_channel[row] * 1e9 if family == "ring" else math.inf
    sockets = max(1, graph.kernels // graph.nics)
    launch_s += nccl.BASE_US[family][k] * 1e-6
    return Terms(launch_s, steps, graph.kernels * graph.buffer_bytes, drain, sockets=sockets)


def _chained(terms: Terms, graph: nccl.Graph) -> Terms:
    """Return the terms of a chain: NCCL counts one step for all hops in a node whose channels are alike."""
    if not graph.alike or graph.local < 3:
        return terms
    steps = {
        kind: step if kind == "net" else replace(step, latency_s=step.latency_s / (graph.local - 1))
        for kind, step in terms.steps.items()
    }
    return replace(terms, steps=steps)


def _alone(cluster: Any, launch_s: float) -> Terms:
    """Return the terms of a send and its receive outside of collectives: kernels of their own, by Simple."""
    k = nccl.PROTOCOLS.index("Simple")
    base_s = launch_s + nccl.BASE_US["ring"][k] * 1e-6
    steps = {
        kind: Step(base_s + nccl.STEP_US[kind, "ring"][k] * 1e-6, _slack(cluster, kind))
        for kind in ("nvlink", "pcie", "net")
    }
    return Terms(0.0, steps, 0, math.inf)


def _in_switch(cluster: Any, graph: nccl.Graph, family: str, nbytes: int, launch_s: float) -> Terms:
    """Return the terms of sums in the switch: what NCCL reaches of a port, and the time until the pipeline is full.

    Between nodes NCCL bounds what a head of trees passes on; ports then carry that much less.
    """
    generation = graph.generation
    port = graph.channels * graph.inside_gb_per_s * generation.nvls_fraction  # GB/s of result and of one part of it
    more = _slack(cluster, "nvlink") / generation.nvls_fraction
    net = Step(nccl.NVLS_TREE_NET_US * 1e-6, _slack(cluster, "net"))
    channels, fill_s = 2 * graph.heads, 0.0
    if family == "nvls":  # the first segment goes up before anything comes down
        channels = generation.nvls_channels
        fill_s = min(nbytes, channels * nccl.NVLS_CHUNK_BYTES * graph.ranks) / (port * 1e9)
    else:
        more *= max(1.0, port / ((1 + 1 / graph.heads) * graph.nvls_tree_gb_per_s))
    steps = {"nvlink": Step(0.0, more), "pcie": Step(0.0, _slack(cluster, "pcie")), "net": net}
    return Terms(launch_s + nccl.NVLS_US * 1e-6, steps, channels * graph.buffer_bytes, math.inf, fill_s)


def _slack(cluster: Any, kind: str) -> float:
    """Return a link's payload rate, as one copy reaches it, over what NCCL's kernels make of it."""
    if not hasattr(cluster, "node"):
        return 1.0
    spec = cluster.node(0).spec
    if kind == "net":
        return max(1.0, cluster.spec.transport.efficiency / nccl_graph.NET_FRACTION)
    if kind == "pcie":
        rate = spec.pcie.link.rate(16)
        return max(1.0, rate / nccl_graph.PCIE_BYTES_PER_S.get(spec.pcie.link.name, rate))
    link = spec.scaleup.link
    return 1.0 if link is None else max(1.0, link.rate(1) / nccl_graph.KERNEL_BYTES_PER_S.get(link.name, link.rate(1)))

