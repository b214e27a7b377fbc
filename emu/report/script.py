"""What `emu run` tells of a script: the same as one object and as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from emu.timeline import Timeline
from emu.timeline.table import text_table
from emu.trace import Op, Trace
from emu.units import counted, format_bytes, format_time

SHOWN = 16  # ranks with a line of their own


def summary(plan: Any, ended: Any, timeline: Timeline, folder: Path) -> dict[str, Any]:
    """Return what a reader wants to know of a script's trace and its timeline, ready for JSON."""
    trace: Trace = ended.trace
    costed = any(np.isin(rows["op"], (Op.COMPUTE, Op.ELAPSED)).any() for rows in trace.ranks)
    found = {
        "script": str(plan.script.argv[0]),
        "arguments": list(plan.script.argv[1:]),
        "status": ended.status,
        "ranks": trace.world_size,
        "cluster": {"name": plan.cluster.name, "sha256": plan.cluster.sha256, "profile": plan.profile},
        "time_s": timeline.end_s,
        "rank_end_s": [float(s) for s in timeline.raw.rank_end_s],
        "bytes_sent_per_rank": [int(n) for n in timeline.bytes_sent],
        "messages": int(timeline.raw.counters["messages"]),
        "calls": calls(trace, timeline),
        "marks": dict(trace.header.get("marks", {})),
        "decisions": dict(trace.header.get("decisions", {})),
        "computation": f"measured, {plan.speedup:g} times faster" if plan.speedup else "uncosted",
        "repeatable": plan.speedup is None,
        "has_computation": costed,
        "output": str(folder),
        "trace": str(folder / "trace.emu"),
    }
    return found


def calls(trace: Trace, timeline: Timeline) -> list[dict[str, Any]]:
    """Return, by kind of call, how often it was made and how long ranks were in it, all ranks together."""
    spans, labels = timeline.raw.spans, timeline.raw.labels
    rows: dict[str, dict[str, Any]] = {}
    for op, name in ((Op.CALL, None), (Op.BEGIN, None), (Op.WAIT, "messages waited for"), (Op.ELAPSED, "computation")):
        of_op = spans[(spans["op"] == op) & ((spans["depth"] == 0) | (op != Op.WAIT))]
        named = np.array([name or labels[i] for i in of_op["label"]])
        for label in np.unique(named):
            found = of_op[named == label]
            if len(found):
                time_s = float((found["end_s"] - found["start_s"]).sum())
                row = rows.setdefault(str(label), {"call": str(label), "calls": 0, "time_s": 0.0})
                row["calls"] += len(found)
                row["time_s"] += time_s
    return sorted(rows.values(), key=lambda row: -row["time_s"])


def write(found: dict[str, Any], timeline: Timeline, trace: Trace, folder: Path) -> None:
    """Write trace, summary and timeline."""
    from emu.report.perfetto import write_perfetto
    from emu.report.summary import write_json

    trace.save(folder / "trace.emu")
    write_perfetto(timeline, folder / "timeline.json")
    write_json(found, folder / "summary.json")


def text(found: dict[str, Any], timeline: Timeline) -> str:
    """Return the summary for people."""
    ranks = found["ranks"]
    lines = [
        f"{found['script']} on {ranks} rank{'s' * (ranks > 1)} of {found['cluster']['name']}: "
        f"{format_time(found['time_s'])} of emulated time, {counted(found['messages'], 'message')}, "
        f"{format_bytes(sum(found['bytes_sent_per_rank']))} sent",
        "computation: " + (
            f"{found['computation']} (processor time between MPI calls: not repeatable)" if not found["repeatable"]
            else "uncosted: only communication takes emulated time; --compute measured --speedup K adds it"
        ),
    ]  # fmt: skip
    if "order" in found["marks"]:
        lines.append(
            f"order: the script asked for time or order; its answers hold on {found['marks']['order']} alone"
        )
    if found["calls"]:
        lines += ["", text_table(
            ["call", "calls", "time in all ranks"],
            [
                [row["call"], str(row["calls"]), format_time(row["time_s"])] for row in found["calls"]
            ],
        )]  # fmt: skip
    lines += ["", text_table(
        ["rank", "end", "sent"],
        [
            [str(rank), format_time(end), format_bytes(sent)]
            for rank, (end, sent) in enumerate(zip(found["rank_end_s"], found["bytes_sent_per_rank"], strict=True))
            if rank < SHOWN
        ],
    )]  # fmt: skip
    return "\n".join([*lines, "", f"written: {found['output']} (trace.emu, summary.json, timeline.json)"])
