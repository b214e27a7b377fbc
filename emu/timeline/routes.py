"""What a message's way through the cluster is called: its link class and its slowest link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from emu.timeline.tiling import LINK_CLASSES
from emu.trace import Op, Trace

NOWHERE = 0  # way of a rank that sends to nobody but itself


@dataclass(frozen=True)
class Way:
    """How fast a route is at best, the class that its transport belongs to, and its slowest link's index.

    `flap` is the number of the declared flap of one of its links, -1 without one.
    """

    bytes_per_s: float
    link_class: int
    link: int
    flap: int = -1


class Ways:
    """Numbered ways of pairs of ranks; the slowest of several is what a collective is told to run over."""

    def __init__(self, cluster: Any, trace: Trace) -> None:
        self._cluster = cluster
        self._trace = trace
        self._numbers: dict[Way, int] = {}
        self._pairs: dict[tuple[int, int], int] = {}
        self._peers: dict[int, np.ndarray] = {}
        self._positions: dict[int, dict[int, int]] = {}
        self.known: list[Way] = []
        self.flaps = tuple(getattr(cluster, "link_flaps", ()))
        self._flap_of = {flap.link: number for number, flap in enumerate(self.flaps)}
        self._number(Way(float("inf"), len(LINK_CLASSES) - 1, -1))

    def _number(self, way: Way) -> int:
        if way not in self._numbers:
            self._numbers[way] = len(self.known)
            self.known.append(way)
        return self._numbers[way]

    def pair(self, src: int, dst: int) -> int:
        """Return the number of the way from one rank to another."""
        if src == dst:
            return NOWHERE
        number = self._pairs.get((src, dst))
        if number is None:
            number = self._pairs[src, dst] = self._number(self.describe(self._cluster.route(src, dst)))
        return number

    def describe(self, route: Any) -> Way:
        """Return the way that a route is."""
        rates = [self._cluster.links[link].bandwidth_bytes_per_s for link in route.links]
        slowest = min(range(len(rates)), key=rates.__getitem__) if rates else -1
        rate = min([*rates, route.cap_bytes_per_s])
        kind = self._cluster.transport(route.transport).kind
        link_class = LINK_CLASSES.index(kind) if kind in LINK_CLASSES else len(LINK_CLASSES) - 1
        flap = max((self._flap_of.get(link, -1) for link in route.links), default=-1)
        return Way(rate, link_class, route.links[slowest] if rates else -1, flap)

    def order(self, number: int) -> tuple[float, int]:
        """Sort key of a way: slow ones first."""
        return self.known[number].bytes_per_s, number

    def flap_order(self, number: int) -> tuple[bool, int]:
        """Sort key of a way: those that flap first."""
        return self.known[number].flap < 0, number

    def of_call(self, template: int, group: int, rank: int) -> list[int]:
        """Return the ways on which `rank` sends or receives in a call of a template."""
        members = self._trace.groups[group]
        if group not in self._positions:
            self._positions[group] = {member: i for i, member in enumerate(members)}
        if template not in self._peers:
            rows = self._trace.templates[template].rows
            messages = (rows["op"] == Op.SEND) | (rows["op"] == Op.RECV)
            self._peers[template] = np.unique(rows["a"][messages])
        mine = self._positions[group][rank]
        peers = [members[(mine + int(a)) % len(members)] for a in self._peers[template]]
        return [self.pair(rank, peer) for peer in peers]

    def of_rows(self, rank: int, rows: np.ndarray, key: Callable[[int], tuple]) -> np.ndarray:
        """Return the way of each SEND, RECV and CALL row of a rank, NOWHERE for other rows.

        Of the several ways of a CALL it is the first by `key`.
        """
        ways = np.full(len(rows), NOWHERE, dtype=np.int64)
        op = rows["op"]
        for kind in (Op.SEND, Op.RECV):
            at = np.flatnonzero((op == kind) & (rows["a"] >= 0))
            peers, where = np.unique(rows["a"][at], return_inverse=True)
            pairs = [self.pair(rank, int(p)) if kind == Op.SEND else self.pair(int(p), rank) for p in peers]
            ways[at] = np.array(pairs, dtype=np.int64)[where]
        at = np.flatnonzero(op == Op.CALL)
        calls = rows["a"][at].astype(np.int64) << 32 | rows["b"][at]
        distinct, where = np.unique(calls, return_inverse=True)
        known = [min(self.of_call(int(c >> 32), int(c & 0xFFFFFFFF), rank), key=key, default=NOWHERE) for c in distinct]
        ways[at] = np.array(known, dtype=np.int64)[where]
        return ways
