"""TCP over time as counters of a Chrome trace: windows of connections, queues of ports."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from emu.timeline import Timeline


def counters(timeline: Timeline, end_s: float, most: int) -> tuple[list[dict], str]:
    """Return at most `most` counter events up to `end_s`, and what is left out."""
    if not len(timeline.flows):
        return [], ""
    lines = len(timeline.raw.windows) + len(timeline.raw.queues)
    events = list(islice(_events(timeline, end_s), most))
    return events, f"{lines - most} of {lines} TCP windows and queues" if lines > most == len(events) else ""


def _events(timeline: Timeline, end_s: float) -> Iterator[dict]:
    for name, log in timeline.port_queues().items():
        for line in log[log["time_s"] < end_s]:
            yield _counter(timeline, f"queue {name}", line["time_s"], {"bytes": float(line["bytes"])})
    for (src, dst), log in timeline.tcp_windows().items():
        for line in log[log["time_s"] < end_s]:
            sizes = {"cwnd": float(line["cwnd_bytes"]), "ssthresh": float(line["ssthresh_bytes"])}
            yield _counter(timeline, f"window {src} to {dst}", line["time_s"], sizes)


def _counter(timeline: Timeline, name: str, time_s: float, values: dict[str, float]) -> dict:
    at_us = round(float(time_s) * 1e9) / 1000
    return {"ph": "C", "pid": timeline.world_size, "ts": at_us, "name": name, "args": values}
