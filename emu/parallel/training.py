"""The training loop: real data, scattered from rank 0; one strategy; the loss of every step.

The same program runs under MPI, in one process, dry, and on one rank for comparison.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from emu.collectives import find
from emu.errors import ConfigError
from emu.gpu import Gpu
from emu.nn import data, models
from emu.nn.data import Dataset
from emu.nn.loss import SoftmaxCrossEntropy
from emu.nn.model import Model
from emu.nn.optim import SGD, Adam, Rule
from emu.nn.parameter import Parameter
from emu.parallel.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES
from emu.parallel.data_parallel import DataParallel
from emu.parallel.parameter_server import ParameterServer

STRATEGIES = ("ddp", "ps")
SCATTER_STEPS = 64  # steps whose batches are scattered at a time


@dataclass(frozen=True)
class Plan:
    """What to train and how; the same on every rank."""

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


@dataclass
class Outcome:
    """What one rank knows after training."""

    losses: list[float]  # of each step, over the global batch
    accuracy: float | None  # on data kept apart, told by rank 0; None dry
    buckets: list[dict[str, Any]]
    parameters: int
    fingerprint: str  # of all parameters' bytes; equal on all ranks
    replicas_equal: bool
    memory: dict[str, Any] = field(default_factory=dict)


class Strategy(Protocol):
    """A way to train. Ranks with worker < 0 compute nothing."""

    worker: int
    workers: int
    buckets: Any

    def begin(self) -> None:
        """Begin a step."""

    def ready(self, parameter: Parameter) -> None:
        """Take note of a gradient that is final."""

    def finish(self) -> None:
        """Return when this rank has the updated parameters."""


@dataclass(frozen=True)
class Task:
    """A model with its data and its optimizer."""

    make: Callable[[Dataset, str], Model]
    load: Callable[[str], Dataset]
    rule: Rule


# Rates at which float32 runs that sum in another order stay together: 1e-5 relative over 200 steps, as measured.
TASKS = {
    "mlp": Task(lambda _, dtype: models.mlp(dtype=dtype), lambda dtype: data.digits(dtype), SGD(0.01, 0.9)),
    "cnn": Task(
        lambda _, dtype: models.cnn(dtype=dtype), lambda dtype: data.digits(dtype, images=True), Adam(2e-3)
    ),
    "gpt": Task(
        lambda d, dtype: models.gpt(d.classes, d.inputs.shape[1], dtype=dtype), lambda _: data.text(), Adam(5e-4)
    ),
}


def check(plan: Plan, ranks: int) -> None:
    """Check a plan at the door. Raise ConfigError that names what does not hold."""
    for name, value, known in (("model", plan.model, TASKS), ("strategy", plan.strategy, STRATEGIES)):
        if value not in known:
            raise ConfigError(f"{name}: one of {', '.join(known)} is expected, got {value!r}")
    if plan.server not in ("shared", "dedicated"):
        raise ConfigError(f"server: shared or dedicated is expected, got {plan.server!r}")
    if plan.dtype not in ("float32", "float64"):
        raise ConfigError(f"dtype: float32 or float64 is expected, got {plan.dtype!r}")
    workers = ranks - (plan.strategy == "ps" and plan.server == "dedicated")
    if workers < 1:
        raise ConfigError(f"server dedicated: at least 2 ranks are expected, got {ranks}")
    if plan.batch < workers:
        raise ConfigError(f"batch: at least 1 example a worker ({workers}) is expected, got {plan.batch}")
    if plan.steps < 1:
        raise ConfigError(f"steps: at least 1 is expected, got {plan.steps}")
    find("all_reduce", plan.algorithm)


def train(gpu: Gpu, plan: Plan, progress: Callable[[int, float], None] | None = None) -> Outcome:
    """Train on this rank; `progress(step, loss of this rank's part)` is called after each step."""
    task = TASKS[plan.model]
    dataset = task.load(plan.dtype)
    model = task.make(dataset, plan.dtype)
    strategy = _strategy(gpu, model, task.rule, plan)
    feed = _Feed(gpu, dataset, strategy, plan)
    loss = SoftmaxCrossEntropy()
    parts = []
    for index in range(plan.steps):
        inputs, targets = feed.host_batch(index)
        with gpu.step(index):
            parts.append(_step(gpu, model, loss, strategy, inputs, targets, plan, dataset))
        if progress is not None:
            progress(index, _value(gpu, parts[-1]))
    return _outcome(gpu, plan, model, strategy, dataset, parts)


def _step(
    gpu: Gpu, model: Model, loss: Any, strategy: Strategy, inputs: Any, targets: Any, plan: Plan, dataset: Dataset
) -> Any:
    """Do one step; return this rank's part of the loss, on the device."""
    strategy.begin()
    if strategy.worker < 0:
        strategy.finish()
        return None
    x, y = gpu.array(inputs, name="batch to device"), gpu.array(targets, name="batch to device")
    with gpu.span("forward"):
        logits, saved = model.forward(gpu, x)
        stats, kept = loss.forward(gpu, logits, y, total=plan.batch * (dataset.targets[0].size or 1))
    with gpu.span("backward"):
        model.backward(gpu, saved, loss.backward(gpu, kept), ready=strategy.ready)
    strategy.finish()
    return stats


