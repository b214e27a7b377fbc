"""Take the cluster's routes into the engine's state, many at a time."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from emu.cluster.routing import RouteTable
from emu.engine import layout as L
from emu.engine.state import State


class Reordered(Sequence[Any]):
    """A sequence in another order, looked up when asked."""

    def __init__(self, items: Sequence[Any], order: np.ndarray) -> None:
        self._items, self._order = items, order

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        return self._items[int(self._order[number])]


def routes_between(cluster: Any, src: np.ndarray, dst: np.ndarray) -> RouteTable:
    """Return the routes of pairs; from a cluster that knows single routes only, one by one."""
    if hasattr(cluster, "route_table"):
        return cluster.route_table(src, dst)
    routes = [cluster.route(int(a), int(b)) for a, b in zip(src, dst, strict=True)]
    names = tuple(dict.fromkeys(r.transport for r in routes))
    number = {name: k for k, name in enumerate(names)}
    return RouteTable(
        first=np.cumsum([0, *(len(r.links) for r in routes)]),
        links=np.array([link for r in routes for link in r.links], np.int32),
        latency_s=np.array([r.latency_s for r in routes]),
        cap_bytes_per_s=np.array([r.cap_bytes_per_s for r in routes]),
        transport=np.array([number[r.transport] for r in routes], np.int32),
        transports=names,
    )


def take_in(state: State, cluster: Any, table: Any, first_number: int, overheads: bool) -> None:
    """Write a table of routes into the state; the first has number `first_number`."""
    count = len(table)
    base = int(state.count[L.ROUTE_LINK_COUNT])
    state.room(L.T_ROUTE_LINKS, base + len(table.links))[base : base + len(table.links)] = table.links
    state.count[L.ROUTE_LINK_COUNT] = base + len(table.links)
    hops = np.diff(table.first)
    state.more_hops(int(hops.max(initial=0)))
    rate, neck = slowest(table, state[L.T_LINK]["rate"])
    own = table.cap_bytes_per_s < rate
    entry = state.room(L.T_ROUTE, first_number + count, np.zeros((), L.ROUTE))[first_number : first_number + count]
    entry["latency"], entry["cap"] = table.latency_s, table.cap_bytes_per_s
    entry["rate"] = np.where(own, table.cap_bytes_per_s, rate)
    entry["neck"] = np.where(own, L.OWN_CAP, neck)
    entry["first"], entry["count"] = base + table.first[:-1], hops
    entry["connection"] = -1
    transports = [cluster.transport(name) for name in table.transports]
    entry["wire"] = 1.0
    knots = np.array([state.knots(item.by_size) for item in transports])[table.transport]
    entry["knots"], entry["knot_count"] = knots.T
    entry["eager"] = np.array([item.eager_bytes for item in transports])[table.transport]
    if overheads:
        entry["send_s"] = np.array([item.send_overhead_s for item in transports])[table.transport]
        entry["receive_s"] = np.array([item.receive_overhead_s for item in transports])[table.transport]


def connect(state: State, cluster: Any, table: Any, first_number: int, pairs: np.ndarray, world_size: int) -> None:
    """Give each route over TCP its connection, and the ports it passes their buffers."""
    transports = [cluster.transport(name) for name in table.transports]
    tcp = np.array([item.kind == "tcp" for item in transports])[table.transport] & (table.latency_s > 0)
    which = np.flatnonzero(tcp)
    old = int(state.count[L.TCP_COUNT])
    if not len(which):
        return
    if old == 0:
        _open_ports(state, cluster)
    new = state.room(L.T_TCP, old + len(which), np.zeros((), L.CONNECTION))[old : old + len(which)]
    kinds = table.transport[which]

    def each(read: Callable[[Any], float]) -> np.ndarray:
        return np.array([read(item) if item.kind == "tcp" else 0.0 for item in transports])[kinds]

    new["segment"] = each(lambda t: t.payload_bytes)
    new["initial"] = new["window"] = each(lambda t: t.initial_window_segments * t.payload_bytes)
    new["limit"] = new["threshold"] = each(lambda t: t.window_limit_bytes)
    new["rto"] = new["rto_min"] = each(lambda t: t.rto_min_s)
    new["rto_max"] = each(lambda t: t.rto_max_s)
    new["dctcp"] = each(lambda t: t.congestion == "dctcp")
    new["gain"] = each(lambda t: t.dctcp_gain)
    new["rtt"] = 2 * table.latency_s[which]
    new["marks"] = 1.0
    new["last"] = new["planned"] = new["recovers"] = -math.inf
    new["head"] = -1
    new["route"] = first_number + which
    new["order"] = pairs[which]
    new["src"], new["dst"] = pairs[which] // world_size, pairs[which] % world_size
    state[L.T_ROUTE]["connection"][first_number + which] = np.arange(old, old + len(which))
    state.count[L.TCP_COUNT] = old + len(which)
    state.more_log()
    state.more_heap()


def _open_ports(state: State, cluster: Any) -> None:
    port = state.put(L.T_PORT, np.zeros(len(cluster.links) + 1, L.PORT))
    port["buffer"][:-1] = [link.buffer_bytes for link in cluster.links]
    port["threshold"][:-1] = [link.ecn_threshold_bytes for link in cluster.links]
    port["stepped"] = port["planned"] = -math.inf
    state.put(L.T_SHUFFLE, np.zeros(L.SHUFFLE, np.int32))


def slowest(table: Any, rates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rate and number of each route's slowest link, the first of equals; infinite and -1 without links."""
    rate, neck = np.full(len(table), math.inf), np.full(len(table), -1, np.int64)
    some = np.flatnonzero(np.diff(table.first))
    if len(some):
        along = rates[table.links]
        rate[some] = np.minimum.reduceat(along, table.first[some])
        owner = np.repeat(np.arange(len(table)), np.diff(table.first))
        at = np.flatnonzero(along == rate[owner])
        owners, place = np.unique(owner[at], return_index=True)
        neck[owners] = table.links[at[place]]
    return rate, neck
