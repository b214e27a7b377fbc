"""The training loop: real data, one strategy on a grid of ranks, the loss of every step.

The same program runs under MPI, in one process, dry, and on one rank for comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from emu.collectives import find
from emu.errors import ConfigError
from emu.gpu import Gpu
from emu.nn import data
from emu.nn.loss import SoftmaxCrossEntropy
from emu.nn.model import Model
from emu.nn.split_loss import SplitCrossEntropy
from emu.parallel import checkpoint
from emu.parallel.advice import advised
from emu.parallel.alike import run_alike
from emu.parallel.feed import DryFeed, Feed
from emu.parallel.grid import Grid, make_grid
from emu.parallel.outcome import Outcome, tell, tell_alone
from emu.parallel.pipeline import BACKWARD, FORWARD, Channel, cut, passes
from emu.parallel.plan import STRATEGIES, Plan, check
from emu.parallel.shapes import order_of_layers, output_of
from emu.parallel.strategies import Strategy, make_strategy, worker_of
from emu.parallel.tasks import TASKS, Build, find_task
from emu.parallel.tensor import split_over

__all__ = ["STRATEGIES", "TASKS", "Outcome", "Plan", "Trainer", "check", "train"]


def train(gpu: Gpu, plan: Plan, progress: Callable[[int, float], None] | None = None) -> Outcome:
    """Train on this rank; `progress(step, mean loss over this rank's part of the batch)` is called after each step.

    The mean is NaN on a rank that computes no loss.
    """
    with advised(gpu, plan):
        if gpu.dry:
            return _train_alike(gpu, plan, progress)
        trainer = Trainer(gpu, plan)
        for index in range(checkpoint.load(trainer) if plan.resume else 0, plan.steps):
            loss = trainer.step(index)
            if progress is not None:
                progress(index, loss * trainer.parts_of_batch)
            if plan.saves(index + 1):
                checkpoint.save(trainer, index + 1)
        return tell(trainer)


def _train_alike(gpu: Gpu, plan: Plan, progress: Callable[[int, float], None] | None) -> Outcome:
    """Train without bytes: one rank of each kind for all of its kind. Each rank takes its own batches."""
    grid = make_grid_of(gpu, plan)
    worker, workers = worker_of(gpu, plan, grid)
    feed = _feed(gpu, plan, worker, workers)
    rows = _rows_of(plan, worker, workers)
    kind = grid.stage, grid.part, rows, worker < 0, grid.data.rank == 0 and plan.strategy in ("ddp", "ps")
    made: list[Trainer] = []  # on the first rank of a kind

    def begin() -> None:
        made.append(Trainer(gpu, plan, grid, feed))

    def train_some(steps: range) -> Outcome:
        if not made:
            begin()
        for index in steps:
            made[0].step(index)
            if progress is not None and gpu.rank == 0:
                progress(index, float("nan"))
        return tell_alone(made[0])

    if isinstance(feed, Feed):  # the model is made before the first batches come, as in any run
        run_alike(grid.comms, kind, begin)
    done = 0
    while done < plan.steps:
        steps = feed.fetch(done)
        outcome = run_alike(grid.comms, kind, partial(train_some, steps))
        done = steps.stop
    return outcome


def make_grid_of(gpu: Gpu, plan: Plan) -> Grid:
    """Place this rank in the plan's grid. Collective."""
    hierarchical = plan.strategy.startswith("zero") and plan.algorithm == "hierarchical"
    return make_grid(gpu.comm, plan.tp, plan.pp, hierarchical)


