"""A sweep: one trace on many clusters, as a table and as a plot."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from emu.errors import ConfigError
from emu.report.plots import write_line_plot, write_step_plot
from emu.report.tables import grid
from emu.timeline.table import cells, columns
from emu.units import parse_bandwidth, parse_bytes, parse_time

if TYPE_CHECKING:
    from rich.console import Group

# How a quantity is read and in which unit it stands on an axis.
_QUANTITIES = (
    ("Gb/s", lambda text: parse_bandwidth(text) * 8e-9),
    ("us", lambda text: parse_time(text, zero=True) * 1e6),
    ("MiB", lambda text: parse_bytes(text, zero=True) / 2**20),
    ("", float),
)


def sweep_table(rows: Sequence[Mapping[str, Any]], title: str) -> Group:
    """Return one line a cluster: its settings, where its step goes, and how it compares with the fastest."""
    keys = list(rows[0]["settings"])
    shown = columns([row["step"] for row in rows])
    best = min(row["step"]["time_s"] for row in rows)
    lines = [
        [
            *(row["settings"][key] for key in keys),
            *cells(row["step"], [key for _, key in shown]),
            f"{row['step']['time_s'] / best:.2f}x" if best else "",
        ]
        for row in rows
    ]
    return grid(title, [*keys, *(name for name, _ in shown), "to best"], lines)


def write_sweep_plot(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike, title: str) -> None:
    """Draw the step over the first axis of numbers, a line for each setting of the others; without one, bars."""
    axis = _numbers(rows)
    if axis is None:
        named = [(_name(row["settings"]), row["step"]) for row in rows]
        write_step_plot(named, path, title)
        return
    key, unit, values = axis
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for row, x in sorted(zip(rows, values, strict=True), key=lambda pair: pair[1]):
        others = {name: value for name, value in row["settings"].items() if name != key}
        xs, ys = lines.setdefault(_name(others) or "step", ([], []))
        xs.append(x)
        ys.append(row["step"]["time_s"])
    write_line_plot(lines, path, f"{key} ({unit})" if unit else key, "emulated time of a step", title)


def _name(settings: Mapping[str, str]) -> str:
    return ", ".join(settings.values())


def _numbers(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str, list[float]] | None:
    """Return the first setting whose values are different numbers above zero, with its unit and values."""
    for key in rows[0]["settings"]:
        texts = [row["settings"][key] for row in rows]
        for unit, read in _QUANTITIES:
            try:
                values = [read(text) for text in texts]
            except (ConfigError, ValueError):
                continue
            if len(set(values)) > 1 and all(math.isfinite(v) and v > 0 for v in values):
                return key, unit, values
            break
    return None
