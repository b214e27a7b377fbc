"""Take the cluster's routes into the engine's state, many at a time."""

import math
from collections.abc import Sequence
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
    transports = [cluster.transport(name) for name in table.transports]
    entry["eager"] = np.array([item.eager_bytes for item in transports])[table.transport]
    if overheads:
        entry["send_s"] = np.array([item.send_overhead_s for item in transports])[table.transport]
        entry["receive_s"] = np.array([item.receive_overhead_s for item in transports])[table.transport]


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
