"""The models' part of `emu show`: public shapes and a user's own files, with parameters and costs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emu.nn.catalogue import Shape
    from emu.nn.describe import LayerCost


def known() -> list[str]:
    """Return the names of all models of the catalogue."""
    from emu.nn.catalogue import names

    return names()


def fitting(width: int) -> int:
    """Return a table's width: that of a terminal, or whatever it takes where a program or a file reads on."""
    return width if sys.stdout.isatty() else 100_000


def is_model(name: str) -> bool:
    """Tell whether the catalogue has a model of that name or alias."""
    from emu.nn.catalogue import aliases

    return name in known() or name in aliases()


def model_list() -> tuple[dict[str, Any], str]:
    """Return all models, as an object and as text."""
    from emu.nn.catalogue import find, source
    from emu.report.tables import grid, render

    shapes = [find(name) for name in known()]
    found = {shape.name: _plain(shape) for shape in shapes}
    rows = [[shape.name, shape.family, _count(found[shape.name]["parameters"]), _about(shape)] for shape in shapes]
    table = grid(None, ["models", "family", "parameters", "sizes"], rows, notes=True)
    keys = dict.fromkeys(shape.source for shape in shapes)
    sources = "".join(f"  {key}: {source(key)}\n" for key in keys if key)
    named = f"sources\n{sources}" if sources else ""
    return {"models": found}, f"{render(table, width=fitting(150))}{named}"


def model(name: str) -> tuple[dict[str, Any], str]:
    """Return one model, by name or file: its sizes, and what each of its layers costs for one example."""
    from emu.nn.catalogue import find, source
    from emu.nn.describe import describe
    from emu.report.tables import grid, render
    from emu.units import format_bytes

    shape = find(name)
    costs = describe(shape.build(), *shape.inputs(1))
    found = _plain(shape)
    found["layers"] = [
        {
            "layer": cost.name,
            "parameters": cost.parameters,
            "forward_flops": cost.forward_flops,
            "backward_flops": cost.backward_flops,
            "activation_bytes": cost.activation_bytes,
        }
        for cost in costs
    ]
    rows = [
        [
            name,
            _count(cost.parameters),
            f"{cost.forward_flops / 1e9:.4g}",
            f"{cost.backward_flops / 1e9:.4g}",
            format_bytes(cost.activation_bytes),
        ]
        for name, cost in _runs(costs)
    ]
    title = f"model: {shape.name}: {shape.family}, {_count(found['parameters'])} parameters; {_sizes(shape.sizes)}"
    titles = ["layer, one example in float32", "parameters", "forward GFLOP", "backward GFLOP", "kept"]
    told = render(grid(title, titles, rows), width=fitting(150))
    note = f"  {shape.note}\n" if shape.note else ""
    return {"models": {shape.name: found}}, f"{told}{note}  source: {source(shape.source)}\n"


def _runs(costs: Sequence[LayerCost]) -> Iterator[tuple[str, LayerCost]]:
    """Yield layers by name; neighbours that cost the same are one line."""
    for _, run in itertools.groupby(costs, key=lambda cost: replace(cost, name="")):
        alike = list(run)
        name = alike[0].name if len(alike) == 1 else f"{alike[0].name} to {alike[-1].name}, each"
        yield name, alike[0]


def _plain(shape: Shape) -> dict[str, Any]:
    return {
        "family": shape.family,
        "sizes": dict(shape.sizes),
        "parameters": shape.build().size,
        "source": shape.source,
        "note": shape.note,
    }


def _count(number: int) -> str:
    return f"{number:,}"


def _about(shape: Shape) -> str:
    return "; ".join(filter(None, [_sizes(shape.sizes), shape.note]))


def _sizes(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sizes.items())
