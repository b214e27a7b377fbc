"""What can be trained: the small models with their real data, and, dry, every model of the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from math import prod
from typing import Any

from emu.errors import ConfigError
from emu.nn import catalogue, data, models
from emu.nn.data import Dataset
from emu.nn.model import Model
from emu.nn.optim import SGD, Adam, Rule
from emu.nn.split import Split


@dataclass(frozen=True)
class Build:
    """How a model is computed: see `emu.nn.architectures.Options`; `split` is a rank's part of its blocks."""

    dtype: str = "float32"
    math: str | None = None
    recompute: bool = False
    split: Split | None = None


@dataclass(frozen=True)
class Task:
    """A model with its data and its optimizer. Without `load` there is no data: it runs dry."""

    make: Callable[[Any, Build], Model]
    rule: Rule
    load: Callable[[str], Dataset] | None = None
    shape: catalogue.Shape | None = None
    splits: bool = False  # can be tensor parallel

    def example(self, dataset: Any) -> tuple[tuple[int, ...], tuple[int, ...], str]:
        """Return the shapes of one input and of its targets, and the input's dtype."""
        if self.shape is not None:
            return self.shape.example, self.shape.target, "int32" if self.shape.integers else "float32"
        return dataset.inputs.shape[1:], dataset.targets.shape[1:], str(dataset.inputs.dtype)

    def rows(self, dataset: Any) -> int:
        """Return how many predictions one example holds."""
        return prod(self.example(dataset)[1])

    def classes(self, dataset: Any) -> int:
        """Return how many classes there are."""
        return self.shape.classes if self.shape is not None else dataset.classes

    def with_length(self, length: int | None) -> Task:
        """Return the task for another sequence length."""
        if length is None:
            return self
        if self.shape is None:
            raise ConfigError(f"length: a model of the catalogue is expected, got length={length}")
        return _of_shape(self.shape.with_length(length))


def _mlp(_: Any, build: Build) -> Model:
    return models.mlp(dtype=build.dtype, math=build.math)


def _cnn(_: Any, build: Build) -> Model:
    return models.cnn(dtype=build.dtype, math=build.math)


def _gpt(dataset: Any, build: Build) -> Model:
    return models.gpt(
        dataset.classes, dataset.inputs.shape[1], recompute=build.recompute, split=build.split, dtype=build.dtype,
        math=build.math,
    )  # fmt: skip


# Rates at which float32 runs that sum in another order stay together: 1e-5 relative over 200 steps, as measured.
TASKS = {
    "mlp": Task(_mlp, SGD(0.01, 0.9), lambda dtype: data.digits(dtype)),
    "cnn": Task(_cnn, Adam(2e-3), lambda dtype: data.digits(dtype, images=True)),
    "gpt": Task(_gpt, Adam(5e-4), lambda _: data.text(), splits=True),
}


def find_task(name: str, dry: bool = False) -> Task:
    """Return a task by its name; models of the catalogue and of a user's file have no data, so they run dry."""
    if name in TASKS:
        return TASKS[name]
    try:
        task = _of_shape(catalogue.find(name))
    except ConfigError:
        if name.endswith((".toml", ".csv")):
            raise
        near = get_close_matches(name, [*TASKS, *sorted(_catalogue())], 3)
        meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ConfigError(
            f"model: one of {', '.join(TASKS)}, or with --dry one of `emu show models` or a .toml or .csv file, is "
            f"expected, got {name!r}{meant}"
        ) from None
    if not dry:
        raise ConfigError(
            f"model: one of {', '.join(TASKS)} is expected, got {name!r}, which comes without data; add --dry"
        )
    return task


@cache
def _catalogue() -> frozenset[str]:
    return frozenset(catalogue.names())


def _of_shape(shape: catalogue.Shape) -> Task:
    def make(_: Any, build: Build) -> Model:
        return shape.build(
            dtype=build.dtype, math=build.math, fused=True, recompute=build.recompute, split=build.split
        )

    return Task(make, Adam(1e-4), shape=shape, splits=shape.integers)
