"""The same run on other links: a recorded step, and one lone all-reduce with its closed form beside it.

Two traces, one a strategy, give all rows; nothing is run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from emu.cluster import Cluster, load_cluster
from emu.collectives.table import TABLE
from emu.comm import Comm, run_dry
from emu.engine import resolve
from emu.timeline import Timeline
from emu.trace import Trace

LINKS = (
    ("PCIe 3 x16", "pcie3"),
    ("PCIe 4 x16", "pcie4"),
    ("NVLink 3", "nvlink3"),
    ("NVLink 4", "nvlink4"),
    ("TCP 10 GbE", "tcp-10g"),
    ("TCP 40 GbE", "tcp-40g"),
    ("TCP 100 GbE", "tcp-100g"),
    ("RoCE 100 Gb/s", "roce-100g"),
    ("RoCE 400 Gb/s", "roce-400g"),
)
ALL_REDUCE_OF = {"ddp": "ring", "ps": "parameter_server"}  # strategy -> the all-reduce that it amounts to


@dataclass(frozen=True)
class LoneAllReduce:
    """One all-reduce of `count` elements on otherwise idle links: recorded once, timed on any cluster."""

    algorithm: str
    count: int
    dtype: str
    ranks: int

    def trace(self) -> Trace:
        """Record it, without bytes."""
        function = TABLE["all_reduce"][self.algorithm].function

        def main(comm: Comm) -> None:
            function(comm, comm.empty(self.count, self.dtype))

        return run_dry(main, self.ranks)[1]

    def closed_form_s(self, cluster: Cluster) -> float:
        """Return its time by the algorithm's formula, with α and B of the way from rank 0 to rank 1.

        A ring whose ranks do not divide the elements takes as long as one of p of its largest chunks. A server's
        port carries p-1 flows at its own rate, even where one flow is bound to less (a TCP flow to one core).
        """
        route = cluster.route(0, 1)
        port_bytes_per_s = min(cluster.links[link].bandwidth_bytes_per_s for link in route.links)
        count, flows = self.count, 1
        if self.algorithm == "ring":
            count = -(-count // self.ranks) * self.ranks
        else:
            flows = self.ranks - 1
        bandwidth_bytes_per_s = min(port_bytes_per_s, flows * route.cap_bytes_per_s)
        n = count * np.dtype(self.dtype).itemsize
        formula = TABLE["all_reduce"][self.algorithm].time_s
        return formula(self.ranks, n, route.latency_s, bandwidth_bytes_per_s, 0.0)


def compare_links(traces: Mapping[str, Trace], elements: int, dtype: str, gpu: str) -> list[dict[str, Any]]:
    """Time each strategy's trace, and its lone all-reduce of `elements`, on every link, all with the same GPU.

    A row has `link`, `cluster`, `strategy`, `step_s`, `exposed_communication_s`, `all_reduce_s`, `closed_form_s`.
    """
    rows = []
    for strategy, trace in traces.items():
        lone = LoneAllReduce(ALL_REDUCE_OF[strategy], elements, dtype, trace.world_size)
        lone_trace = lone.trace()
        for link, name in LINKS:
            cluster = load_cluster(name, {"node.gpu": gpu}, trace.world_size)
            step = Timeline(resolve(trace, cluster, detail="spans"), trace, cluster).step
            alone = resolve(lone_trace, cluster, detail="totals")
            rows.append({
                "link": link,
                "cluster": name,
                "strategy": strategy,
                "step_s": step["time_s"],
                "exposed_communication_s": step["exposed_communication_s"],
                "all_reduce_s": float(alone.rank_end_s.max()),
                "closed_form_s": lone.closed_form_s(cluster),
            })  # fmt: skip
    return rows
