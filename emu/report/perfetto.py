"""A timeline as Chrome trace JSON, which ui.perfetto.dev opens: a row a GPU and stream, a row a busy link.

Times are rounded to whole nanoseconds, so that spans that touch or nest still do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from emu.report.counters import counters
from emu.timeline import Timeline
from emu.timeline.links import link_flows
from emu.trace import Op, write_whole

MOST_EVENTS = 100_000  # about 15 MB


@dataclass(frozen=True)
class _Cut:
    """What is shown: the first `ranks` ranks, up to `end_s`, at most `most` spans."""

    ranks: int
    end_s: float
    most: int
    note: str


def perfetto(timeline: Timeline, most_events: int = MOST_EVENTS) -> dict:
    """Return the timeline as a Chrome trace object of at most `most_events` spans.

    What does not fit is left out by whole steps, then by ranks; `otherData.left_out` says what.
    """
    for_links = most_events // 4 if len(timeline.flows) else 0
    cut = _cut(timeline, most_events - for_links)
    events = list(_rank_events(timeline, cut))
    on_links, note = _link_events(timeline, cut, for_links)
    of_tcp, untold = counters(timeline, cut.end_s, most_events // 4)
    note = "; ".join(filter(None, [cut.note, note, untold]))
    names = [*_rank_names(timeline, cut), *_link_names(timeline, on_links)]
    other = {"cluster": timeline.cluster.name, "gpus": timeline.world_size, "left_out": note or "nothing"}
    if note:
        names.append({"ph": "I", "s": "g", "pid": 0, "tid": 0, "ts": 0, "name": f"left out: {note}"})
    return {"displayTimeUnit": "ns", "otherData": other, "traceEvents": names + events + on_links + of_tcp}


def write_perfetto(timeline: Timeline, path: str | os.PathLike, most_events: int = MOST_EVENTS) -> dict:
    """Write the timeline to `path`, whole or not at all; return what `perfetto` said about it."""
    trace = perfetto(timeline, most_events)
    write_whole(Path(path), json.dumps(trace, separators=(",", ":")).encode())
    return trace["otherData"]


def _cut(timeline: Timeline, most: int) -> _Cut:
    """Choose what to show: as many whole steps as fit of all ranks, else of half of them, and so on."""
    spans, world = timeline.spans, timeline.world_size
    if len(spans) <= most:
        return _Cut(world, np.inf, most, "")
    ends = timeline.windows.end_s
    ranks = world
    while True:
        starts = np.sort(spans["start_s"][spans["rank"] < ranks])
        fitting = int(np.searchsorted(np.searchsorted(starts, ends, side="left"), most, side="right"))
        if len(starts) <= most:
            end_s, steps = np.inf, len(ends)
        else:
            end_s, steps = (float(ends[fitting - 1]) if fitting else float(starts[most])), fitting
        if fitting or len(starts) <= most or ranks == 1:
            break
        ranks //= 2
    shown = int(np.searchsorted(starts, end_s, side="left"))
    left = [f"{len(spans) - shown} of {len(spans)} spans"]
    if steps < len(ends):
        left.append(f"what starts after {end_s:.9g} s ({len(ends) - steps} of {len(ends)} steps)")
    if ranks < world:
        left.append(f"GPUs {ranks} to {world - 1}")
    return _Cut(ranks, end_s, most, ": ".join([left[0], ", ".join(left[1:])]))


def _nanoseconds(times: np.ndarray) -> np.ndarray:
    return np.rint(times * 1e9).astype(np.int64)


def _rank_events(timeline: Timeline, cut: _Cut) -> Iterator[dict]:
    spans = timeline.spans
    spans = spans[(spans["rank"] < cut.ranks) & (spans["start_s"] < cut.end_s)]
    start, end = _nanoseconds(spans["start_s"]), _nanoseconds(spans["end_s"])
    shown = np.flatnonzero(end > start)
    order = shown[np.lexsort((-end[shown], start[shown], spans["stream"][shown], spans["rank"][shown]))]
    categories = {int(op): op.name.lower() for op in Op} | {int(Op.BEGIN): "span", int(Op.CALL): "collective"}
    columns = [spans[name][order].tolist() for name in ("rank", "stream", "op", "label", "index", "bytes")]
    labels = timeline.labels
    for begin, until, rank, stream, op, label, index, nbytes in zip(
        start[order].tolist(), end[order].tolist(), *columns, strict=True
    ):
        name = labels[label] if 0 <= label < len(labels) and op not in (Op.WAIT, Op.AWAIT) else "wait"
        event = {
            "ph": "X",
            "pid": rank,
            "tid": stream,
            "ts": begin / 1000,
            "dur": (until - begin) / 1000,
            "name": f"{name} {index}" if op == Op.BEGIN and index >= 0 else name,
            "cat": categories[op],
        }
        if nbytes:
            event["args"] = {"bytes": nbytes}
        yield event


def _link_events(timeline: Timeline, cut: _Cut, most: int) -> tuple[list[dict], str]:
    """Return the stretches of links, those that carried most first until `most` is full, and what is left out."""
    if not len(timeline.flows):
        return [], ""
    carried = timeline.raw.link_bytes
    found = link_flows(timeline.flows, timeline.raw.routes)
    events: list[dict] = []
    for shown, link in enumerate(sorted(found, key=lambda link: (-carried[link], link))):
        stretches = _stretches(timeline.flows[found[link]], cut.end_s)
        room = most - len(events)
        if len(stretches[0]) > room and shown:
            return events, f"{len(found) - shown} of {len(found)} links, those that carried least"
        events += _stretch_events(timeline, link, [column[:room] for column in stretches])
        if len(stretches[0]) > room:
            return (
                events,
                f"{len(found) - 1} of {len(found)} links, and most of {timeline.cluster.links[link].name}",
            )
    return events, ""


def _stretches(flows: np.ndarray, end_s: float) -> tuple[np.ndarray, ...]:
    """Merge a link's messages, in order of start, into stretches: start, end, label, messages, bytes.

    A stretch ends where the link falls idle, or where a message of another label begins.
    """
    flows = flows[flows["start_s"] < end_s]
    start, end = _nanoseconds(flows["start_s"]), _nanoseconds(flows["end_s"])
    took = end > start
    start, end, flows = start[took], end[took], flows[took]
    if not len(flows):
        return (start,) * 5
    reach = np.maximum.accumulate(end)
    fresh = np.append(True, (start[1:] > reach[:-1]) | (flows["label"][1:] != flows["label"][:-1]))
    first = np.flatnonzero(fresh)
    until = np.maximum.reduceat(end, first)
    until = np.minimum(until, np.append(start[first[1:]], until[-1]))
    counts = np.diff(np.append(first, len(flows)))
    columns = start[first], until, flows["label"][first], counts, np.add.reduceat(flows["bytes"], first)
    return tuple(column[until > start[first]] for column in columns)


def _stretch_events(timeline: Timeline, link: int, stretches: Sequence[np.ndarray]) -> Iterator[dict]:
    labels = timeline.labels
    columns = (column.tolist() for column in stretches)
    for begin, stop, label, count, nbytes in zip(*columns, strict=True):
        yield {
            "ph": "X",
            "pid": timeline.world_size,
            "tid": link,
            "ts": begin / 1000,
            "dur": (stop - begin) / 1000,
            "name": labels[label] if 0 <= label < len(labels) else "message",
            "cat": "link",
            "args": {"messages": count, "bytes": nbytes},
        }


def _rank_names(timeline: Timeline, cut: _Cut) -> Iterator[dict]:
    streams = timeline.trace.streams
    spans = timeline.spans
    used = np.unique(spans["rank"].astype(np.int64) << 8 | spans["stream"])
    for rank in range(cut.ranks):
        yield _name("process_name", rank, 0, f"GPU {rank}")
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
        for stream in (used[(used >> 8) == rank] & 255).tolist():
            yield _name("thread_name", rank, stream, streams[stream])


def _link_names(timeline: Timeline, on_links: list[dict]) -> Iterator[dict]:
    if not on_links:
        return
    pid = timeline.world_size
    yield _name("process_name", pid, 0, "links")
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for link in sorted({event["tid"] for event in on_links}):
        yield _name("thread_name", pid, link, timeline.cluster.links[link].name)


def _name(kind: str, pid: int, tid: int, name: str) -> dict:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
