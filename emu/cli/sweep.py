"""`emu sweep`: time one trace on many clusters."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from emu.cli.decisions import PLAN_AXES, fit, planned_anew
from emu.cli.options import cluster_options, folder_for, profile_option
from emu.cli.provenance import provenance
from emu.cli.replay import cluster_of, time_trace
from emu.errors import ConfigError

if TYPE_CHECKING:
    from emu.trace import Trace

_NUMBER = r"[+-]?[0-9.][0-9._eE+-]*"


@click.command()
@click.argument("trace", type=click.Path())
@click.argument("axes", nargs=-1, required=True, metavar="KEY=VALUE,VALUE,...")
@cluster_options
@profile_option
@click.option("--keep-decisions", is_flag=True, help="Keep what the program decided by looking at its cluster.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--plot", metavar="FILE", help="Draw the sweep: .png, .svg or .pdf.")
@click.option("--output", metavar="DIR", help="Write sweep.json, sweep.png and sweep.svg.")
def sweep(
    trace: str,
    axes: tuple[str, ...],
    cluster: str | None,
    link: str | None,
    settings: tuple[str, ...],
    profile: str,
    keep_decisions: bool,
    as_json: bool,
    plot: str | None,
    output: str | None,
) -> None:
    """Time TRACE on every combination of settings.

    An axis is a setting of the cluster and its values, the last one's unit standing for all:
    nic.bandwidth="10,25,100,400 Gb/s" transport=tcp,rdma. Two keys are special: `cluster` (names or files)
    and `profile`. Of a training run, bucket="1,25,100 MiB", batch, strategy, algorithm and micro_batches record it
    anew, dry. Values that hold commas are parted by semicolons.
    """
    from emu.report.plots import plot_format
    from emu.report.summary import write_json
    from emu.report.sweep import write_sweep_plot
    from emu.trace import Trace

    began = time.perf_counter()
    points = combinations(axes)
    if plot is not None:
        plot_format(plot)
    folder = folder_for(output, "sweep") if output is not None else None
    loaded = Trace.load(trace)
    rows = [
        _time(loaded, trace, point, cluster, link, settings, profile, keep_decisions)
        for point in _progress(points)
    ]  # fmt: skip
    found = {"trace": trace, "profile": profile, "rows": rows, "wall_s": time.perf_counter() - began}
    found |= provenance()
    pictures = [plot] if plot is not None else []
    if folder is not None:
        write_json(found, folder / "sweep.json")
        pictures += [str(folder / "sweep.png"), str(folder / "sweep.svg")]
    for picture in pictures:
        write_sweep_plot(rows, picture, trace)
    click.echo(json.dumps(found, indent=1) if as_json else _text(found, pictures, folder))


def combinations(axes: Sequence[str]) -> list[dict[str, str]]:
    """Return every combination of the axes' values, the last axis changing fastest.

    >>> combinations(["nic.bandwidth=10,100 Gb/s", "transport=tcp"])
    [{'nic.bandwidth': '10 Gb/s', 'transport': 'tcp'}, {'nic.bandwidth': '100 Gb/s', 'transport': 'tcp'}]
    """
    parsed = dict(_axis(text) for text in axes)
    if len(parsed) < len(axes):
        keys = [_axis(text)[0] for text in axes]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"sweep: each key once is expected, got {twice!r} twice; list its values after one {twice}=")
    return [dict(zip(parsed, values, strict=True)) for values in itertools.product(*parsed.values())]


def _axis(text: str) -> tuple[str, list[str]]:
    key, equals, listed = text.partition("=")
    values = [value.strip() for value in listed.split(";" if ";" in listed else ",")]
    if not equals or not key.strip() or not all(values):
        raise ConfigError(f"sweep: KEY=VALUE,VALUE,... is expected, got {text!r}; such as nic.bandwidth='10,100 Gb/s'")
    unit = re.fullmatch(rf"{_NUMBER}\s*([A-Za-z%].*)", values[-1])
    if unit is not None:
        values = [f"{value} {unit[1]}" if re.fullmatch(_NUMBER, value) else value for value in values]
    return key.strip(), values


def _time(
    trace: Trace,
    path: str,
    point: Mapping[str, str],
    cluster: str | None,
    link: str | None,
    settings: tuple[str, ...],
    profile: str,
    keep: bool,
) -> dict[str, Any]:
    """Time one combination."""
    plan = {key: value for key, value in point.items() if key in PLAN_AXES}
    changed = [f"{key}={value}" for key, value in point.items() if key not in ("cluster", "profile", *plan)]
    made = cluster_of(trace, path, point.get("cluster", cluster), link, (*settings, *changed))
    profile = point.get("profile", profile)
    if plan:
        fitting, note = planned_anew(trace, path, made, profile, plan), ""
    else:
        fitting, note = fit(trace, path, made, profile, keep)
    timeline = time_trace(fitting, made, profile, detail="spans")
    return {
        "settings": dict(point),
        "cluster": made.name,
        "sha256": made.sha256,
        "end_s": timeline.end_s,
        "step": timeline.step,
        "note": note,
    }


def _progress(points: Sequence[dict[str, str]]) -> Iterable[dict[str, str]]:
    """Show how far the sweep is, where somebody looks."""
    if len(points) < 8 or not sys.stderr.isatty():
        yield from points
        return
    with click.progressbar(points, label="clusters", file=sys.stderr) as bar:
        yield from bar


def _text(found: Mapping[str, Any], pictures: Sequence[str], folder: Any) -> str:
    from emu.report.sweep import sweep_table
    from emu.report.tables import render

    rows = found["rows"]
    text = render(sweep_table(rows, f"{found['trace']} on {len(rows)} clusters: an average step"), width=160)
    noted = sum(bool(row["note"]) for row in rows)
    if noted:
        text += f"\non {noted} of {len(rows)} clusters the program decides otherwise; --json tells what\n"
    if len(rows) > 1 and len({row["end_s"] for row in rows}) == 1:
        text += "\nall of these take the same: nothing that they set lies on this run's way; --cluster names another\n"
    files = [*([str(folder / "sweep.json")] if folder is not None else []), *pictures]
    return text + (f"\nwritten: {', '.join(files)}" if files else "")
