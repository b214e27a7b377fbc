"""Plots, drawn by matplotlib without a display and written whole or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emu.errors import ConfigError
from emu.timeline.table import COLUMNS
from emu.trace import write_whole

FORMATS = (".png", ".svg", ".pdf")
MOST_TICKS = 12  # values of an axis that are written out
PARTS = tuple((title, key) for title, key in COLUMNS if key != "time_s")
_PALETTE = ("#4c78a8", "#9ecae9", "#72b7b2", "#e45756", "#f58518", "#b279a2", "#eeca3b", "#d8d8d8")
COLOURS = {key: colour for (_, key), colour in zip(PARTS, _PALETTE, strict=True)}


def plot_format(path: str | os.PathLike) -> str:
    """Return the format that a file name asks for. Raise ConfigError for one that cannot be drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise ConfigError(f"{path}: a plot's name must end in {', '.join(FORMATS)}, got {suffix or 'no ending'!r}")
    return suffix[1:]


def write_step_plot(steps: Sequence[tuple[str, Mapping[str, Any]]], path: str | os.PathLike, title: str = "") -> None:
    """Draw steps as bars of their parts, one bar a (name, accounting), and write them to `path`."""
    kind = plot_format(path)
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(9, 1.6 + 0.32 * len(steps)), layout="constrained")
    axes = figure.subplots()
    places = range(len(steps))
    left = [0.0] * len(steps)
    for title_of_part, key in PARTS:
        widths = [float(step[key]) for _, step in steps]
        if any(widths):
            axes.barh(places, widths, left=left, label=title_of_part, height=0.75, color=COLOURS[key])
            left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(list(places), [name for name, _ in steps])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(EngFormatter("s"))
    axes.set_xlabel("emulated time of a step")
    axes.set_title(title)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    _write(figure, path, kind)


def write_line_plot(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    path: str | os.PathLike,
    x_label: str,
    y_label: str,
    title: str = "",
    y_unit: str = "s",
) -> None:
    """Draw one line a name over logarithmic axes and write the plot to `path`."""
    kind = plot_format(path)
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, NullFormatter

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, (x, y) in lines.items():
        axes.plot(x, y, marker="o", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    values = sorted({x for xs, _ in lines.values() for x in xs})
    if len(values) <= MOST_TICKS:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(EngFormatter(y_unit))
    axes.yaxis.set_minor_formatter(EngFormatter(y_unit))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title)
    axes.grid(True, which="both", alpha=0.3)
    if len(lines) > 1:
        axes.legend()
    _write(figure, path, kind)


def _write(figure: Any, path: str | os.PathLike, kind: str) -> None:
    target = io.BytesIO()
    # Without a date and with fixed ids the same plot is the same file.
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "emu"}):
        figure.savefig(target, format=kind, metadata=metadata, dpi=120)
    write_whole(Path(path), target.getvalue())
