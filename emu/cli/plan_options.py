"""The options that say what to train and how, and the plan that they turn into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from emu.errors import ConfigError
from emu.units import parse_bytes

if TYPE_CHECKING:
    from emu.cluster import Cluster
    from emu.parallel.plan import Plan

_COUNT = click.IntRange(min=1)
_ELEMENTS = click.FLOAT


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a training plan; the command gets them as keywords, for `read_plan`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def read_plan(asked: Mapping[str, Any]) -> Plan:
    """Return the plan that the options describe."""
    from emu.parallel.plan import DTYPES, Plan
    from emu.parallel.sharded import Stage3

    given = _defaults(dict(asked))
    prefix = "stage3_"
    limits = {name[len(prefix) :]: given.pop(name) for name in list(given) if name.startswith(prefix)}
    limits = {name: _whole(prefix + name, value) for name, value in limits.items() if value is not None}
    stage3 = Stage3(**limits, reshard_after_forward=given.pop("reshard_after_forward"))
    _check_dtype(given["dtype"], DTYPES)
    given["dtype"] = DTYPES.get(given["dtype"], given["dtype"])
    bucket_bytes = parse_bytes(given.pop("bucket"), "--bucket")
    first = given.pop("first_bucket")
    if first is not None:
        given["first_bucket_bytes"] = parse_bytes(first, "--first-bucket")
    if given["length"] is None:
        given.pop("length")
    return Plan(bucket_bytes=bucket_bytes, stage3=stage3, **given)


def _check_dtype(name: str, known: Mapping[str, str]) -> None:
    """Answer an unknown dtype with the spellings of --help, or of the long ones where that is what was meant."""
    from emu.catalog.schema import nearest, unknown

    if name not in known and name not in known.values():
        long = not nearest(name, known) and nearest(name, known.values())
        raise ConfigError(f"--dtype: {unknown('dtype', name, known.values() if long else known)}")


def _defaults(given: dict[str, Any]) -> dict[str, Any]:
    """Fill in what was not said: real sizes run one step in bf16 and recompute; the small models train 20 in fp32."""
    from emu.parallel.tasks import TASKS, find_task

    small = given["model"] in TASKS
    if given["steps"] is None:
        given["steps"] = 20 if small else 1
    if given["dtype"] is None:
        given["dtype"] = "float32" if small else "bfloat16"
    if given["recompute"] is None:
        given["recompute"] = not small and find_task(given["model"], dry=True).splits
    return given


def with_algorithm(plan: Plan, cluster: Cluster, ranks: int) -> Plan:
    """Return the plan with `auto` settled: two levels between nodes that are all full, else a ring."""
    if plan.algorithm != "auto":
        return plan
    nodes = [cluster.node_of(rank) for rank in range(ranks)]
    several = len(set(nodes)) > 1 and len({nodes.count(node) for node in set(nodes)}) == 1
    spread = plan.tp < nodes.count(nodes[0])  # else a replica's ranks have a node of their own each
    two = several and spread and plan.strategy != "ps" and not plan.deterministic
    return replace(plan, algorithm="hierarchical" if two else "ring")


def _whole(name: str, value: float) -> int:
    if value != int(value):
        raise ConfigError(f"--{name.replace('_', '-')}: a whole number of elements is expected, got {value}")
    return int(value)


_OPTIONS = (
    click.option("--model", default="mlp", show_default=True, metavar="mlp|cnn|gpt|NAME|FILE",
                 help="What to train; with --dry also a model of the catalogue, or your own .toml or .csv of layers."),
    click.option("--strategy", default="ddp", show_default=True, metavar="ddp|ps|zero1|zero2|zero3",
                 help="How replicas are kept the same."),
    click.option("--algorithm", default="auto", show_default=True,
                 help="All-reduce algorithm; of ZeRO's collectives: ring or hierarchical (auto: between nodes)."),
    click.option("--server", default="shared", show_default=True, metavar="shared|dedicated", help="The server of ps."),
    click.option("--bucket", default="25 MiB", show_default=True, help="Gradient bucket size."),
    click.option("--first-bucket", metavar="SIZE", help="Size of the first bucket [1 MiB]."),
    click.option("--batch", default=128, show_default=True, type=_COUNT, help="Global batch size."),
    click.option("--micro-batches", default=1, show_default=True, type=_COUNT,
                 help="Parts of each worker's batch, one after another; their gradients accumulate."),
    click.option("--steps", type=_COUNT, help="Training steps [20; 1 at real sizes; 2 dry on more than 64 GPUs]."),
    click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0),
                 help="Seed of weights and batches."),
    click.option("--dtype", metavar="fp64|fp32|tf32|fp16|bf16",
                 help="Precision; 16-bit weights have float32 masters [fp32; bf16 at real sizes]."),
    click.option("--length", type=_COUNT, help="Length of sequences [the model's own]."),
    click.option("--tp", default=1, show_default=True, type=_COUNT, help="Parts of each layer (tensor parallel)."),
    click.option("--pp", default=1, show_default=True, type=_COUNT, help="Parts of the layers (pipeline parallel)."),
    click.option("--schedule", default="1f1b", show_default=True, metavar="1f1b|gpipe|naive",
                 help="Order in the pipeline."),
    click.option("--via", default="p2p", show_default=True, metavar="p2p|gpudirect|host",
                 help="How activations go from stage to stage."),
    click.option("--recompute/--no-recompute", default=None,
                 help="Keep only the inputs of blocks; run them again in backward [for transformers at real sizes]."),
    click.option("--average", default="none", show_default=True, metavar="none|before|after",
                 help="Divide gradients by the replicas before or after their sum [none: the loss is a global mean]."),
    click.option("--overlap/--no-overlap", default=True, help="Communicate while backward goes on."),
    click.option("--deterministic", is_flag=True, help="Add in one order whatever the buckets are."),
    click.option("--hook", default="none", show_default=True, metavar="none|fp16|topk|onebit|powersgd",
                 help="How ddp compresses gradients."),
    click.option("--clip-norm", type=float, help="Clip gradients to this global norm."),
    click.option("--loss-scale", type=float, help="A fixed loss scale [dynamic in fp16, else 1]."),
    click.option("--offload", is_flag=True, help="Keep the optimizer's state of ZeRO in the host's memory."),
    click.option("--stage3-prefetch-bucket-size", type=_ELEMENTS, help="Elements to gather ahead [5e7]."),
    click.option("--stage3-max-live-parameters", type=_ELEMENTS, help="Elements gathered at a time [1e9]."),
    click.option("--stage3-max-reuse-distance", type=_ELEMENTS, help="Keep what is used again so soon [1e9]."),
    click.option("--stage3-param-persistence-threshold", type=_ELEMENTS,
                 help="Parameters up to this size stay whole [1e5]."),
    click.option("--reshard-after-forward/--no-reshard-after-forward", default=True,
                 help="Free gathered parameters between forward and backward."),
    click.option("--checkpoint", metavar="DIR", help="Where checkpoints go."),
    click.option("--checkpoint-every", default=0, type=click.IntRange(min=0), metavar="STEPS",
                 help="How often they are written [at the end]."),
    click.option("--resume", is_flag=True, help="Go on from the last checkpoint."),
)  # fmt: skip