def _strategy(gpu: Gpu, model: Model, rule: Rule, plan: Plan) -> Strategy:
    sizes = {"bucket_bytes": plan.bucket_bytes, "first_bucket_bytes": plan.first_bucket_bytes}
    if plan.strategy == "ddp":
        all_reduce, broadcast = find("all_reduce", plan.algorithm), find("broadcast", "binomial")
        return DataParallel(gpu, model, rule, all_reduce, broadcast, plan.seed, **sizes)
    push, pull = find("reduce", "linear"), find("broadcast", "linear")
    dedicated = plan.server == "dedicated"
    return ParameterServer(gpu, model, rule, push, pull, plan.seed, **sizes, dedicated=dedicated)


class _Feed:
    """This worker's part of every global batch, scattered from rank 0 some steps at a time."""

    def __init__(self, gpu: Gpu, dataset: Dataset, strategy: Strategy, plan: Plan) -> None:
        self.gpu, self.dataset, self.strategy, self.plan = gpu, dataset, strategy, plan
        self.first = 0
        self.inputs: Any = None
        self.targets: Any = None

    def host_batch(self, step: int) -> tuple[Any, Any]:
        """Return this worker's rows of a step's batch, in host memory."""
        if step % SCATTER_STEPS == 0:
            self.first = step
            steps = range(step, min(step + SCATTER_STEPS, self.plan.steps))
            with self.gpu.span("scatter data"):
                self.inputs = self._scatter(self.dataset.inputs, steps)
                self.targets = self._scatter(self.dataset.targets, steps)
        if self.strategy.worker < 0:
            return None, None
        mine = self._count(self.strategy.worker)
        start = (step - self.first) * mine
        return self.inputs[start : start + mine], self.targets[start : start + mine]

    def _count(self, worker: int) -> int:
        part = data.share(self.plan.batch, worker, self.strategy.workers)
        return part.stop - part.start

    def _scatter(self, rows: np.ndarray, steps: range) -> Any:
        """Scatter the rows of all workers' parts, worker after worker; return mine."""
        comm, workers = self.gpu.comm, self.strategy.workers
        width = int(np.prod(rows.shape[1:]))
        first_worker = comm.size - workers
        counts = [0] * first_worker + [self._count(w) * len(steps) * width for w in range(workers)]
        mine = comm.empty(counts[comm.rank], rows.dtype)
        packed = None
        if comm.rank == 0:
            packed = comm.empty(sum(counts), rows.dtype) if comm.dry else self._pack(rows, steps).reshape(-1)
        find("scatter_v", "linear")(comm, packed, mine, counts, root=0)
        return mine.reshape((counts[comm.rank] // width if width else 0, *rows.shape[1:]))

    def _pack(self, rows: np.ndarray, steps: range) -> np.ndarray:
        batches = [data.batch_rows(len(rows), self.plan.batch, step, self.plan.seed) for step in steps]
        shares = [data.share(self.plan.batch, w, self.strategy.workers) for w in range(self.strategy.workers)]
        return rows[np.concatenate([batch[share] for share in shares for batch in batches])]


def _value(gpu: Gpu, part: Any) -> float:
    if part is None or gpu.dry:
        return float("nan")
    return float(part[0])


def _outcome(
    gpu: Gpu, plan: Plan, model: Model, strategy: Strategy, dataset: Dataset, parts: list[Any]
) -> Outcome:
    """Tell what came out. Sums and comparisons between ranks here are control, not emulated traffic."""
    mine = [0.0 if part is None or gpu.dry else float(part[0]) for part in parts]
    fingerprint = "" if gpu.dry else _fingerprint(gpu, strategy)
    told = gpu.comm.wire.exchange((mine, fingerprint))
    losses = [] if gpu.dry else [float(sum(step)) for step in zip(*(losses for losses, _ in told), strict=True)]
    accuracy = None if gpu.dry or gpu.rank else _accuracy(gpu, model, dataset)
    return Outcome(
        losses=losses,
        accuracy=accuracy,
        buckets=[
            {"index": b.index, "bytes": b.nbytes, "parameters": [p.name for p in b.parameters]}
            for b in strategy.buckets.all
        ],
        parameters=model.size,
        fingerprint=fingerprint,
        replicas_equal=len({each for _, each in told}) == 1,
        memory={"peak_bytes": gpu.memory.peak_bytes, "at_peak": dict(gpu.memory.at_peak)},
    )


def _fingerprint(gpu: Gpu, strategy: Strategy) -> str:
    digest = hashlib.sha256()
    for bucket in strategy.buckets.all:
        host = bucket.weights if isinstance(bucket.weights, np.ndarray) else gpu.xp.asnumpy(bucket.weights)
        digest.update(host.view(np.uint8).data)
    return digest.hexdigest()


def _accuracy(gpu: Gpu, model: Model, dataset: Dataset, rows: int = 512) -> float:
    """Return the part of the data kept apart that the model gets right (of its first `rows`).

    It judges the training and is no part of it, so it is not recorded.
    """
    inputs, targets = dataset.test_inputs[:rows], dataset.test_targets[:rows]
    right = 0.0
    with gpu.unrecorded():
        for start in range(0, len(inputs), 128):
            x, y = gpu.array(inputs[start : start + 128]), gpu.array(targets[start : start + 128])
            logits, _ = model.forward(gpu, x, keep=False)
            stats, _ = SoftmaxCrossEntropy().forward(gpu, logits, y)
            right += float(gpu.to_host(stats)[1])
    return right / targets.size
