"""A timeline as one HTML page that needs nothing else: steps as bars, links over time, the critical path."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from emu.report.plots import COLOURS
from emu.timeline import Timeline, summarize
from emu.timeline.table import COLUMNS, by_link, columns, step_rows
from emu.trace import write_whole
from emu.units import format_bandwidth, format_bytes, format_time

MOST_RANKS, MOST_STEPS, MOST_LINKS, MOST_CAUSES = 32, 100, 12, 15
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222 }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .15em .8em; text-align: right; border-bottom: 1px solid #e4e4e4; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
.bar { display: flex; height: 1.1em; flex: 1 } .row { display: flex; align-items: center; gap: .6em; margin: 2px 0 }
.name { width: 5em; text-align: right; color: #555 } .key { display: inline-block; width: .9em; height: .9em }
.legend span { margin-right: 1.2em } .note { color: #555 } svg { background: #f7f7f7; width: 100%; height: 3.2em }
"""


def html_page(timeline: Timeline, title: str) -> str:
    """Return the page as text."""
    count = len(timeline.windows.start_s)
    steps = "the whole run as one step" if timeline.windows.whole_run else f"{count} step{'s' * (count != 1)}"
    about = f"{timeline.world_size} GPUs on {timeline.cluster.name}, {steps}, {format_time(timeline.end_s)} in all"
    parts = [
        f"<h1>{escape(title)}</h1><p>{escape(about)}. All times are emulated.</p>",
        "<h2>Where an average step goes</h2>",
        _average(timeline),
        _each_step(timeline) if count > 1 else "",
        "<h2>Critical path: what the end waited for</h2>",
        _path(timeline),
        "<h2>Links</h2>",
        _links(timeline),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def write_html(timeline: Timeline, path: str | os.PathLike, title: str) -> None:
    """Write the page to `path`, whole or not at all."""
    write_whole(Path(path), html_page(timeline, title).encode())


def _average(timeline: Timeline) -> str:
    ranks = [(str(r), timeline.step_of(r)) for r in range(min(timeline.world_size, MOST_RANKS))]
    bars = [_bar(f"GPU {name}", step, timeline.step["time_s"]) for name, step in ranks]
    bars.append(_bar("all", timeline.step, timeline.step["time_s"]))
    titles, rows = step_rows(timeline.step, ranks)
    notes = [f"exposed communication: {by_link(timeline.step)}"] if by_link(timeline.step) else []
    overlap = timeline.overlap_fraction()
    if overlap is not None:
        notes.append(f"{100 * overlap:.1f} % of all communication is hidden")
    if timeline.world_size > len(ranks):
        notes.append(f"{timeline.world_size - len(ranks)} more GPUs are in 'all'")
    note = f'<p class="note">{escape("; ".join(notes))}</p>'
    return _legend([step for _, step in ranks]) + "".join(bars) + note + _table(titles, rows)


def _each_step(timeline: Timeline) -> str:
    steps = timeline.steps()
    longest = max(step["time_s"] for step in steps)
    bars = [_bar(f"step {step['index']}", step, longest) for step in steps[:MOST_STEPS]]
    left = len(steps) - len(bars)
    note = f'<p class="note">{left} more steps are left out</p>' if left else ""
    return "<h2>Each step, as the mean over all GPUs</h2>" + "".join(bars) + note


def _legend(steps: Sequence[dict]) -> str:
    shown = [(title, key) for title, key in columns(steps) if key != "time_s"]
    keys = (
        f'<span><i class="key" style="background:{COLOURS[key]}"></i> {escape(title)}</span>' for title, key in shown
    )
    return f'<p class="legend">{"".join(keys)}</p>'


def _bar(name: str, step: dict, longest_s: float) -> str:
    pieces = "".join(
        f'<div style="width:{100 * step[key] / longest_s:.3f}%;background:{COLOURS[key]}" '
        f'title="{escape(title)}: {escape(format_time(step[key]))}"></div>'
        for title, key in COLUMNS
        if key != "time_s" and step[key] > 0
    )
    return (
        f'<div class="row"><span class="name">{escape(name)}</span><div class="bar">{pieces}</div>'
        f'<span class="name">{escape(format_time(step["time_s"]))}</span></div>\n'
    )


def _path(timeline: Timeline) -> str:
    path = timeline.critical_path
    total_s = sum(stretch.time_s for stretch in path)
    rows = [
        [
            f"{row['kind']} {row['label']}".strip(),
            row["link"],
            format_time(row["time_s"]),
            f"{100 * row['time_s'] / total_s:.1f}%",
            str(row["count"]),
            f"{len(row['ranks'])} GPUs" if len(row["ranks"]) > 4 else ", ".join(map(str, row["ranks"])),
        ]
        for row in summarize(path)[:MOST_CAUSES]
    ]
    return _table(["cause", "over", "time", "share", "times", "on GPU"], rows)


def _links(timeline: Timeline) -> str:
    use = timeline.link_use()
    rows = [
        [
            one.name,
            one.kind,
            format_bandwidth(one.bandwidth_bytes_per_s),
            format_bytes(one.bytes),
            f"{100 * one.utilisation:.1f}%",
        ]
        for one in use[:MOST_LINKS]
    ]
    left = len(use) - len(rows)
    note = f'<p class="note">{left} more links carried less</p>' if left > 0 else ""
    drawn = ""
    if len(timeline.flows):
        _, over_time = timeline.link_use_over_time(200)
        drawn = "<h2>Links over time</h2>" + "".join(
            f"<p>{escape(one.name)}<br>{_curve(over_time[one.name])}</p>" for one in use[:MOST_LINKS]
        )
    return _table(["link", "kind", "bandwidth", "carried", "used"], rows) + note + drawn


def _curve(fractions: np.ndarray) -> str:
    """Draw a fraction over time as a filled curve; the box's height is the whole bandwidth."""
    heights = np.clip(fractions, 0.0, 1.0)
    points = " ".join(f"{i},{100 - 100 * h:.1f}" for i, h in enumerate(heights))
    return (
        f'<svg viewBox="0 0 {len(heights) - 1} 100" preserveAspectRatio="none">'
        f'<polygon fill="#4c78a8" points="0,100 {points} {len(heights) - 1},100"/></svg>'
    )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>\n{body}\n</table>"
