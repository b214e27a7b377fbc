"""`emu plan`: what a training run needs, before anything is run."""

from __future__ import annotations

import json
from typing import Any

import click

from emu.errors import ConfigError


@click.group()
def plan() -> None:
    """Work out what a training run needs."""


@plan.command()
@click.option("--model", required=True, metavar="NAME|FILE", help="A model of the catalogue, or your own file.")
@click.option("--gpu", default="a100-80gb", show_default=True, help="The GPU of the catalogue.")
@click.option("--gpus", default="8,64,512,1024", show_default=True, metavar="N,N,...", help="Numbers of GPUs.")
@click.option("--gpus-per-host", default=8, show_default=True, type=click.IntRange(min=1), help="GPUs of one host.")
@click.option("--precision", default="mixed", show_default=True, metavar="mixed|fp32", help="Of weights and Adam.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def memory(model: str, gpu: str, gpus: str, gpus_per_host: int, precision: str, as_json: bool) -> None:
    """Show bytes a GPU of the model's state by component, for no sharding and each ZeRO stage."""
    from emu.catalog.schema import unknown
    from emu.nn import catalogue
    from emu.plan.memory import PRECISIONS, fewest, quoted, table

    if precision not in PRECISIONS:
        raise ConfigError(f"--precision: {unknown('precision', precision, list(PRECISIONS))}")
    counts = _counts(gpus)
    shape = catalogue.find(model)
    parameters = shape.build().size
    name, capacity = _gpu(gpu)
    kind = PRECISIONS[precision]
    rows = table(parameters, counts, capacity, kind)
    smallest = {stage: fewest(parameters, stage, capacity, kind) for stage in range(4)}
    found: dict[str, Any] = {
        "model": shape.name, "parameters": parameters, "gpu": name, "memory_bytes": capacity,
        "precision": kind.name, "gpus_per_host": gpus_per_host,
        "rows": [
            {"stage": r.stage, "gpus": r.gpus, "weights_bytes": r.state.weights, "gradients_bytes": r.state.gradients,
             "optimizer_bytes": r.state.optimizer, "total_bytes": r.state.total, "fits": r.fits}
            for r in rows
        ],
        "fewest_gpus": smallest,
        "fits_one_gpu": smallest[0] == 1,
        "fits_one_host": {stage: n is not None and n <= gpus_per_host for stage, n in smallest.items()},
        "quoted": [{"bytes": n, "assumes": why} for n, why in quoted(parameters)],
    }  # fmt: skip
    print(json.dumps(found, indent=1) if as_json else _text(found))


def _counts(text: str) -> list[int]:
    counts = []
    for word in text.split(","):
        if not word.strip().isdigit() or int(word) < 1:
            raise ConfigError(f"--gpus: numbers of at least 1 with commas are expected, got {text!r}; such as 8,64,512")
        counts.append(int(word))
    return counts


def _gpu(name: str) -> tuple[str, int]:
    """Return the name and the bytes of memory of a GPU of the catalogue."""
    from emu.catalog import builtin

    entry = builtin().entry("gpus", name, "--gpu")
    return entry.name, int(entry.values["memory"])


def _text(found: dict[str, Any]) -> str:
    from emu.report.tables import grid, render
    from emu.units import format_bytes

    titles = ("sharing", "GPUs", "weights", "gradients", "optimizer", "a GPU", "fits")
    names = ("none", "ZeRO 1", "ZeRO 2", "ZeRO 3")
    rows = [
        (
            names[row["stage"]], str(row["gpus"]), format_bytes(round(row["weights_bytes"])),
            format_bytes(round(row["gradients_bytes"])), format_bytes(round(row["optimizer_bytes"])),
            format_bytes(round(row["total_bytes"])), "yes" if row["fits"] else "no",
        )
        for row in found["rows"]
    ]  # fmt: skip
    title = (
        f"{found['model']}: {found['parameters']:,} parameters, {found['precision']}; "
        f"{found['gpu']} with {format_bytes(found['memory_bytes'])}"
    )
    note = "state only; activations and buffers come on top: emu train --dry"
    text = render(grid(title, titles, rows, note)).rstrip()
    return "\n\n".join([text, _fewest(found), _quoted(found)])


def _fewest(found: dict[str, Any]) -> str:
    lines = []
    for stage, fewest in found["fewest_gpus"].items():
        name = "no sharing" if stage == 0 else f"ZeRO {stage}"
        if fewest is None:
            lines.append(f"{name}: fits no number of these GPUs")
        else:
            hosts = -(-fewest // found["gpus_per_host"])
            where = "one GPU" if fewest == 1 else "one host" if hosts == 1 else f"{hosts} hosts"
            lines.append(f"{name}: fits from {fewest} GPUs on ({where})")
    return "\n".join(lines)


def _quoted(found: dict[str, Any]) -> str:
    from emu.units import format_bytes

    lines = [f"  {format_bytes(round(each['bytes'])):>9}  {each['assumes']}" for each in found["quoted"]]
    return "\n".join(["figures that are quoted for such a model, and what each assumes:", *lines])