class Trainer:
    """One rank's part of a training run."""

    def __init__(self, gpu: Gpu, plan: Plan, grid: Grid | None = None, feed: Feed | DryFeed | None = None) -> None:
        self.gpu, self.plan = gpu, plan
        self.grid = grid or make_grid_of(gpu, plan)
        self.task = find_task(plan.model, gpu.dry).with_length(plan.length)
        self.dataset = self.task.load(plan.storage) if self.task.load else None
        self.whole_layers: list[Any] = []
        self.parameters = 0  # of the whole model
        self.model, self.begins = self._model()
        earlier = {p for layer in self.whole_layers[: self.begins[self.grid.stage]] for p in layer.parameters()}
        self.strategy = make_strategy(
            gpu, self.model, self.task.rule, plan, self.grid, lambda p: self.grid.counts(p) and p not in earlier
        )
        self.feed = feed or _feed(gpu, plan, self.strategy.worker, self.strategy.workers)
        if self.dataset is None and hasattr(self.strategy, "sharded") and self.grid.stages == 1:
            self.strategy.sharded.expect(order_of_layers(plan, self.grid.parts, *self.begins))
        split = split_over(self.grid.tensor, _inside(plan))
        self.loss: Any = SplitCrossEntropy(self.task.classes(self.dataset), split) if split else SoftmaxCrossEntropy()
        self.total = plan.batch * self.task.rows(self.dataset)
        self.channel = Channel(gpu, self.grid.pipeline, plan.via) if self.grid.pipeline else None
        self.parts: list[list[Any]] = []  # of each step: this rank's parts of the loss, on the device

    @property
    def parts_of_batch(self) -> float:
        """The global batch over this rank's part of it; NaN on a rank that computes nothing."""
        if self.strategy.worker < 0:
            return float("nan")
        mine = data.share(self.plan.batch, self.strategy.worker, self.strategy.workers)
        return self.plan.batch / (mine.stop - mine.start)

    @property
    def loss_factor(self) -> float:
        """What the gradient of the loss is multiplied by: the loss scale, and the replicas where gradients average."""
        return self.strategy.loss_scale * (self.strategy.workers if self.plan.average != "none" else 1)

    def step(self, index: int) -> float:
        """Do one step; return this rank's part of its loss (NaN where it has none)."""
        inputs, targets = self.feed.host_batch(index)
        with self.gpu.step(index):
            self.parts.append(_Step(self, inputs, targets).run())
        return self.value(self.parts[-1])

    def value(self, parts: list[Any]) -> float:
        """Return this rank's part of a step's loss."""
        if not parts or self.gpu.dry:
            return float("nan")
        return float(sum(float(part[0]) for part in parts))

    def _model(self) -> tuple[Model, list[int]]:
        """Make this rank's part of the model: its stage's layers, split over the tensor-parallel ranks."""
        plan, grid = self.plan, self.grid
        if grid.parts > 1 and not self.task.splits:
            raise ConfigError(f"tp: a transformer is expected for {grid.parts} parts, got model {plan.model!r}; use pp")
        split = split_over(grid.tensor, _inside(plan))
        model = self.task.make(self.dataset, Build(plan.storage, plan.math, plan.recompute, split))
        self.parameters = _whole_size(model)
        if grid.stages == 1:
            return model, [0, len(model.layers)]
        begins = cut(model.layers, grid.stages)
        if len(begins) != grid.stages + 1:
            raise ConfigError(f"pp: at most {len(model.layers)} stages are expected, got {grid.stages}")
        self.whole_layers = model.layers
        return Model(model.name, model.layers[begins[grid.stage] : begins[grid.stage + 1]]), begins


def _feed(gpu: Gpu, plan: Plan, worker: int, workers: int) -> Feed | DryFeed:
    """Make what hands this worker its rows. Collective where there is real data."""
    task = find_task(plan.model, gpu.dry).with_length(plan.length)
    if task.load:
        return Feed(gpu, task.load(plan.storage), worker, workers, plan.batch, plan.steps, plan.seed)
    example, target, dtype = task.example(None)
    dtype = dtype if dtype == "int32" else plan.storage
    return DryFeed(gpu, example, target, dtype, _rows_of(plan, worker, workers), plan.steps)


def _rows_of(plan: Plan, worker: int, workers: int) -> int:
    """Return how many rows of a batch are this worker's."""
    if worker < 0:
        return 0
    share = data.share(plan.batch, worker, workers)
    return share.stop - share.start


