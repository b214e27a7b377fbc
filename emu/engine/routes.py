"""Take the cluster's routes into the engine's state, many at a time."""

import math
from typing import Any

import numpy as np

from emu.engine import layout as L
from emu.engine.state import State


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
