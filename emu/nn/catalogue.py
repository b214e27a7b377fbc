"""Models by name: public shapes from the catalogue, or a user's own file, to be built at any precision.

find("gpt3-175b").build(dtype="float16", fused=True)
find("my_layers.csv").build()
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any

from emu.catalog.schema import unknown
from emu.errors import ConfigError

from .architectures import FAMILIES, SIZES
from .model import Model
from .own import read_layers, read_toml
from .split import Split
from .transformers import Options

_WORDS = ("family", "aliases", "source", "note")


@dataclass(frozen=True)
class Shape:
    """A model that can be built: its family and sizes, what one example looks like, and where it comes from.

    `example` is the shape of one input, without the batch; `target` that of its class numbers: (length,) for
    a model of text, () for one of images.
    """

    name: str
    family: str
    sizes: Mapping[str, Any]
    example: tuple[int, ...]
    target: tuple[int, ...]
    integers: bool
    classes: int
    make: Callable[[Mapping[str, Any], Options], Model]
    source: str = ""
    note: str = ""

    def build(
        self,
        *,
        dtype: str = "float32",
        math: str | None = None,
        fused: bool = False,
        recompute: bool = False,
        split: Split | None = None,
    ) -> Model:
        """Make the model, or one rank's part of a transformer. It has no arrays yet: at full size, allocate it on a
        dry GPU only."""
        if split is not None and not self.integers:
            raise ConfigError(f"model {self.name}: only transformers are split over ranks, got split={split.parts}")
        if split is not None and split.vocabulary and self.family == "layers":
            raise ConfigError(f"model {self.name}: of layers one by one only blocks are split, got a split vocabulary")
        model = self.make(self.sizes, Options(dtype, math, fused, recompute, split))
        model.name = self.name
        return model

    def with_length(self, length: int) -> Shape:
        """Return the same model for another sequence length."""
        if not self.integers:
            raise ConfigError(f"model {self.name}: only a model of text has a length, got length={length}")
        if length < 1:
            raise ConfigError(f"model {self.name}: length must be at least 1, got {length}")
        sizes = {**self.sizes, "length": length}
        return replace(self, sizes=sizes, example=(length,), target=(length,))

    def inputs(self, batch: int, dtype: str = "float32") -> tuple[tuple[int, ...], str]:
        """Return shape and dtype of a batch of inputs."""
        return (batch, *self.example), "int32" if self.integers else dtype

    def targets(self, batch: int) -> tuple[tuple[int, ...], str]:
        """Return shape and dtype of a batch of targets."""
        return (batch, *self.target), "int32"

    def rows(self, batch: int) -> int:
        """Return how many predictions a batch holds: what the loss is the mean over."""
        return batch * prod(self.target)


def names() -> list[str]:
    """Return the names of all models of the catalogue, without aliases."""
    return list(_tables()["models"])


def source(key: str) -> str:
    """Return in words what a source's key stands for."""
    entry = _tables()["sources"].get(key)
    return f"{entry['title']} ({entry['where']})" if entry else key


def aliases() -> dict[str, str]:
    """Return the other names of models, and the model that each stands for."""
    return {alias: key for key, raw in _tables()["models"].items() for alias in raw.get("aliases", ())}


def find(name: str) -> Shape:
    """Return a model by its name or alias, or from a user's .toml or .csv file. Raise ConfigError otherwise."""
    if name.endswith((".toml", ".csv")):
        return _from_file(name)
    models = _tables()["models"]
    key = name if name in models else aliases().get(name)
    if key is None:
        raise ConfigError(f"model: {unknown('model', name, [*models, *aliases()])}, or the path of a .toml or .csv")
    return _shape(key, models[key], f"catalogue [models.{key}]")


def _from_file(path: str) -> Shape:
    if path.endswith(".toml"):
        document = read_toml(path)
        raw = document.get("model", {})
        if isinstance(raw, dict) and "family" in raw:
            return _shape(raw.get("name", Path(path).stem), {k: v for k, v in raw.items() if k != "name"}, path)
    own = read_layers(path)
    return Shape(own.name, "layers", {}, own.example, own.target, own.integers, own.classes, own.make, source=path)


def _shape(name: str, raw: Mapping[str, Any], where: str) -> Shape:
    family = raw.get("family")
    if family not in FAMILIES:
        raise ConfigError(f"{where}: {unknown('family', str(family), FAMILIES)}")
    needed, optional = SIZES[family]
    for key in raw:
        if key not in (*_WORDS, *needed, *optional):
            raise ConfigError(f"{where}: {unknown('key', key, (*needed, *optional))}")
    for key in needed:
        if key not in raw:
            raise ConfigError(f"{where}: a {family} needs the key {key!r}; add it")
    sizes = {key: _size(raw[key], f"{where} {key}") for key in (*needed, *optional) if key in raw}
    _check_heads(sizes, where)
    text = "vocabulary" in sizes
    example = (sizes["length"],) if text else tuple(sizes["image"])
    return Shape(
        name, family, sizes, example, example if text else (), text, sizes["vocabulary" if text else "classes"],
        FAMILIES[family], raw.get("source", where), raw.get("note", ""),
    )  # fmt: skip


def _size(value: Any, where: str) -> Any:
    items = value if isinstance(value, list) else [value]
    if not items or any(not isinstance(item, int) or isinstance(item, bool) or item < 1 for item in items):
        raise ConfigError(f"{where}: must be a whole number of at least 1, or a list of such, got {value!r}")
    return value


def _check_heads(sizes: Mapping[str, Any], where: str) -> None:
    heads, groups = sizes.get("heads", 1), sizes.get("groups")
    if sizes.get("width", heads) % heads:
        raise ConfigError(f"{where}: width must be a multiple of heads, got {sizes['width']} and {heads}")
    if groups is not None and heads % groups:
        raise ConfigError(f"{where}: heads must be a multiple of groups, got {heads} and {groups}")
    for key in ("blocks", "image"):
        if key in sizes and not isinstance(sizes[key], list):
            raise ConfigError(f"{where} {key}: must be a list, got {sizes[key]!r}")
    if len(sizes.get("image", (1, 1, 1))) != 3:
        raise ConfigError(f"{where} image: must be [channels, height, width], got {sizes['image']}")


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(resources.files("emu.catalog").joinpath("models.toml").read_text(encoding="utf-8"))
