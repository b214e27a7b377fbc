"""What running the layers dry tells: shapes between pipeline stages, and the order in which layers are used."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from emu.nn.describe import Meter
from emu.nn.model import Model
from emu.parallel.tasks import Build, find_task
from emu.parallel.tensor import as_split
from emu.parallel.wrap import wrap

if TYPE_CHECKING:
    from emu.parallel.plan import Plan
    from emu.parallel.training import Trainer


def output_of(trainer: Trainer, rows: int, border: int) -> tuple[tuple[int, ...], str]:
    """Return shape and dtype of what enters layer `border` for a micro-batch of so many rows."""
    plan, grid = trainer.plan, trainer.grid
    example, _, dtype = trainer.task.example(trainer.dataset)
    if trainer.dataset is None:
        return _shapes(plan.model, plan.length, plan.storage, grid.parts, example, dtype)(rows)[border]
    known = trainer.__dict__.setdefault("_borders", {})
    if rows not in known:
        build = Build(plan.storage, plan.math, split=as_split(grid.part, grid.parts))
        known[rows] = _run(trainer.task.make(trainer.dataset, build), (rows, *example), dtype)
    return known[rows][border]


@lru_cache(maxsize=8)
def _shapes(name: str, length: int | None, storage: str, parts: int, example: tuple[int, ...], dtype: str) -> Any:
    task = find_task(name, dry=True).with_length(length)
    model = task.make(None, Build(storage, split=as_split(0, parts)))

    @lru_cache(maxsize=8)
    def of(rows: int) -> Any:
        return _run(model, (rows, *example), dtype if dtype == "int32" else storage)

    return of


def order_of_layers(plan: Plan, parts: int, begin: int, end: int) -> tuple[int, ...]:
    """Return the order in which one pass forward and back uses the wrapped layers of a stage, found by a dry run.

    With several micro-batches it holds for a stage alone, which does them one after another.
    """
    return _order(plan.model, plan.length, plan.storage, plan.recompute, parts, begin, end) * plan.micro_batches


@lru_cache(maxsize=8)
def _order(
    name: str, length: int | None, storage: str, recompute: bool, parts: int, begin: int, end: int
) -> tuple[int, ...]:
    task = find_task(name, dry=True).with_length(length)
    whole = task.make(None, Build(storage, recompute=recompute, split=as_split(0, parts)))
    example, _, dtype = task.example(None)
    meter = Meter()
    whole.allocate(meter)
    x = meter.empty((1, *example), dtype if dtype == "int32" else storage)
    for layer in whole.layers[:begin]:
        x, _ = layer.forward(meter, x)
    model, noted = Model(name, whole.layers[begin:end]), _Noted()
    noted.places = {id(layer): i for i, layer in enumerate(wrap(model, noted))}
    y, saved = model.forward(meter, x)
    model.backward(meter, saved, y)
    return tuple(noted.used)


class _Noted:
    """Notes which layers run."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.used: list[int] = []

    def before(self, layer: Any, backward: bool) -> None:
        """Note a layer."""
        self.used.append(self.places[id(layer)])

    def after(self, layer: Any, backward: bool) -> None:
        """Nothing is to be done."""


def _run(model: Any, shape: tuple[int, ...], dtype: str) -> list[tuple[tuple[int, ...], str]]:
    meter = Meter()
    model.allocate(meter)
    x = meter.empty(shape, dtype)
    found = [(shape, dtype)]
    for layer in model.layers:
        x, _ = layer.forward(meter, x)
        found.append((x.shape, x.dtype.name))
    return found
