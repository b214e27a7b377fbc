"""The strategies by name, made for a plan and a rank's place in the grid."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from emu.collectives import find
from emu.gpu import Gpu
from emu.nn.model import Model
from emu.nn.optim import Rule
from emu.nn.parameter import Parameter
from emu.parallel.compression import HOOKS
from emu.parallel.data_parallel import DataParallel
from emu.parallel.grid import Grid
from emu.parallel.parameter_server import ParameterServer
from emu.parallel.plan import Plan
from emu.parallel.update import LossScale, Norm
from emu.parallel.zero import Zero


class Strategy(Protocol):
    """A way to train. Ranks with worker < 0 compute nothing."""

    worker: int
    workers: int
    comm: Any
    buckets: Any

    @property
    def notes(self) -> list[str]:
        """What the user should know."""

    @property
    def loss_scale(self) -> float:
        """The factor that the loss is to be multiplied by."""

    def begin(self) -> None:
        """Begin a step."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Let gradients accumulate; the pass after them sums once."""

    def ready(self, parameter: Parameter) -> None:
        """Take note of a gradient that is final."""

    def finish(self) -> None:
        """Return when this rank has the updated parameters."""


def make_strategy(
    gpu: Gpu, model: Model, rule: Rule, plan: Plan, grid: Grid, counts: Callable[[Parameter], bool]
) -> Strategy:
    """Make the plan's strategy for the ranks that hold replicas of this rank's part of the model.

    `counts` says which parameters count in the global norm on this rank.
    """
    sizes: dict[str, Any] = {"bucket_bytes": plan.bucket_bytes, "first_bucket_bytes": plan.first_bucket_bytes}
    if plan.strategy == "ps":
        push, pull = find("reduce", "linear"), find("broadcast", "linear")
        dedicated = plan.server == "dedicated"
        return ParameterServer(
            gpu, model, rule, push, pull, plan.seed, **sizes, dedicated=dedicated, overlap=plan.overlap
        )
    common: dict[str, Any] = sizes | {
        "comm": grid.data, "overlap": plan.overlap, "find_unused": plan.find_unused, "norm": Norm(grid.across),
        "counts": counts, "clip_norm": plan.clip_norm, "loss_scale": _loss_scale(plan), "average": plan.average,
    }  # fmt: skip
    if plan.strategy == "ddp":
        hook = HOOKS[plan.hook](gpu) if plan.hook != "none" else None
        return DataParallel(
            gpu, model, rule, find("all_reduce", plan.algorithm), find("broadcast", "binomial"), plan.seed,
            deterministic=plan.deterministic, hook=hook, **common,
        )  # fmt: skip
    levels = grid.levels
    scatter = levels.reduce_scatter if levels else find("reduce_scatter", "ring")
    gather = levels.all_gather if levels else find("all_gather", "ring")
    common["comm"] = levels.comm if levels else grid.data
    made = Zero(
        gpu, model, rule, scatter, gather, int(plan.strategy[-1]), plan.seed, settings=plan.stage3,
        offload=plan.offload, **common,
    )  # fmt: skip
    made.worker = grid.data.rank
    return made


def worker_of(gpu: Gpu, plan: Plan, grid: Grid) -> tuple[int, int]:
    """Return which worker this rank is, -1 for a server alone, and how many workers there are."""
    dedicated = plan.strategy == "ps" and plan.server == "dedicated"
    return grid.data.rank - dedicated, grid.data.size - dedicated


def _loss_scale(plan: Plan) -> LossScale | None:
    if plan.loss_scale is not None:
        return LossScale(plan.loss_scale, interval=1 << 62)
    return LossScale() if plan.dtype == "float16" else None
