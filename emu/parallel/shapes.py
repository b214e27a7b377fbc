"""What flows between pipeline stages: shapes and dtypes, found by running the layers dry."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from emu.nn.describe import Meter
from emu.parallel.tasks import Build, find_task
from emu.parallel.tensor import as_split

if TYPE_CHECKING:
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


def _run(model: Any, shape: tuple[int, ...], dtype: str) -> list[tuple[tuple[int, ...], str]]:
    meter = Meter()
    model.allocate(meter)
    x = meter.empty(shape, dtype)
    found = [(shape, dtype)]
    for layer in model.layers:
        x, _ = layer.forward(meter, x)
        found.append((x.shape, x.dtype.name))
    return found
