"""The critical path: what the last end waited for, back to the start, with the cause of each stretch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emu.timeline.meetings import Meetings
from emu.timeline.routes import Ways
from emu.timeline.tiling import LINK_CLASSES
from emu.timeline.views import RankView
from emu.trace import STEP, Op


@dataclass(frozen=True)
class Stretch:
    """One stretch of the path: `kind` is kernel, launch, copy, communication, stall or idle.

    For communication `link` names the slowest link class and link of the way; `because` says who was waited
    for where the path goes on at another rank. A stall's label says what stood still: a paused rank, a
    connection until its retransmission timeout, a link that is down.
    """

    rank: int
    stream: int
    kind: str
    label: str
    start_s: float
    end_s: float
    link: str = ""
    because: str = ""

    @property
    def time_s(self) -> float:
        """Length of the stretch."""
        return self.end_s - self.start_s


@dataclass
class _Place:
    rank: int
    stream: int
    time_s: float


class Walker:
    """Walks back over the rows of all ranks. Stretches tile the path: each ends where the next one starts."""

    def __init__(
        self,
        views: list[RankView],
        meetings: list[dict[int, Meetings]],
        ways: Ways,
        labels: tuple[str, ...],
        link_names: list[str],
        stalls: np.ndarray,
    ) -> None:
        self._views, self._meetings, self._ways = views, meetings, ways
        self._stalls = stalls
        self._labels, self._link_names = labels, link_names
        self._ends: dict[tuple[int, int], np.ndarray] = {}
        self._records: dict[int, np.ndarray] = {}
        self._spans: dict[tuple[int, int], tuple[np.ndarray, list[int], list[int]]] = {}

    def walk(self) -> list[Stretch]:
        """Return the critical path, in order of time."""
        place = self._last()
        path: list[Stretch] = []
        seen: set[tuple[int, int]] = set()
        while place.time_s > 0.0:
            before = place.time_s
            self._back(place, path)
            where = place.rank, place.stream
            if place.time_s < before:
                seen = {where}
            elif where in seen:  # nothing that was recorded explains this moment
                self._back_over_gap(place, path, strictly=True)
            else:
                seen.add(where)
        return path[::-1]

    def _last(self) -> _Place:
        place = _Place(0, 0, 0.0)
        for view in self._views:
            for stream in view.streams:
                ends = self._item_ends(view.rank, stream)
                if len(ends) and ends[-1] > place.time_s:
                    place = _Place(view.rank, stream, float(ends[-1]))
        return place

    def _item_ends(self, rank: int, stream: int) -> np.ndarray:
        """Return the ends of a stream's items that take time, as (end, item) sorted by end."""
        key = rank, stream
        if key not in self._ends:
            view = self._views[rank].streams.get(stream)
            ends = self._views[rank].spans["end_s"][view.items] if view is not None else np.empty(0)
            self._ends[key] = np.maximum.accumulate(ends)
        return self._ends[key]

    def _item_before(self, rank: int, stream: int, time_s: float) -> int:
        """Return the last item that ends no later than `time_s` and takes time, or -1."""
        view = self._views[rank]
        item = int(np.searchsorted(self._item_ends(rank, stream), time_s, side="right")) - 1
        while item >= 0:
            span = view.spans[view.streams[stream].items[item]]
            if span["end_s"] > span["start_s"]:
                break
            item -= 1
        return item

    def _back(self, place: _Place, path: list[Stretch]) -> None:
        """Add what ended at `place`, if it took time there, and move `place` to what that waited for."""
        item = self._item_before(place.rank, place.stream, place.time_s)
        view = self._views[place.rank]
        span = view.spans[view.streams[place.stream].items[item]] if item >= 0 else None
        if span is None or span["end_s"] < place.time_s:
            self._back_over_gap(place, path)
        elif span["op"] in (Op.COMPUTE, Op.ELAPSED):
            self._back_over_kernel(place, path, span)
        elif span["op"] == Op.COPY:
            self._add(place, path, "copy", self._label(span), float(span["start_s"]))
        elif span["op"] == Op.AWAIT:
            self._back_over_await(place, path, span)
        elif span["op"] == Op.WAIT:
            self._back_over_wait(place, path, span, item)
        else:
            self._back_over_collective(place, path, span, item)

    def _back_over_gap(self, place: _Place, path: list[Stretch], strictly: bool = False) -> None:
        """Nothing ran here: the host waited for another stream of this rank, or nothing was there to do."""
        until = np.nextafter(place.time_s, 0.0) if strictly else place.time_s
        best, end = place.stream, 0.0
        for stream in self._views[place.rank].streams:
            item = self._item_before(place.rank, stream, until)
            if item >= 0 and self._item_ends(place.rank, stream)[item] > end:
                best, end = stream, float(self._item_ends(place.rank, stream)[item])
        if end < place.time_s:
            paused = [(a, b) for a, b in self._views[place.rank].pauses.tolist() if end < b and a < place.time_s]
            if paused and paused[-1][1] >= place.time_s:
                self._add(place, path, "stall", "pause", max(end, paused[-1][0]))
            else:
                self._add(place, path, "idle", "", max(end, paused[-1][1] if paused else 0.0))
        if place.time_s == end:
            place.stream = best

    def _back_over_kernel(self, place: _Place, path: list[Stretch], span: np.void) -> None:
        start = float(span["start_s"])
        launched = min(start + float(span["launch_s"]), place.time_s)
        if launched < place.time_s:
            self._add(place, path, "kernel", self._label(span), launched)
        if launched > start:
            self._add(place, path, "launch", self._label(span), start)

    def _back_over_await(self, place: _Place, path: list[Stretch], span: np.void) -> None:
        rows = self._views[place.rank].rows
        if place.rank not in self._records:
            self._records[place.rank] = np.flatnonzero(rows["op"] == Op.RECORD)
        records = self._records[place.rank]
        event = int(np.searchsorted(records, span["row"])) - int(rows["a"][span["row"]])
        target = int(rows["stream"][records[event]])
        if target == place.stream:
            self._add(place, path, "idle", "", float(span["start_s"]))
        place.stream = target

    def _back_over_collective(self, place: _Place, path: list[Stretch], span: np.void, item: int) -> None:
        met = self._meetings[place.rank][place.stream]
        start, last = float(span["start_s"]), float(met.met_s[item])
        if start < last <= place.time_s:
            self._back_to_peer(place, path, span, item)
        else:  # this rank came last, or (such as the root of a broadcast) did not need the last one
            self._communicate(place, path, span, item, start)

    def _back_over_wait(self, place: _Place, path: list[Stretch], span: np.void, item: int) -> None:
        met = self._meetings[place.rank][place.stream]
        own, last = float(met.own_s[item]), float(met.met_s[item])
        if own < last <= place.time_s and met.rank[item] >= 0:
            self._back_to_peer(place, path, span, item)
        else:
            posted = own if 0.0 <= own < place.time_s and np.isfinite(last) else float(span["start_s"])
            self._communicate(place, path, span, item, posted)

    def _back_to_peer(self, place: _Place, path: list[Stretch], span: np.void, item: int) -> None:
        met = self._meetings[place.rank][place.stream]
        last, who = float(met.met_s[item]), int(met.rank[item])
        if last < place.time_s:
            self._communicate(place, path, span, item, last, f"rank {who} came last")
        place.rank, place.stream = who, int(met.stream[item])

    def _communicate(
        self, place: _Place, path: list[Stretch], span: np.void, item: int, start_s: float, because: str = ""
    ) -> None:
        """Add communication back to `start_s`: what stalled in it, and the launch that it began with, apart."""
        met = self._meetings[place.rank][place.stream]
        link, label = self._link(met, item), self._label(span)
        launched = 0.0
        if span["launch_s"] > 0.0 and not because:
            launched = min(float(span["start_s"] + span["launch_s"]), place.time_s)
        for begin, end, what in self._stood_still(place.rank, met, item, max(start_s, launched), place.time_s):
            if end < place.time_s:
                self._add(place, path, "communication", label, end, link, because)
            self._add(place, path, "stall", what, begin, link, because)
        if max(start_s, launched) < place.time_s:
            self._add(place, path, "communication", label, max(start_s, launched), link, because)
        if start_s < place.time_s:
            self._add(place, path, "launch", label, start_s)

    def _stood_still(
        self, rank: int, met: Meetings, item: int, start_s: float, end_s: float
    ) -> list[tuple[float, float, str]]:
        """Return disjoint (begin, end, what) within an interval, the last first."""
        late = self._stalls[(self._stalls["rank"] == rank) & (self._stalls["start_s"] < end_s)]
        found = [(float(e["start_s"]), float(e["end_s"]), f"timeout of rank {e['src']} to rank {e['dst']}")
                 for e in late]
        if met.flap[item] >= 0:
            name = self._link_names[self._ways.flaps[int(met.flap[item])].link]
            found += [(begin, end, f"{name} down") for begin, end in met.down[int(met.flap[item])].tolist()]
        disjoint = []
        for begin, end, what in sorted(found, key=lambda each: -each[1]):
            begin, end = max(begin, start_s), min(end, end_s)
            if begin < end:
                disjoint.append((begin, end, what))
                end_s = begin
        return disjoint

    def _link(self, met: Meetings, item: int) -> str:
        way = self._ways.known[int(met.way[item])]
        return f"{LINK_CLASSES[way.link_class]} {self._link_names[way.link]}" if way.link >= 0 else ""

    def _add(
        self,
        place: _Place,
        path: list[Stretch],
        kind: str,
        label: str,
        start_s: float,
        link: str = "",
        because: str = "",
    ) -> None:
        path.append(Stretch(place.rank, place.stream, kind, label, start_s, place.time_s, link, because))
        place.time_s = start_s

    def _label(self, span: np.void) -> str:
        label = int(span["label"])
        if span["op"] == Op.WAIT:
            label = self._around(int(span["rank"]), int(span["stream"]), int(span["row"]))
        return self._labels[label] if 0 <= label < len(self._labels) else "message"

    def _around(self, rank: int, stream: int, row: int) -> int:
        """Return the label of the innermost span around a row, but for that of the step; -1 without one."""
        if (rank, stream) not in self._spans:
            self._spans[rank, stream] = self._nesting(rank, stream)
        spans, ends, parents = self._spans[rank, stream]
        at = int(np.searchsorted(spans["row"], row)) - 1
        while at >= 0 and ends[at] < row:
            at = parents[at]
        return int(spans["label"][at]) if at >= 0 else -1

    def _nesting(self, rank: int, stream: int) -> tuple[np.ndarray, list[int], list[int]]:
        """Return the spans of a stream but for steps, the row where each ends, and the span around each."""
        view = self._views[rank]
        mine = (view.spans["op"] == Op.BEGIN) & (view.spans["stream"] == stream)
        spans = view.spans[mine & (view.spans["flag"] & STEP == 0)]
        rows, ends = spans["row"].tolist(), view.end_rows[spans["row"]].tolist()
        parents, around = [], [-1]
        for at, row in enumerate(rows):
            while around[-1] >= 0 and ends[around[-1]] < row:
                around.pop()
            parents.append(around[-1])
            around.append(at)
        return spans, ends, parents


def summarize(path: list[Stretch]) -> list[dict]:
    """Sum a path by (kind, label, link), the longest first; `ranks` are those it passes through."""
    sums: dict[tuple[str, str, str], list] = {}
    for stretch in path:
        entry = sums.setdefault((stretch.kind, stretch.label, stretch.link), [0.0, 0, set()])
        entry[0] += stretch.time_s
        entry[1] += 1
        entry[2].add(stretch.rank)
    rows = [
        {"kind": kind, "label": label, "link": link, "time_s": time_s, "count": count, "ranks": sorted(ranks)}
        for (kind, label, link), (time_s, count, ranks) in sums.items()
    ]
    return sorted(rows, key=lambda row: (-row["time_s"], row["kind"], row["label"], row["link"]))


def stragglers(path: list[Stretch]) -> dict[int, int]:
    """Count how often the path moved to each rank because that rank came last."""
    counts: dict[int, int] = {}
    for stretch in path:
        if stretch.because:
            rank = int(stretch.because.split()[1])
            counts[rank] = counts.get(rank, 0) + 1
    return dict(sorted(counts.items()))
