"""The accounting of a step as a plain text table, one column a part, one row a rank and one in all."""

from __future__ import annotations

from collections.abc import Sequence

from emu.units import format_time

COLUMNS = (
    ("step", "time_s"),
    ("compute", "compute_s"),
    ("launch", "launch_gap_s"),
    ("copies", "copy_s"),
    ("exposed comm.", "exposed_communication_s"),
    ("slower ranks", "straggler_wait_s"),
    ("stalls", "stall_s"),
    ("bubble", "bubble_s"),
    ("idle", "idle_s"),
)


def columns(steps: Sequence[dict]) -> list[tuple[str, str]]:
    """Return the (title, key) of the columns worth showing: a part that nobody has is left out."""
    always = ("time_s", "compute_s", "exposed_communication_s", "straggler_wait_s")
    return [(title, key) for title, key in COLUMNS if key in always or any(step[key] for step in steps)]


def cell(step: dict, key: str) -> str:
    """Format one figure, with its share of the step; parts below it are percentages that sum to 100."""
    value = step[key]
    if key == "time_s":
        return format_time(value)
    if not value:
        return "-"
    return f"{format_time(value)} {100 * value / step['time_s']:4.1f}%"


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align cells: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))
        )

    return "\n".join([line(titles), "  ".join("-" * w for w in widths), *map(line, rows)]).rstrip()


def step_table(average: dict, by_rank: Sequence[tuple[str, dict]]) -> str:
    """Return the table of an average step: a row a rank, then all ranks."""
    shown = columns([average, *(step for _, step in by_rank)])
    rows = [[name, *(cell(step, key) for _, key in shown)] for name, step in [*by_rank, ("all", average)]]
    links = ", ".join(f"{name} {format_time(s)}" for name, s in average["exposed_by_link"].items() if s)
    note = f"\nexposed communication by link: {links}" if links else ""
    return text_table(["rank", *(title for title, _ in shown)], rows) + note
