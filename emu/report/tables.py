"""A timeline as tables for a terminal. They are returned, never printed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from emu.timeline import Timeline, stragglers, summarize
from emu.timeline.table import by_link, step_rows
from emu.units import format_bandwidth, format_bytes, format_time

if TYPE_CHECKING:
    from rich.console import Group


def render(*renderables: Any, width: int = 110) -> str:
    """Return renderables as plain text."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(*renderables, sep="\n")
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def grid(
    title: str | None,
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
    notes: bool = False,
) -> Group:
    """Return a table whose first column stands to the left and whose others stand to the right.

    With `notes` the last column holds text, which may take several lines.
    """
    from rich import box
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(titles):
        is_note = notes and i == len(titles) - 1
        table.add_column(name, justify="right" if i and not is_note else "left", no_wrap=not is_note)
    for row in rows:
        table.add_row(*map(escape, row))
    around = [Text(text, style=style) for text, style in ((title, "italic"), (caption, "dim")) if text]
    return Group(*around[: 1 if title else 0], table, *around[1 if title else 0 :])


def step_table(timeline: Timeline, most_ranks: int = 16, title: str = "an average step") -> Group:
    """Return where an average step went, a row a rank (at most `most_ranks`) and one for all."""
    shown = [(str(rank), timeline.step_of(rank)) for rank in range(min(timeline.world_size, most_ranks))]
    links = by_link(timeline.step)
    notes = [f"exposed communication: {links}"] if links else []
    if timeline.world_size > len(shown):
        notes.append(f"{timeline.world_size - len(shown)} more ranks are in 'all'")
    overlap = timeline.overlap_fraction()
    if overlap is not None:
        notes.append(f"hidden communication: {100 * overlap:.1f}%")
    return grid(title, *step_rows(timeline.step, shown), "; ".join(notes))


def link_table(timeline: Timeline, most: int = 12) -> Group:
    """Return what the most used links carried."""
    use = timeline.link_use()
    rows = [
        [
            one.name,
            one.kind,
            format_bandwidth(one.bandwidth_bytes_per_s),
            format_bytes(one.bytes),
            f"{100 * one.utilisation:.1f}%",
            "" if one.busy_s is None else format_time(one.busy_s),
        ]
        for one in use[:most]
    ]
    left = len(use) - len(rows)
    titles = ["link", "kind", "bandwidth", "carried", "used", "busy"]
    return grid("links", titles, rows, f"{left} more links carried less" if left > 0 else "")


def path_table(timeline: Timeline, most: int = 12) -> Group:
    """Return what the critical path is made of, the longest first."""
    path = timeline.critical_path
    causes, total = summarize(path), sum(stretch.time_s for stretch in path)
    rows = [
        [
            f"{row['kind']} {row['label']}".strip(),
            row["link"],
            format_time(row["time_s"]),
            f"{100 * row['time_s'] / total:.1f}%",
            str(row["count"]),
            _ranks(row["ranks"]),
        ]
        for row in causes[:most]
    ]
    late = ", ".join(f"rank {rank} ({count}x)" for rank, count in _latest(path, 4))
    notes = [f"waited for: {late}"] if late else []
    if len(causes) > len(rows):
        notes.append(f"{len(causes) - len(rows)} more causes")
    return grid("critical path", ["cause", "over", "time", "share", "times", "on rank"], rows, "; ".join(notes))


def _latest(path: list, most: int) -> list[tuple[int, int]]:
    counts = stragglers(path)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) > 4:
        return f"{len(ranks)} ranks"
    return ", ".join(map(str, ranks))
