"""What to train and how: one frozen plan, checked at the door, the same on every rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from emu.catalog.schema import unknown
from emu.collectives import find
from emu.errors import ConfigError
from emu.parallel.average import check_average
from emu.parallel.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from emu.parallel.compression import HOOKS
from emu.parallel.sharded import Stage3
from emu.parallel.tasks import find_task

STRATEGIES = ("ddp", "ps", "zero1", "zero2", "zero3")
SCHEDULES = ("1f1b", "gpipe", "naive")
VIA = ("p2p", "gpudirect", "host")
DTYPES = {
    "fp64": "float64", "fp32": "float32", "tf32": "tf32", "fp16": "float16", "bf16": "bfloat16",
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """What to train and how. Sizes are those of all ranks together."""

    model: str = "mlp"
    strategy: str = "ddp"
    algorithm: str = "ring"  # of the all-reduce
    server: str = "shared"  # of strategy ps: shared with a worker, or dedicated
    bucket_bytes: int = BUCKET_BYTES
    first_bucket_bytes: int = FIRST_BUCKET_BYTES
    batch: int = 128  # of all ranks together
    steps: int = 20
    seed: int = 0
    dtype: str = "float32"
    micro_batches: int = 1  # parts of each worker's batch, one after another; their gradients accumulate
    overlap: bool = True
    deterministic: bool = False  # the same bits for any buckets
    find_unused: bool = False
    average: str = "none"  # divide gradients by the replicas before or after their sum; none: the loss already is
    hook: str = "none"  # of ddp: how gradients are compressed
    clip_norm: float | None = None
    loss_scale: float | None = None  # None: dynamic in fp16, else 1
    stage3: Stage3 = field(default_factory=Stage3)
    tp: int = 1
    pp: int = 1
    schedule: str = "1f1b"
    via: str = "p2p"
    recompute: bool = False
    length: int | None = None  # of sequences; None: the model's own
    checkpoint: str | None = None  # a directory
    checkpoint_every: int = 0  # steps; 0: at the end
    resume: bool = False
    offload: bool = False  # the optimizer's state is in the host's memory

    @property
    def storage(self) -> str:
        """The dtype of weights."""
        return "float32" if self.dtype == "tf32" else self.dtype

    @property
    def math(self) -> str | None:
        """The dtype of products, where it is another."""
        return "tf32" if self.dtype == "tf32" else None

    def saves(self, steps: int) -> bool:
        """Say whether a checkpoint is written after so many steps."""
        if self.checkpoint is None:
            return False
        return steps == self.steps or bool(self.checkpoint_every and steps % self.checkpoint_every == 0)

    def data_parallel(self, ranks: int) -> int:
        """Return how many replicas of the model there are."""
        return ranks // (self.tp * self.pp)


def check(plan: Plan, ranks: int, dry: bool = False) -> None:
    """Check a plan at the door. Raise ConfigError that names what does not hold."""
    find_task(plan.model, dry)
    if dry and plan.checkpoint:
        raise ConfigError("checkpoint: a run with bytes is expected, got --dry; leave --checkpoint out")
    _one_of("strategy", plan.strategy, STRATEGIES)
    _one_of("server", plan.server, ("shared", "dedicated"))
    if plan.server == "dedicated" and plan.strategy != "ps":
        raise ConfigError(f"server dedicated: strategy ps is expected, got {plan.strategy}; add --strategy ps")
    if plan.dtype not in DTYPES.values():
        raise ConfigError(f"dtype: {' or '.join(DTYPES.values())} is expected, got {plan.dtype!r}")
    _one_of("schedule", plan.schedule, SCHEDULES)
    _one_of("via", plan.via, VIA, "way")
    _one_of("hook", plan.hook, ("none", *HOOKS))
    check_average(plan.average)
    _check_grid(plan, ranks)
    _check_pairs(plan)
    workers = plan.data_parallel(ranks) - (plan.strategy == "ps" and plan.server == "dedicated")
    if workers < 1:
        raise ConfigError(f"server dedicated: at least 2 ranks are expected, got {ranks}")
    if plan.micro_batches < 1:
        raise ConfigError(f"micro_batches: at least 1 is expected, got {plan.micro_batches}")
    if plan.batch < workers * plan.micro_batches:
        each = f" and micro-batch ({plan.micro_batches})" if plan.micro_batches > 1 else ""
        raise ConfigError(f"batch: at least 1 example a worker ({workers}){each} is expected, got {plan.batch}")
    if plan.steps < 1:
        raise ConfigError(f"steps: at least 1 is expected, got {plan.steps}")
    find("all_reduce", plan.algorithm)


def _one_of(name: str, value: str, known: tuple[str, ...], what: str = "") -> None:
    if value not in known:
        raise ConfigError(f"{name}: {unknown(what or name, value, known)}")


def _check_grid(plan: Plan, ranks: int) -> None:
    for name, value in (("tp", plan.tp), ("pp", plan.pp)):
        if value < 1:
            raise ConfigError(f"{name}: at least 1 is expected, got {value}")
    if ranks % (plan.tp * plan.pp):
        raise ConfigError(f"tp × pp: a divisor of {ranks} ranks is expected, got {plan.tp} × {plan.pp}")
    if plan.schedule == "naive" and plan.micro_batches > 1:
        raise ConfigError(f"schedule naive: 1 micro-batch is expected, got {plan.micro_batches}; use gpipe or 1f1b")


def _check_pairs(plan: Plan) -> None:
    """Check what goes with what."""
    grid = plan.tp * plan.pp > 1
    needs_ddp = (
        ("deterministic", plan.deterministic), ("hook", plan.hook != "none"),
    )  # fmt: skip
    for name, wanted in needs_ddp:
        if wanted and plan.strategy != "ddp":
            raise ConfigError(f"{name}: strategy ddp is expected, got {plan.strategy}")
    if plan.deterministic and (plan.algorithm != "ring" or plan.hook != "none"):
        raise ConfigError("deterministic: algorithm ring without a hook is expected; leave one of them out")
    if plan.average != "none" and plan.strategy == "ps":
        raise ConfigError(f"average: ddp or a zero strategy is expected, got {plan.strategy}; leave --average out")
    if plan.strategy == "ps" and (grid or plan.clip_norm or plan.storage in ("float16", "bfloat16")):
        raise ConfigError("strategy ps: fp32, tf32 or fp64 without tp, pp and clip_norm is expected; use ddp or zero1")
    if plan.offload and not plan.strategy.startswith("zero"):
        raise ConfigError(f"offload: a strategy of zero1, zero2 or zero3 is expected, got {plan.strategy}")
    if plan.resume and not plan.checkpoint:
        raise ConfigError("resume: a checkpoint directory is expected, got none; add --checkpoint DIR")
    if plan.checkpoint_every < 0:
        raise ConfigError(f"checkpoint_every: at least 0 steps are expected, got {plan.checkpoint_every}")
