"""`emu show`: the catalogue with its sources, and clusters as drawings."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emu.cli import show_models
from emu.cli.options import cluster_options, make_cluster
from emu.errors import ConfigError

if TYPE_CHECKING:
    from emu.catalog import Catalog, Entry
    from emu.cluster import Cluster

# The figures that a listing of a kind shows, as far as an entry has them.
_LISTED = {
    "gpus": ("fp32", "bf16", "memory", "memory_bandwidth", "scaleup", "pcie"),
    "cpus": ("cores", "lanes", "memory_bandwidth"),
    "links": ("medium", "bandwidth", "lanes", "efficiency", "latency"),
    "transports": ("kind", "latency", "mtu", "eager"),
    "switches": ("latency", "buffer", "ports"),
    "nodes": ("gpu", "gpus", "cpu", "sockets"),
    "fabrics": ("kind", "switch", "oversubscription", "routing"),
    "clusters": ("node", "nodes", "transport", "fabric"),
}


@click.command()
@click.argument("what", required=False, metavar="[gpus|links|clusters|models|settings|...|NAME|FILE.toml]")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(what: str | None, cluster: str | None, link: str | None, settings: tuple[str, ...], as_json: bool) -> None:
    """Show the catalogue: a kind of thing, or one thing by NAME with the source of each figure.

    A cluster is drawn too: NAME:N with N nodes, a file of your own, or --link's. Settings change it.
    """
    from emu.catalog import builtin

    catalog = builtin()
    if what is not None and cluster is not None:
        raise ConfigError(f"show: one thing is expected, got {what!r} and --cluster {cluster!r}")
    name = what if what is not None else cluster
    if name is None and link is None:
        found, text = _kinds(catalog)
    elif name == "settings":
        found, text = _settings()
    elif name == "models":
        found, text = show_models.model_list()
    elif name in catalog.tables:
        found, text = _kind(catalog, str(name))
    elif cluster is not None or link is not None or settings or _is_cluster(catalog, str(name)):
        found, text = _cluster(catalog, name, link, settings)
    elif show_models.is_model(str(name)):
        found, text = show_models.model(str(name))
    else:
        found, text = _entry(catalog, str(name))
    click.echo(json.dumps(found, indent=1) if as_json else text)


def _settings() -> tuple[dict[str, Any], str]:
    """Return what --set, and an axis of emu sweep, may change."""
    import itertools

    from emu.cluster.load import known_settings

    known = known_settings()
    lines = [
        f"{head or 'short'}\n{', '.join(names)}"
        for head, group in itertools.groupby(known, key=lambda key: key.rpartition(".")[0])
        for names in [list(group)]
    ]
    return {"settings": known}, "\n".join(map(_wrapped, lines))


def _is_cluster(catalog: Catalog, name: str) -> bool:
    base = name.rpartition(":")[0] or name
    return base in catalog.known("clusters") or Path(name).suffix == ".toml" or "=" in name


def _kinds(catalog: Catalog) -> tuple[dict[str, Any], str]:
    """Return what there is, kind by kind."""
    found = {kind: catalog.names(kind) for kind in catalog.tables} | {"models": show_models.known()}
    lines = [f"{kind} ({len(names)})\n{', '.join(names)}" for kind, names in found.items()]
    hint = "emu show gpus lists a kind; emu show NAME gives every figure's source, and draws a cluster"
    return found, "\n".join([*map(_wrapped, lines), "", hint])


def _wrapped(text: str) -> str:
    import textwrap

    head, body = text.split("\n")
    return head + "\n" + textwrap.fill(body, 100, initial_indent="  ", subsequent_indent="  ")


def _kind(catalog: Catalog, kind: str) -> tuple[dict[str, Any], str]:
    """Return the entries of a kind as a listing."""
    from emu.catalog import entries
    from emu.report.tables import grid, render

    listed = entries(kind, catalog)
    keys = [key for key in _LISTED[kind] if any(key in entry.figures for entry in listed)]
    rows = [
        [entry.name, *(entry.figures[key].text if key in entry.figures else "" for key in keys), entry.note]
        for entry in listed
    ]
    table = grid(None, [kind, *(key.replace("_", " ") for key in keys), "note"], rows, notes=True)
    told = {kind: {entry.name: _plain(entry) for entry in listed}}
    sources = _sources(catalog, listed)
    hint = f"sources; emu show NAME tells which figure has which\n{sources}"
    if not sources:
        hint = "emu show NAME tells where each figure comes from\n"
    return told, render(table, width=show_models.fitting(160)) + hint


def _plain(entry: Entry) -> dict[str, Any]:
    figures = {name: asdict(figure) for name, figure in entry.figures.items()}
    return {"note": entry.note, "aliases": list(entry.aliases), "figures": figures}


def _entry(catalog: Catalog, name: str) -> tuple[dict[str, Any], str]:
    """Return everything of that name, with sources; an unknown name lists the nearest ones of all kinds."""
    from emu.catalog.schema import unknown

    kinds = [kind for kind in catalog.tables if name in catalog.known(kind)]
    if not kinds:
        names = [
            *catalog.tables,
            *(n for kind in catalog.tables for n in catalog.known(kind)),
            *show_models.known(),
            "models",
            "settings",
        ]
        known = list(dict.fromkeys(names))
        raise ConfigError(f"show: {unknown('name', name, known)}; emu show lists all")
    found = {kind: {name: _plain(catalog.entry(kind, name))} for kind in kinds}
    return found, "\n".join(_figures(catalog, catalog.entry(kind, name)) for kind in kinds)


def _figures(catalog: Catalog, entry: Entry) -> str:
    from emu.report.tables import grid, render

    rows = [[name, figure.text, figure.source] for name, figure in entry.figures.items()]
    also = f" (also {', '.join(entry.aliases)})" if entry.aliases else ""
    title = f"{entry.kind}: {entry.name}{also}" + (f": {entry.note}" if entry.note else "")
    table = grid(title, ["figure", "value", "source"], rows, notes=True)
    return render(table, width=show_models.fitting(130)) + _sources(catalog, [entry])


def _sources(catalog: Catalog, listed: Sequence[Entry]) -> str:
    """Spell out the sources that the figures name."""
    words = {word for entry in listed for f in entry.figures.values() for word in re.split("[:,; ]+", f.source)}
    named = {key: catalog.sources[key] for key in sorted(words) if key in catalog.sources}
    told = {key: "; ".join(text for text in about.values() if text != "-") for key, about in named.items()}
    return "".join(f"  {key}: {text}\n" for key, text in told.items())


def _cluster(
    catalog: Catalog, name: str | None, link: str | None, settings: Sequence[str]
) -> tuple[dict[str, Any], str]:
    """Return a cluster: its drawing, and where its own figures come from."""
    from emu.report.drawing import draw_cluster

    made = make_cluster(name, link, settings, None)
    found = {"name": made.name, "gpus": made.size, "sha256": made.sha256, **made.describe()}
    parts = [draw_cluster(made).rstrip(), ""]
    base = (name or "").rpartition(":")[0] or name or ""
    if link is None:
        kinds = [kind for kind in catalog.tables if base in catalog.known(kind)]
        parts += [_figures(catalog, catalog.entry(kind, base)) for kind in kinds]
    parts.append(f"every figure with its source: {', '.join(f'emu show {part}' for part in _parts_of(catalog, made))}")
    return found, "\n".join(parts)


def _parts_of(catalog: Catalog, cluster: Cluster) -> list[str]:
    """Name the catalogue's entries that a cluster is made of."""
    names: list[str] = [cluster.spec.transport.name]
    for node, _ in cluster.spec.groups:
        names += [node.name, node.gpu.name, node.cpu.name, node.pcie.link.name]
        names += [part.link.name for part in (node.scaleup, node.nic) if part.link is not None]
    known = {entry for kind in catalog.tables for entry in catalog.names(kind)}
    return sorted(known & set(names))
