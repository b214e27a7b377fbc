"""`emu compare`: the same training, and inference, in several precisions: step time, memory, the loss reached."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from emu.cli.options import cluster_options, make_cluster, profile_option
from emu.cli.plan_options import plan_options, read_plan, with_algorithm
from emu.errors import ConfigError
from emu.units import counted

if TYPE_CHECKING:
    from emu.cluster import Cluster
    from emu.parallel.plan import Plan


@click.command()
@click.option("--local", "ranks", default=2, show_default=True, type=click.IntRange(min=1), help="Ranks, all here.")
@click.option("--dry", is_flag=True, help="Run without bytes: time and memory only.")
@cluster_options
@plan_options
@profile_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(
    ranks: int, dry: bool, cluster: str | None, link: str | None, settings: tuple[str, ...], profile: str,
    as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Train and infer in several precisions: --dtype fp64,fp32,fp16,bf16."""
    from emu.engine.profiles import find_profile
    from emu.parallel.plan import check

    find_profile(profile)
    names = [name.strip() for name in (asked["dtype"] or "fp64,fp32,fp16,bf16").split(",")]
    plans = [read_plan(asked | {"dtype": name}) for name in names]
    made = make_cluster(cluster, link, settings, max(ranks, 2))
    plans = [with_algorithm(plan, made, ranks) for plan in plans]
    for plan in plans:
        check(plan, ranks, dry)
        if plan.checkpoint:
            raise ConfigError("--checkpoint: emu train is expected for checkpoints, got emu compare; leave it out")
    rows = []
    for name, plan in zip(names, plans, strict=True):
        print(f"{name} …", file=sys.stderr, flush=True)
        rows.append({"dtype": name, "training": _training(plan, made, ranks, profile, dry),
                     "inference": _inference(plan, made, profile)})  # fmt: skip
    found = {"model": plans[0].model, "batch": plans[0].batch, "ranks": ranks, "cluster": made.name,
             "gpu": made.gpu(0).name, "steps": plans[0].steps, "dtypes": rows}  # fmt: skip
    print(json.dumps(found, indent=1) if as_json else _text(found))


def _training(plan: Plan, cluster: Cluster, ranks: int, profile: str, dry: bool) -> dict[str, Any]:
    from emu.parallel.training import train
    from emu.program import replay, run_here

    outcomes, trace, memory = run_here(lambda gpu: train(gpu, plan), cluster, ranks, dry=dry, profile=profile)
    step = replay(trace, cluster, profile=profile, detail="spans").steps()[-1]
    outcome = outcomes[0]
    return {
        "step_s": step["time_s"], "compute_s": step["compute_s"],
        "exposed_communication_s": step["exposed_communication_s"],
        "peak_bytes": max(each.peak_bytes for each in memory[:1]), "memory": outcome.memory["at_peak"],
        "loss": outcome.losses[-1] if outcome.losses else None, "accuracy": outcome.accuracy,
        "skipped_steps": outcome.skipped, "peak_flops_per_s": _peak(plan, cluster),
    }  # fmt: skip


def _inference(plan: Plan, cluster: Cluster, profile: str) -> dict[str, Any]:
    from emu.parallel.inference import infer
    from emu.program import replay, run_here

    results, trace, _ = run_here(lambda gpu: infer(gpu, plan, plan.batch), cluster, 1, dry=True, profile=profile)
    step = replay(trace, cluster, profile=profile, detail="spans").steps()[-1]
    return {"batch_s": step["time_s"], "examples_per_s": plan.batch / step["time_s"], **results[0]}


def _peak(plan: Plan, cluster: Cluster) -> float:
    return cluster.gpu(0).peak(plan.dtype)


def _text(found: dict[str, Any]) -> str:
    from emu.report.tables import grid, render

    titles = ("dtype", "peak", "step", "compute", "exposed comm.", "memory", "loss", "inference", "memory")
    title = (
        f"{found['model']}: batch {found['batch']} over {found['ranks']} ranks of {found['cluster']} "
        f"({found['gpu']}), {counted(found['steps'], 'step')}; inference: one batch on one GPU"
    )
    text = render(grid(title, titles, [_row(each) for each in found["dtypes"]], "emulated time; peak memory")).rstrip()
    return "\n".join([text, *_skipped(found["dtypes"])])


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    from emu.units import format_bytes, format_time

    training, inference = each["training"], each["inference"]
    peak = training["peak_flops_per_s"]
    return (
        each["dtype"], f"{peak / 1e12:.1f} TFLOP/s" if peak else "-", format_time(training["step_s"]),
        format_time(training["compute_s"]), format_time(training["exposed_communication_s"]),
        format_bytes(training["peak_bytes"]), "-" if training["loss"] is None else f"{training['loss']:.6f}",
        format_time(inference["batch_s"]), format_bytes(inference["peak_bytes"]),
    )  # fmt: skip


def _skipped(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"{each['dtype']}: {counted(each['training']['skipped_steps'], 'step')} skipped, their gradients being infinite"
        for each in rows if each["training"]["skipped_steps"]
    ]  # fmt: skip


