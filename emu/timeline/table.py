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


DUST = 1e-12  # parts below this share of a step are rounding, not time


def columns(steps: Sequence[dict]) -> list[tuple[str, str]]:
    """Return the (title, key) of the columns worth showing: a part that nobody has is left out."""
    always = ("time_s", "compute_s", "exposed_communication_s", "straggler_wait_s")
    return [(title, key) for title, key in COLUMNS if key in always or any(_counts(step, key) for step in steps)]


def _counts(step: dict, key: str) -> bool:
    return step[key] > DUST * step["time_s"]


def cells(step: dict, keys: Sequence[str]) -> list[str]:
    """Format figures as times; a part that is nothing is a dash."""
    return [format_time(step[key]) if _counts(step, key) or key == "time_s" else "-" for key in keys]


def shares(step: dict, keys: Sequence[str]) -> list[str]:
    """Format figures as shares of the step."""
    whole = step["time_s"] or 1.0
    return [f"{100 * step[key] / whole:.1f}%" if _counts(step, key) else "-" for key in keys]


def step_rows(average: dict, by_rank: Sequence[tuple[str, dict]]) -> tuple[list[str], list[list[str]]]:
    """Return titles and rows of the table of an average step: a row a rank, all ranks, and all as shares."""
    shown = columns([average, *(step for _, step in by_rank)])
    keys = [key for _, key in shown]
    rows = [[name, *cells(step, keys)] for name, step in [*by_rank, ("all", average)]]
    return ["rank", *(title for title, _ in shown)], [*rows, ["", *shares(average, keys)]]


def text_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align cells: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [titles, *rows]) for i in range(len(titles))]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True)))

    return "\n".join([line(titles), "  ".join("-" * w for w in widths), *map(line, rows)]).rstrip()


def by_link(step: dict) -> str:
    """Tell over which links communication was exposed; empty where none was."""
    least_s = DUST * step["time_s"]
    return ", ".join(f"{name} {format_time(s)}" for name, s in step["exposed_by_link"].items() if s > least_s)


def step_table(average: dict, by_rank: Sequence[tuple[str, dict]]) -> str:
    """Return the table of an average step: a row a rank, then all ranks."""
    links = by_link(average)
    note = f"\nexposed communication by link: {links}" if links else ""
    return text_table(*step_rows(average, by_rank)) + note
