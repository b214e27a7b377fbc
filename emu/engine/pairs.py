"""Which routes a program needs: looked up once, many at a time."""

import math
from typing import Any

import numpy as np

from emu.cluster import RouteList
from emu.engine import layout as L
from emu.engine.library import Library
from emu.engine.profiles import Profile
from emu.engine.routes import connect, routes_between, take_in
from emu.engine.state import SELF_ROUTE, State


class Pairs:
    """The routes between pairs of ranks, and between ranks and their hosts, that are in the engine's state so far."""

    def __init__(self, state: State, cluster: Any, world_size: int, profile: Profile, library: Library):
        self.state, self.cluster, self.world_size = state, cluster, world_size
        self.profile, self.library = profile, library
        self.routes = RouteList([None])  # as the cluster gave them; number 0 is to oneself
        self._keys = np.zeros(0, np.int64)  # (way * world size + source) * world size + destination
        state.room(L.T_ROUTE, 1, np.zeros((), L.ROUTE))
        most = np.iinfo(np.int64).max
        state[L.T_ROUTE][SELF_ROUTE] = (0, math.inf, math.inf, 0, 0, most, 0, 0, -1, -1, 1.0, 0, 0)

    def of_messages(self, ranks: np.ndarray, moves: np.ndarray) -> np.ndarray:
        """Return the keys of the pairs that sends and receives name, of the ranks that make them."""
        size = self.world_size
        way = np.where(moves["flag"] & L.COLLECTIVE, moves["b"].astype(np.int64) >> L.WAY_SHIFT, 0)
        sent, peer = moves["op"] == L.SEND, moves["a"].astype(np.int64)
        key = way * size * size + np.where(sent, ranks * size + peer, peer * size + ranks)
        return np.unique(key[sent | (peer >= 0)])

    def need(self, keys: list[np.ndarray]) -> None:
        """Look up the routes of pairs that are new."""
        if not keys:
            return
        wanted = np.unique(np.concatenate(keys))
        pair, size = wanted % self.world_size**2, self.world_size
        wanted = wanted[(wanted >= size * size) | (pair // size != pair % size)]
        fresh = wanted[~np.isin(wanted, self._keys, assume_unique=True)] if len(self._keys) else wanted
        if not len(fresh):
            return
        numbers = np.arange(len(self.routes), len(self.routes) + len(fresh), dtype=np.int32)
        for way in np.unique(fresh // (size * size)):
            self._take_in(int(way), fresh[fresh // (size * size) == way] % (size * size))
        state = self.state
        number = np.concatenate([state[L.T_PAIR_ROUTE][: len(self._keys)], numbers])
        keys_now = np.concatenate([self._keys, fresh])
        order = np.argsort(keys_now, kind="stable")
        self._keys = keys_now[order]
        state.put(L.T_PAIR_KEY, self._keys)
        state.put(L.T_PAIR_ROUTE, np.ascontiguousarray(number[order]))
        state.count[L.PAIR_COUNT] = len(keys_now)

    def _take_in(self, way: int, pairs: np.ndarray) -> None:
        """Add the routes of pairs (source * world size + destination) by a way."""
        src, dst, first = pairs // self.world_size, pairs % self.world_size, len(self.routes)
        plain = routes_between(self.cluster, src, dst)
        table, wire, buffer = self.library.by_way(way, plain)
        take_in(self.state, self.cluster, table, first, self.profile.overheads and way == 0)
        entry = self.state[L.T_ROUTE][first : first + len(table)]
        entry["wire"] = wire
        if way:
            entry["eager"] = buffer
        if self.profile.windows:
            connect(self.state, self.cluster, plain, first, pairs, self.world_size)
        self.routes.extend(table)

    def need_host(self, r: int, directions: np.ndarray) -> None:
        """Look up the routes between a rank and its host that its copies take."""
        table = self.state[L.T_HOST_ROUTE]
        for direction, name in enumerate(("h2d", "d2h")):
            if table[2 * r + direction] < 0 and (directions == direction).any():
                table[2 * r + direction] = self._add_route(self.cluster.host_route(r, name))

    def _add_route(self, route: Any) -> int:
        state = self.state
        number = len(self.routes)
        transport = self.cluster.transport(route.transport)
        first = int(state.count[L.ROUTE_LINK_COUNT])
        hops = len(route.links)
        state.room(L.T_ROUTE_LINKS, first + hops)[first : first + hops] = route.links
        state.count[L.ROUTE_LINK_COUNT] = first + hops
        state.more_hops(hops)
        rates = state[L.T_LINK]["rate"][list(route.links)]
        slowest = int(rates.argmin()) if hops else -1
        rate = float(rates[slowest]) if hops else math.inf
        neck = int(route.links[slowest]) if hops else -1
        if route.cap_bytes_per_s < rate:
            rate, neck = route.cap_bytes_per_s, L.OWN_CAP
        on = self.profile.overheads
        entry = state.room(L.T_ROUTE, number + 1, np.zeros((), L.ROUTE))[number : number + 1]
        entry["latency"], entry["cap"], entry["rate"] = route.latency_s, route.cap_bytes_per_s, rate
        entry["send_s"] = transport.send_overhead_s if on else 0.0
        entry["receive_s"] = transport.receive_overhead_s if on else 0.0
        entry["eager"] = transport.eager_bytes
        entry["first"], entry["count"], entry["neck"], entry["connection"] = first, hops, neck, -1
        entry["wire"] = 1.0
        entry["knots"], entry["knot_count"] = state.knots(transport.by_size)
        self.routes.append(route)
        return number

    def order(self) -> np.ndarray:
        """Return the routes' numbers ordered by source and destination, copies last: however they came in."""
        pairs = self.state[L.T_PAIR_ROUTE][: len(self._keys)]
        host = self.state[L.T_HOST_ROUTE]
        return np.concatenate([[SELF_ROUTE], pairs, host[host >= 0]]).astype(np.int64)
