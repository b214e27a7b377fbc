"""What `emu train` tells: one object for programs, the same as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from emu.parallel.training import Outcome, Plan
from emu.report.tables import grid, render, step_table
from emu.timeline import Timeline
from emu.units import counted, format_bytes, format_time

# relative difference up to which training is the same
SAME_LOSS = {"float64": 1e-9, "float32": 1e-4, "tf32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def summary(
    plan: Plan,
    outcome: Outcome,
    alone: Outcome | None,
    timeline: Timeline | None,
    links: Sequence[Mapping[str, Any]],
    told: Mapping[str, Any],
) -> dict[str, Any]:
    """Return everything as one object; `alone` is the same training on one rank."""
    loss, loss_alone = last(outcome), last(alone) if alone else None
    found: dict[str, Any] = {
        "loss": loss,
        "loss_one_rank": loss_alone,
        "loss_relative_difference": difference(loss, loss_alone),
        "accuracy": outcome.accuracy,
        "accuracy_one_rank": alone.accuracy if alone else None,
        "replicas_equal": outcome.replicas_equal,
        "losses": outcome.losses,
        "parameters": outcome.parameters,
        "parameters_sha256": outcome.fingerprint,
        "buckets": outcome.buckets,
        "memory": outcome.memory,
        "strategy": plan.strategy,
        "algorithm": "parameter_server" if plan.strategy == "ps" else plan.algorithm,
        "grid": {"dp": timeline.world_size // (plan.tp * plan.pp) if timeline else 1, "pp": plan.pp, "tp": plan.tp},
        "micro_batches": plan.micro_batches,
        "notes": outcome.notes,
        "skipped_steps": outcome.skipped,
        "model": plan.model,
        "dtype": plan.dtype,
        "batch": plan.batch,
        "steps": plan.steps,
        "seed": plan.seed,
        "links": list(links),
    }
    if timeline is not None:
        found |= {
            "ranks": timeline.world_size,
            "bytes_sent_per_gpu": [int(n) for n in timeline.bytes_sent_per_step],
            "step": timeline.step,
            "step_by_rank": [timeline.step_of(rank) for rank in range(min(timeline.world_size, 64))],
        }
    return found | dict(told)


def last(outcome: Outcome) -> float | None:
    """Return the loss of the last step, None where nothing was computed."""
    return outcome.losses[-1] if outcome.losses else None


def difference(loss: float | None, other: float | None) -> float | None:
    """Return the relative difference of two losses."""
    if loss is None or other is None:
        return None
    return abs(loss - other) / max(abs(other), 1e-300)


def text(found: Mapping[str, Any], timeline: Timeline | None) -> str:
    """Return the object as text."""
    parts = [_what(found), _result(found)]
    if timeline is not None:
        parts.append(_step(found, timeline))
    if found["links"]:
        parts.append(_links(found))
    if found.get("output"):
        parts.append(_files(found))
    return "\n\n".join(part for part in parts if part)


def _what(found: Mapping[str, Any]) -> str:
    sizes = [format_bytes(bucket["bytes"]) for bucket in found["buckets"]]
    buckets = ", ".join(sizes if len(sizes) <= 8 else [*sizes[:6], "…", sizes[-1]])
    cluster = found["cluster"]
    return (
        f"{found['model']}: {found['parameters']:,} parameters in {found['dtype']}, "
        f"batch {found['batch']} over {found['ranks']} ranks, {counted(found['steps'], 'step')}\n"
        f"cluster {cluster['name']}: {cluster['gpu']}, {cluster['link']}; profile {cluster['profile']}\n"
        f"strategy {found['strategy']}, {found['algorithm'].replace('_', ' ')} {_collectives(found)}, "
        f"{counted(len(found['buckets']), 'gradient bucket')} ({buckets}){_grid(found)}"
        + "".join(f"\n{note}" for note in found["notes"])
    )


def _collectives(found: Mapping[str, Any]) -> str:
    return "collectives" if found["strategy"].startswith("zero") else "all-reduce"


def _grid(found: Mapping[str, Any]) -> str:
    grid = found["grid"]
    if grid["pp"] == grid["tp"] == found["micro_batches"] == 1:
        return ""
    return (
        f"\ngrid: {counted(grid['dp'], 'replica')} × {counted(grid['pp'], 'pipeline stage')} × "
        f"{counted(grid['tp'], 'tensor-parallel part')}, "
        f"{counted(found['micro_batches'], 'micro-batch')}"
    )


def _result(found: Mapping[str, Any]) -> str:
    if found["loss"] is None:
        return "\n".join(["dry run: no bytes, no loss", *_speed(found), *_memory(found["memory"])])
    accuracy = _accuracy(found["accuracy"]) or ", accuracy not judged: no rank has the whole model"
    lines = [f"loss {found['loss']:.6f} after {counted(found['steps'], 'step')}{accuracy}"]
    if found["loss_one_rank"] is not None:
        off, limit = found["loss_relative_difference"], SAME_LOSS[found["dtype"]]
        verdict = "the same training" if off <= limit else f"NOT the same training (limit {limit:g})"
        lines.append(
            f"one rank on the same batches: loss {found['loss_one_rank']:.6f}"
            f"{_accuracy(found['accuracy_one_rank'])}; relative difference {off:.1e}: {verdict}"
        )
    equal = "equal bit for bit" if found["replicas_equal"] else "NOT equal"
    lines.append(f"{_held(found)}: {equal}")
    return "\n".join(lines)


def _held(found: Mapping[str, Any]) -> str:
    """Say which parameters were compared between ranks."""
    if found["grid"]["pp"] * found["grid"]["tp"] > 1:
        return "parameters, on all ranks that hold the same part of the model"
    if found["strategy"] == "zero3":
        return f"parameters, put together from their shards on all {found['ranks']} ranks"
    return f"parameters on all {found['ranks']} ranks"


def _speed(found: Mapping[str, Any]) -> list[str]:
    speed = found.get("speed")
    if speed is None:
        return []
    return [
        f"last step {format_time(speed['last_step_s'])}: {speed['flops_per_gpu_per_s'] / 1e12:.1f} TFLOP/s a GPU "
        f"of the model's own FLOPs ({100 * speed['share_of_peak']:.0f} % of peak), "
        f"{speed['examples_per_s']:,.1f} examples/s"
    ]


def _memory(memory: Mapping[str, Any]) -> list[str]:
    """Tell the memory of rank 0 at its peak, the largest part first."""
    parts = sorted(((n, purpose) for purpose, n in memory["at_peak"].items() if n), reverse=True)
    held = ", ".join(f"{purpose} {format_bytes(n)}" for n, purpose in parts)
    capacity = memory.get("capacity_bytes")
    of = f" of {format_bytes(int(capacity))}" if capacity else ""
    return [f"memory of rank 0 at its peak: {format_bytes(memory['peak_bytes'])}{of} ({held})"]


def _accuracy(value: float | None) -> str:
    return "" if value is None else f", accuracy {100 * value:.1f} %"


def _step(found: Mapping[str, Any], timeline: Timeline) -> str:
    step = found["step"]
    halts = step["exposed_communication_s"] + step["straggler_wait_s"]
    share = 100 * halts / step["time_s"] if step["time_s"] else 0.0
    sent = found["bytes_sent_per_gpu"]
    most = f"{format_bytes(max(sent))} sent by the busiest GPU, {format_bytes(min(sent))} by the least busy"
    return (
        f"{render(step_table(timeline, title='where an average step went (emulated time)')).rstrip()}\n"
        f"the GPU halts for {format_time(halts)} of a step of {format_time(step['time_s'])} ({share:.0f} %); {most}"
    )


def _links(found: Mapping[str, Any]) -> str:
    titles = ("link", "strategy", "step", "exposed comm.", "of step", "lone all-reduce", "closed form")
    rows = [
        (
            row["link"],
            row["strategy"],
            format_time(row["step_s"]),
            format_time(row["exposed_communication_s"]),
            f"{100 * row['exposed_communication_s'] / row['step_s']:.0f} %",
            format_time(row["all_reduce_s"]),
            format_time(row["closed_form_s"]),
        )
        for row in found["links"]
    ]
    forms = "closed forms: ring 2(p-1)(α + n/(pB)), parameter server 2(α + (p-1)n/B) with the server's port shared"
    title = "the same run on other links (emulated time; two traces, nothing trained again)"
    return render(grid(title, titles, rows, forms)).rstrip()


def _files(found: Mapping[str, Any]) -> str:
    output = found["output"]
    if found["ranks"] > 64:
        return f"{output}/summary.json   all of this as JSON; add --output DIR to save the trace"
    return (
        f"{output}/trace.emu      the trace: emu replay {output}/trace.emu --cluster NAME\n"
        f"{output}/summary.json   all of this as JSON\n"
        f"{output}/timeline.json  the timeline: open it in ui.perfetto.dev"
    )
