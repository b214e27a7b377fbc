"""`emu replay`: time a saved trace on another cluster; nothing is run."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from emu.cli.decisions import fit
from emu.cli.options import cluster_options, folder_for, make_cluster, profile_option
from emu.cli.provenance import provenance
from emu.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from emu.cluster import Cluster
    from emu.timeline import Timeline
    from emu.trace import Trace

MOST_FLOWS = 4_000_000  # messages logged one by one, at 70 bytes and a few times that to sort them

PERTURBATION = 1e-9  # of each message's bytes, under --spread


@click.command()
@click.argument("trace", type=click.Path())
@cluster_options
@profile_option
@click.option("--keep-decisions", is_flag=True, help="Keep what the program decided by looking at its cluster.")
@click.option("--spread", type=click.IntRange(min=2), metavar="N", help="Time it N times, sizes off by 1e-9.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--output",
    metavar="DIR",
    help="Write report.html, summary.json, step.svg, and timeline.json for ui.perfetto.dev.",
)
def replay(
    trace: str,
    cluster: str | None,
    link: str | None,
    settings: tuple[str, ...],
    profile: str,
    keep_decisions: bool,
    spread: int | None,
    as_json: bool,
    output: str | None,
) -> None:
    """Time a saved TRACE on a cluster (its own, unless --cluster or --link names another)."""
    from emu.trace import Trace

    began = time.perf_counter()
    loaded = Trace.load(trace)
    recorded_on, digest = loaded.header.get("cluster"), loaded.header.get("cluster_sha256")
    made = cluster_of(loaded, trace, cluster, link, settings)
    loaded, note = fit(loaded, trace, made, profile, keep_decisions)
    if note:
        click.echo(f"note: {note}", err=True)
    if cluster is None and link is None and not settings and digest not in (None, made.sha256):
        click.echo(f"note: recorded on {recorded_on} with settings of its own; --set tells them again", err=True)
    timeline = time_trace(loaded, made, profile, detail=_detail(loaded))
    found = _object(loaded, trace, made, timeline, profile, settings)
    found |= {"recorded_on": recorded_on, "note": note}
    if spread is not None:
        found["spread"] = spread_of(loaded, made, profile, spread)
    found["wall_s"] = time.perf_counter() - began
    if output is not None:
        _write(timeline, found, output)
    click.echo(json.dumps(found, indent=1) if as_json else _text(found, timeline))


def _detail(trace: Trace) -> str:
    """Log each message for what links did over time, unless that would fill the memory."""
    from emu.timeline.volumes import message_count

    count = message_count(trace)
    if count <= MOST_FLOWS:
        return "flows"
    click.echo(f"note: {count} messages are too many to log each; links are shown by their totals alone", err=True)
    return "spans"


def cluster_of(trace: Trace, path: str, cluster: str | None, link: str | None, settings: tuple[str, ...]) -> Cluster:
    """Return the cluster that a trace is to be timed on. Raise TraceError for a trace that is bound to another."""
    recorded = trace.header.get("cluster")
    if cluster is None and link is None:
        if recorded is None:
            raise ConfigError(f"{path}: does not say which cluster it was recorded on; name one with --cluster")
        cluster = str(recorded)
    made = make_cluster(cluster, link, settings, trace.world_size)
    order, digest = trace.header.get("marks", {}).get("order"), trace.header.get("cluster_sha256")
    same = digest == made.sha256 if digest else order == made.name and not settings
    if order is not None and not same:
        raise TraceError(
            f"{path}: the program asked for time or order and was answered on {order}; on another cluster the answers "
            f"would differ, got {made.name}; run the program again with --cluster {made.name}"
        )
    return made


def time_trace(trace: Trace, cluster: Cluster, profile: str, detail: str) -> Timeline:
    """Return the trace's times on a cluster."""
    from emu.engine import resolve
    from emu.timeline import Timeline

    return Timeline(resolve(trace, cluster, profile=profile, detail=detail), trace, cluster)


def spread_of(trace: Trace, cluster: Cluster, profile: str, runs: int) -> dict[str, Any]:
    """Time a trace under seeded perturbations of every message: steps that amplify them are one draw of many."""
    from emu.engine import resolve
    from emu.timeline import Timeline

    steps = []
    for seed in range(runs):
        raw = resolve(trace, cluster, profile=profile, detail="spans", seed=seed, perturbation=PERTURBATION)
        steps.append(Timeline(raw, trace, cluster).step["time_s"])
    middle = sum(steps) / runs
    percent = 100 * (max(steps) - min(steps)) / middle if middle else 0.0
    return {
        "runs": runs,
        "perturbation": PERTURBATION,
        "step_s": steps,
        "spread_pct": percent,
    }


def _object(
    trace: Trace, path: str, cluster: Cluster, timeline: Timeline, profile: str, settings: tuple[str, ...]
) -> dict[str, Any]:
    from emu.report.summary import summary

    return {
        "trace": path,
        "decisions": trace.header.get("decisions", {}),
        "profile": profile,
        "settings": list(settings),
        **summary(timeline),
        **provenance(),
    }


def _write(timeline: Timeline, found: dict[str, Any], output: str) -> None:
    from emu.report.html import write_html
    from emu.report.perfetto import write_perfetto
    from emu.report.plots import write_step_plot
    from emu.report.summary import write_json

    folder = folder_for(output, "replay")
    found["output"] = str(folder)
    found["timeline"] = {
        "file": str(folder / "timeline.json"),
        **write_perfetto(timeline, folder / "timeline.json"),
    }
    write_html(timeline, folder / "report.html", f"{found['trace']} on {timeline.cluster.name}")
    ranks = [(f"rank {rank}", timeline.step_of(rank)) for rank in range(min(timeline.world_size, 32))]
    write_step_plot([*ranks, ("all", timeline.step)], folder / "step.svg", timeline.cluster.name)
    write_json(found, folder / "summary.json")


def _text(found: dict[str, Any], timeline: Timeline) -> str:
    from emu.report.tables import link_table, path_table, render, step_table

    steps = len(found["steps"])
    named = "the whole run" if timeline.windows.whole_run else f"an average step of {steps}"
    cluster = ", ".join([timeline.cluster.name, *found["settings"]])
    title = f"{found['trace']} on {cluster}, profile {found['profile']}: {named}"
    text = render(step_table(timeline, title=title), link_table(timeline), path_table(timeline))
    if "spread" in found:
        told = found["spread"]
        text += f"\n{told['runs']} runs with messages off by {told['perturbation']:g}: steps differ by "
        text += f"{told['spread_pct']:.2g} %\n"
    return text + (f"\nwritten to {found['output']}" if "output" in found else "")
