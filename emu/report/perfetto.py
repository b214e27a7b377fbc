"""A timeline as Chrome trace JSON, which ui.perfetto.dev opens: a row a GPU and stream, a row a busy link.

Times are rounded to whole nanoseconds, so that spans that touch or nest still do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
    on_links = list(_link_events(timeline, cut))
    note = cut.note
    if len(on_links) > for_links:
        note = "; ".join(
            filter(None, [note, f"{len(on_links) - for_links} of {len(on_links)} spans on links"])
        )
        on_links = sorted(on_links, key=lambda event: (event["ts"], event["tid"]))[:for_links]
    names = [*_rank_names(timeline, cut), *_link_names(timeline, on_links)]
    other = {"cluster": timeline.cluster.name, "gpus": timeline.world_size, "left_out": note or "nothing"}
    if note:
        names.append({"ph": "I", "s": "g", "pid": 0, "tid": 0, "ts": 0, "name": f"left out: {note}"})
    return {"displayTimeUnit": "ns", "otherData": other, "traceEvents": names + events + on_links}


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


def _link_events(timeline: Timeline, cut: _Cut) -> Iterator[dict]:
    """Yield stretches in which a link carried the same number of messages or more, named by what they are."""
    flows, labels = timeline.flows, timeline.labels
    if not len(flows):
        return
    for link, index in link_flows(flows, timeline.raw.routes).items():
        mine = flows[index]
        mine = mine[mine["start_s"] < cut.end_s]
        start, end = _nanoseconds(mine["start_s"]), _nanoseconds(mine["end_s"])
        took = end > start
        start, end, mine = start[took], end[took], mine[took]
        if not len(mine):
            continue
        # A new stretch begins where the link had fallen idle, or where the messages bear another label.
        reach = np.maximum.accumulate(end)
        fresh = np.append(True, (start[1:] > reach[:-1]) | (mine["label"][1:] != mine["label"][:-1]))
        first = np.flatnonzero(fresh)
        until = np.maximum.reduceat(end, first)
        until = np.minimum(until, np.append(start[first[1:]], until[-1]))
        sums = np.add.reduceat(mine["bytes"], first).tolist()
        counts = np.diff(np.append(first, len(mine))).tolist()
        for begin, stop, label, nbytes, count in zip(
            start[first].tolist(), until.tolist(), mine["label"][first].tolist(), sums, counts, strict=True
        ):
            if stop > begin:
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
