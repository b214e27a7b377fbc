"""How much each link carried: totals, the time it was busy, and its use over time.

A flow's bytes count as evenly spread from its start to its end; where a flow's rate changed on the way, use
over time is smoothed over that flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LinkUse:
    """What one link did: `utilisation` is bytes / (bandwidth x time)."""

    name: str
    kind: str
    bandwidth_bytes_per_s: float
    bytes: int
    utilisation: float
    busy_s: float | None = None


def link_flows(flows: np.ndarray, routes: Sequence[Any]) -> dict[int, np.ndarray]:
    """Return, for each link that carried something, the indices of its flows, in order of start."""
    # Routes by number as one array of links; None (to oneself) has none.
    on_route = [sorted(set(route.links)) if route is not None else [] for route in routes]
    hops = np.array([len(links) for links in on_route], dtype=np.int64)
    first = np.cumsum(hops) - hops
    flat = np.array([link for links in on_route for link in links], dtype=np.int64)
    by_start = np.argsort(flows["start_s"], kind="stable")
    route = flows["route"][by_start]
    counts = hops[route]
    flow = np.repeat(by_start, counts)
    hop = np.arange(len(flow)) - np.repeat(np.cumsum(counts) - counts, counts)
    link = flat[np.repeat(first[route], counts) + hop]
    order = np.argsort(link, kind="stable")
    used, begin = np.unique(link[order], return_index=True)
    return dict(zip(used.tolist(), np.split(flow[order], begin[1:]), strict=True)) if len(used) else {}


def busy_intervals(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge intervals, sorted by start, into those in which at least one runs."""
    keep = ends > starts
    starts, ends = starts[keep], ends[keep]
    if not len(starts):
        return starts, ends
    reach = np.maximum.accumulate(ends)
    fresh = np.append(True, starts[1:] > reach[:-1])
    last = np.append(np.flatnonzero(fresh)[1:] - 1, len(starts) - 1)
    return starts[fresh], reach[last]


def use_over_time(starts: np.ndarray, ends: np.ndarray, nbytes: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the bytes that flows carried between neighbouring `edges`."""
    by_end = np.argsort(ends, kind="stable")
    done = np.append(0.0, np.cumsum(nbytes[by_end], dtype=np.float64))
    carried = done[np.searchsorted(ends[by_end], edges, side="right")]
    carried[0] = done[np.searchsorted(ends[by_end], edges[0], side="left")]  # what takes no time at 0 counts
    # Add, at each edge, the part of the flows that are under way there.
    first = np.searchsorted(edges, starts, side="right")
    counts = np.maximum(np.searchsorted(edges, ends, side="left") - first, 0)
    flow = np.repeat(np.arange(len(starts)), counts)
    edge = first[flow] + np.arange(len(flow)) - np.repeat(np.cumsum(counts) - counts, counts)
    under_way = nbytes[flow] * ((edges[edge] - starts[flow]) / (ends[flow] - starts[flow]))
    return np.diff(carried + np.bincount(edge, weights=under_way, minlength=len(edges)))
