"""How long does one training step of GPT-3 175B on 6,080 GPUs take to record and to time?

    python -m bench.scale [--json]

Tensor parallel 8 within each node; replicas × pipeline stages are the 760 nodes. The step goes the way that
`emu train --dry` goes: the ranks' programs run without bytes, their trace is timed by the engine, and no message is
left out. Optimizer states are shared among the replicas (ZeRO 1): each bucket's gradients go round a ring between the
nodes to be summed, and its weights go round to be shared.

`messages` are those that the engine timed one by one, `ring_messages` those of the buckets; `record_s` and `resolve_s`
are by the clock on the wall, without compilation (`compile_s`); `peak_rss_bytes` is the most memory that the process
ever had; `step_s` is emulated.
"""

import resource
import time
from dataclasses import replace
from typing import Any

import numpy as np

from bench.runner import Option, Result, run
from emu.cluster import Cluster, load_cluster
from emu.errors import DeviceOutOfMemory
from emu.parallel.plan import Plan
from emu.parallel.training import train
from emu.program import run_here
from emu.trace import Op, Trace

WITHIN_S, WITHIN_BYTES, MESSAGES = 60.0, 4e9, 93_000_000


def plan_of(model: str, nodes: int, stages: int, micro_batches: int, bucket_bytes: int, steps: int = 1) -> Plan:
    """Return the training plan: one sequence a replica and micro-batch, blocks computed again in backward."""
    return Plan(
        model=model, strategy="zero1", tp=8, pp=stages, batch=nodes // stages * micro_batches,
        micro_batches=micro_batches, bucket_bytes=bucket_bytes, steps=steps, dtype="bfloat16", recompute=True,
    )  # fmt: skip


def timed_step(plan: Plan, cluster: Cluster, fold: bool = True) -> tuple[dict[str, Any], Trace]:
    """Record a plan on all GPUs of a cluster and time it; return the row, and the trace."""
    from emu.engine.resolve import resolve

    began = time.perf_counter()
    outcomes, trace, _ = run_here(lambda gpu: train(gpu, plan), cluster, cluster.size, dry=True)
    recorded = time.perf_counter()
    raw = resolve(trace, cluster, detail="steps", fold=fold)
    ended = time.perf_counter()
    return {
        "gpus": cluster.size,
        "buckets": min(len(outcome.buckets) for outcome in outcomes),
        "messages": raw.counters["messages"],
        "messages_folded": raw.counters["messages_folded"],
        "ring_messages": ring_messages(trace, plan.data_parallel(cluster.size)),
        "record_s": recorded - began,
        "resolve_s": ended - recorded,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "step_s": float(raw.spans["end_s"].max() - raw.spans["start_s"].min()) / plan.steps,
    }, trace


def ring_messages(trace: Trace, replicas: int) -> int:
    """Return how many messages the rings between the replicas send."""
    sends = np.array([
        np.count_nonzero(t.rows["op"] == Op.SEND) if t.name.startswith("ring_") and t.group_size == replicas else 0
        for t in trace.templates
    ])
    return int(sum(sends[log["a"][log["op"] == Op.CALL]].sum() for log in trace.ranks))


def out_of_memory(plan: Plan, cluster: Cluster) -> str:
    """Return what plain data parallel says to a model that fits no GPU; empty if nothing."""
    plain = replace(plan, strategy="ddp", tp=1, pp=1, batch=cluster.size, micro_batches=1)
    try:
        run_here(lambda gpu: train(gpu, plain), cluster, cluster.size, dry=True)
    except DeviceOutOfMemory as error:
        return str(error)
    return ""


def measure_scale(nodes: int, stages: int, micro_batches: int, bucket_mib: int, model: str, cluster: str) -> Result:
    """Record and time one step; hold it against what it may take."""
    began = time.perf_counter()
    import emu.engine.core  # noqa: F401  compiled, or loaded, before the clock starts

    compiled = time.perf_counter() - began
    made = load_cluster(f"{cluster}:{nodes}")
    plan = plan_of(model, nodes, stages, micro_batches, bucket_mib << 20)
    row, _ = timed_step(plan, made)
    told = out_of_memory(plan, made)
    return {
        **row, "compile_s": compiled, "model": model, "cluster": made.name, "tensor_parallel": plan.tp,
        "pipeline": stages, "data_parallel": nodes // stages, "micro_batches": micro_batches,
        "bucket_bytes": plan.bucket_bytes, "plain_data_parallel": told,
        "checks": {
            "at least 10 buckets of gradients": row["buckets"] >= 10,
            f"at least {MESSAGES:,} messages timed, none left out":
                row["messages"] >= MESSAGES and row["messages_folded"] == 0,
            f"recorded and timed within {WITHIN_S:g} s": row["record_s"] + row["resolve_s"] <= WITHIN_S,
            f"within {WITHIN_BYTES / 1e9:g} GB": row["peak_rss_bytes"] <= WITHIN_BYTES,
            "plain data parallel does not fit": "at most" in told,
        },
    }  # fmt: skip


if __name__ == "__main__":
    run(
        __doc__.partition("\n")[0],
        measure_scale,
        nodes=Option(760, "nodes of 8 GPUs"),
        stages=Option(4, "stages of the pipeline"),
        micro_batches=Option(1, "micro-batches of a step"),
        bucket_mib=Option(256, "MiB of a bucket of gradients"),
        model=Option("gpt3-175b", "model of the catalogue"),
        cluster=Option("dgx-a100-80", "cluster of the catalogue, of 8 GPUs a node"),
    )
