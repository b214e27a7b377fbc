"""Routes of many pairs at once, as arrays: what the engine takes in when thousands of ranks talk to all."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from emu.cluster.fabric import Ports
from emu.cluster.parts import Route

if TYPE_CHECKING:
    from emu.cluster.cluster import Cluster


@dataclass(frozen=True)
class RouteTable:
    """Routes of pairs, one a row: links[first[i]:first[i + 1]], in order, and their figures.

    `transport` numbers the names in `transports`.
    """

    first: np.ndarray  # (pairs + 1,) int64
    links: np.ndarray  # int32
    latency_s: np.ndarray  # (pairs,) float64
    cap_bytes_per_s: np.ndarray  # (pairs,) float64
    transport: np.ndarray  # (pairs,) int32
    transports: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.latency_s)

    def route(self, i: int) -> Route:
        """Return row i as a route."""
        links = tuple(self.links[self.first[i] : self.first[i + 1]].tolist())
        name = self.transports[self.transport[i]]
        return Route(links, float(self.latency_s[i]), name, float(self.cap_bytes_per_s[i]))


class RouteList(Sequence[Route | None]):
    """Numbered routes; those that came in a table are made when one asks for them."""

    def __init__(self, routes: Sequence[Route | None] = ()) -> None:
        self._parts: list[list[Route | None] | RouteTable] = [list(routes)]
        self._starts = [0]
        self._count = len(routes)

    def append(self, route: Route | None) -> None:
        """Add one route at the end."""
        last = self._parts[-1]
        if isinstance(last, RouteTable):
            last = []
            self._parts.append(last)
            self._starts.append(self._count)
        last.append(route)
        self._count += 1

    def extend(self, table: RouteTable) -> None:
        """Add a table's routes at the end."""
        self._parts.append(table)
        self._starts.append(self._count)
        self._count += len(table)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(self._count))]
        number = range(self._count)[number]
        part = bisect_right(self._starts, number) - 1
        held, i = self._parts[part], number - self._starts[part]
        return held.route(i) if isinstance(held, RouteTable) else held[i]

    def copy(self) -> "RouteList":
        """Return the routes that there are now; what is added later does not show in it."""
        other = RouteList()
        other._parts = [part if isinstance(part, RouteTable) else list(part) for part in self._parts]
        other._starts, other._count = list(self._starts), self._count
        return other


@dataclass(frozen=True)
class _Block:
    """Rows that share a shape: pairs, their links (-1: none) and latencies."""

    pairs: np.ndarray
    links: np.ndarray
    latency_s: np.ndarray
    cap_bytes_per_s: float
    transport: int


def route_table(cluster: "Cluster", src: Sequence[int] | np.ndarray, dst: Sequence[int] | np.ndarray) -> RouteTable:
    """Return the routes from src[i] to dst[i]; the same as cluster.route gives one by one."""
    src, dst = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    names = tuple(cluster.transports)
    blocks = [_block(cluster, pairs, src[pairs], dst[pairs], names) for pairs in _alike(cluster, src, dst)]
    first = np.zeros(len(src) + 1, np.int64)
    for block in blocks:
        first[block.pairs + 1] = (block.links >= 0).sum(axis=1)
    np.cumsum(first, out=first)
    table = RouteTable(
        first,
        np.empty(first[-1], np.int32),
        np.empty(len(src)),
        np.empty(len(src)),
        np.empty(len(src), np.int32),
        names,
    )
    for block in blocks:
        there = block.links >= 0
        place = first[block.pairs][:, None] + there.cumsum(axis=1) - 1
        table.links[place[there]] = block.links[there]
        table.latency_s[block.pairs] = block.latency_s
        table.cap_bytes_per_s[block.pairs] = block.cap_bytes_per_s
        table.transport[block.pairs] = block.transport
    return table


def _alike(cluster: "Cluster", src: np.ndarray, dst: np.ndarray) -> list[np.ndarray]:
    """Group pairs whose routes differ in nothing but node numbers and switches: same kinds of node, same GPUs."""
    if not len(src):
        return []
    place = cluster.places
    a, b = place[src], place[dst]
    same = (a[:, 0] == b[:, 0]).astype(np.int64)
    width = int(place[:, 1:].max()) + 1
    key = (((same * width + a[:, 1]) * width + a[:, 2]) * width + b[:, 1]) * width + b[:, 2]
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def _block(cluster: "Cluster", pairs: np.ndarray, src: np.ndarray, dst: np.ndarray, names: tuple[str, ...]) -> _Block:
    a, b = cluster.places[src], cluster.places[dst]
    model = cluster.route(int(src[0]), int(dst[0]))
    if a[0, 0] == b[0, 0]:
        first = cluster.first_links[a[:, 0]]
        links = np.array(model.links, np.int64)[None, :] - first[0] + first[:, None]
        return _Block(
            pairs, links, np.full(len(pairs), model.latency_s), model.cap_bytes_per_s, names.index(model.transport)
        )
    leave, arrive = cluster.ways(int(src[0]), int(dst[0]))
    from_ports = _ports(cluster, a[:, 0], leave.nic)
    to_ports = _ports(cluster, b[:, 0], arrive.nic)
    path = cluster.fabric.paths(from_ports, to_ports)
    parts = (
        np.array(leave.links, np.int64)[None, :] + cluster.first_links[a[:, 0]][:, None],
        np.where(path >= 0, path + cluster.first_fabric_link, -1),
        np.array(arrive.links, np.int64)[None, :] + cluster.first_links[b[:, 0]][:, None],
    )
    base_s = cluster.spec.transport.latency_s + leave.latency_s + arrive.latency_s
    latency_s = base_s + cluster.hop_latencies_s[path].sum(axis=1) if path.shape[1] else np.full(len(pairs), base_s)
    return _Block(pairs, np.hstack(parts), latency_s, model.cap_bytes_per_s, names.index(model.transport))


def _ports(cluster: "Cluster", nodes: np.ndarray, nic: int) -> Ports:
    return Ports(cluster.first_ports[nodes] + nic, nodes, np.full(len(nodes), nic))