class _Step:
    """One training step of one rank: its passes over the micro-batches, then the update."""

    def __init__(self, trainer: Trainer, inputs: Any, targets: Any) -> None:
        self.trainer, self.gpu, self.plan = trainer, trainer.gpu, trainer.plan
        self.grid: Grid = trainer.grid
        self.strategy: Strategy = trainer.strategy
        self.inputs, self.targets = inputs, targets
        self.saved: dict[int, Any] = {}
        self.losses: dict[int, Any] = {}
        self.stats: list[Any] = []
        self.shared = _shared(trainer)

    def run(self) -> list[Any]:
        """Do the step; return this rank's parts of the loss, on the device."""
        self.strategy.begin()
        if self.strategy.worker >= 0:
            self._passes()
        self.strategy.finish()
        return self.stats

    def _passes(self) -> None:
        plan, grid = self.plan, self.grid
        order = passes(plan.schedule, grid.stage, grid.stages, plan.micro_batches)
        last = max(place for place, (kind, _) in enumerate(order) if kind == BACKWARD)
        begun = False
        for place, (kind, micro) in enumerate(order):
            if kind == FORWARD:
                with self.gpu.span("forward"):
                    self._forward(micro)
                continue
            with self.gpu.span("backward"):
                if place == last:
                    self._backward(micro, begun)
                else:
                    with self.strategy.no_sync():
                        self._backward(micro, begun)
            begun = True
        if self.trainer.channel is not None:
            self.trainer.channel.finish()
        self._sum_shared()

    def _forward(self, micro: int) -> None:
        gpu, trainer, grid = self.gpu, self.trainer, self.grid
        rows = self._rows(micro)
        if grid.stage == 0:
            x = gpu.array(self.inputs[rows], name="batch to device")
        else:
            x = self._receive(rows.stop - rows.start, grid.stage - 1, FORWARD)
        y, self.saved[micro] = trainer.model.forward(gpu, x)
        del x
        if grid.stage < grid.stages - 1:
            trainer.channel.send(y, grid.stage + 1, FORWARD)  # type: ignore[union-attr]
            return
        targets = gpu.array(self.targets[rows], name="targets to device")
        stats, self.losses[micro] = trainer.loss.forward(gpu, y, targets, total=trainer.total)
        self.stats.append(stats)

    def _backward(self, micro: int, accumulate: bool) -> None:
        gpu, trainer, grid = self.gpu, self.trainer, self.grid
        rows = self._rows(micro)
        if grid.stage == grid.stages - 1:
            dy = trainer.loss.backward(gpu, self.losses.pop(micro), scale=trainer.loss_factor)
        else:
            dy = self._receive(rows.stop - rows.start, grid.stage + 1, BACKWARD)
        dx = trainer.model.backward(gpu, self.saved.pop(micro), dy, ready=self._ready, accumulate=accumulate)
        if grid.stage > 0:
            trainer.channel.send(dx, grid.stage - 1, BACKWARD)  # type: ignore[union-attr]

    def _ready(self, parameter: Any) -> None:
        if parameter not in self.shared:
            self.strategy.ready(parameter)

    def _sum_shared(self) -> None:
        """Sum the gradients of parameters that the first and the last stage share."""
        for parameter in self.shared:
            with self.gpu.span("pipeline shared"):
                self._exchange(parameter)
            self.strategy.ready(parameter)

    def _exchange(self, parameter: Any) -> None:
        """Swap gradients with the other stage and add, both in one order: the first stage's comes first."""
        comm = self.grid.pipeline
        other = comm.size - 1 if comm.rank == 0 else 0
        mine = parameter.grad.reshape(-1)
        got = comm.empty_like(mine)
        comm.sendrecv(mine, other, got, other, tag=2)
        comm.reduce("sum", mine, got, received_first=comm.rank != 0)

    def _receive(self, rows: int, source: int, kind: str) -> Any:
        trainer, grid = self.trainer, self.grid
        border = trainer.begins[grid.stage if kind == FORWARD else grid.stage + 1]
        shape, dtype = output_of(trainer, rows, border)
        return trainer.channel.receive(shape, dtype, source, kind)  # type: ignore[union-attr]

    def _rows(self, micro: int) -> slice:
        return data.share(len(self.inputs), micro, self.plan.micro_batches)


def _shared(trainer: Trainer) -> set[Any]:
    """Return this stage's parameters that another stage has too: a head tied to the embedding."""
    if not trainer.whole_layers:
        return set()
    here = set(trainer.model.trainable())
    begin, end = trainer.begins[trainer.grid.stage], trainer.begins[trainer.grid.stage + 1]
    others = trainer.whole_layers[:begin] + trainer.whole_layers[end:]
    return here & {parameter for layer in others for parameter in layer.parameters()}


def _inside(plan: Plan) -> Callable[..., Any]:
    """Return the all-reduce within a layer, whose ranks share a node."""
    return find("all_reduce", "ring" if plan.algorithm == "hierarchical" else plan.algorithm)


def _whole_size(model: Model) -> int:
    """Return how many parameters the model has, with those parts of tensors counted whole."""
    return sum(prod(parameter.whole_shape or parameter.shape) for parameter in model.parameters())
