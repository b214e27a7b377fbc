"""A user's own model: a TOML or CSV file with one layer a row, shapes inferred from the input on.

TOML has `[model]` with `input` (the shape of one example) or `vocabulary` and `length` (for text), and one
`[[layers]]` a layer; CSV has the same keys as columns, its first row being of kind `input`, with `shape` such as
3x224x224. `kind` says which layer, `repeat` how often. A layer of kind `custom` has costs but no arithmetic:
`parameters`, `flops` forward for one example, `outputs` elements (and `saved` elements kept for backward).
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from emu.catalog.schema import unknown
from emu.errors import ConfigError

from .activation import GELU, ReLU
from .attention import Attention
from .batchnorm import BatchNorm2d
from .conv import Conv2d, output_size
from .custom import Custom
from .embedding import Embedding
from .layer import Layer
from .linear import Linear
from .model import Model
from .norm import LayerNorm
from .pool import AvgPool2d, Flatten, MaxPool2d
from .transformers import Options, gpt_block

Row = Mapping[str, Any]
Size = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of layer: the keys it needs and may have, and how it is made.

    `make(name, shape of one example, row, options)` returns the layer and the shape of its output.
    """

    needs: tuple[str, ...]
    may: tuple[str, ...]
    dims: int | None
    make: Callable[[str, Size, Row, Options], tuple[Layer, Size]]


@dataclass(frozen=True)
class Own:
    """What a user's file says."""

    name: str
    example: Size
    target: Size
    integers: bool
    classes: int
    make: Callable[[Mapping[str, Any], Options], Model]


def read_layers(path: str) -> Own:
    """Read a user's layers; each row is checked here. Raise ConfigError that names the file, row and key."""
    name, example, integers, rows = _read_csv(path) if path.endswith(".csv") else _read_toml(path)
    if not rows:
        raise ConfigError(f"{path}: at least one layer is expected, got none; add [[layers]] or rows")

    def make(_: Mapping[str, Any], options: Options) -> Model:
        return Model(name, _layers(path, example, rows, options)[0])

    shape = _layers(path, example, rows, Options())[1]
    target = shape[:-1]
    return Own(name, example, target, integers, shape[-1], make)


def read_toml(path: str) -> dict[str, Any]:
    """Read a TOML file. Raise ConfigError where it cannot be read or is none."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: must be TOML, got an error: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def _layers(path: str, shape: Size, rows: list[Row], options: Options) -> tuple[list[Layer], Size]:
    layers: list[Layer] = []
    for index, row in enumerate(rows):
        where = f"{path} layer {index + 1}"
        kind = _checked(row, where)
        for again in range(row.get("repeat", 1)):
            if kind.dims is not None and len(shape) != kind.dims:
                raise ConfigError(
                    f"{where}: {row['kind']} takes examples of {kind.dims} dimensions, got shape {shape}; "
                    "add a flatten or change the input"
                )
            name = str(row.get("name") or f"layer{index}") + (f".{again}" if row.get("repeat", 1) > 1 else "")
            layer, shape = kind.make(name, shape, row, options)
            layers.append(layer)
    return layers, shape


def _checked(row: Row, where: str) -> Kind:
    kind = KINDS.get(row.get("kind", ""))
    if kind is None:
        raise ConfigError(f"{where}: {unknown('kind', str(row.get('kind', '')), KINDS)}")
    for key, value in row.items():
        if key not in ("kind", "name", "repeat", *kind.needs, *kind.may):
            raise ConfigError(f"{where}: {unknown('key', key, (*kind.needs, *kind.may, 'name', 'repeat'))}")
        least = 0 if key in ("padding", "parameters", "flops", "saved") else 1
        if key not in ("kind", "name", "bias") and (not isinstance(value, int) or value < least):
            raise ConfigError(f"{where} {key}: must be a whole number of at least {least}, got {value!r}")
    for key in kind.needs:
        if key not in row:
            raise ConfigError(f"{where}: {row['kind']} needs the key {key!r}; add it")
    return kind


def _read_toml(path: str) -> tuple[str, Size, bool, list[Row]]:
    document = read_toml(path)
    for key in document:
        if key not in ("model", "layers"):
            raise ConfigError(f"{path}: {unknown('table', key, ('model', 'layers'))}")
    model, layers = document.get("model", {}), document.get("layers", [])
    if not isinstance(model, dict) or not isinstance(layers, list):
        raise ConfigError(
            f"{path}: a table [model] and tables [[layers]] are expected, got something else; see docs/models.md"
        )
    for key in model:
        if key not in ("name", "input", "length"):
            raise ConfigError(f"{path} [model]: {unknown('key', key, ('name', 'input', 'length', 'family'))}")
    if "length" in model:
        example, integers = (model["length"],), True
    elif isinstance(model.get("input"), list):
        example, integers = tuple(model["input"]), False
    else:
        raise ConfigError(f"{path} [model]: needs input = [features or channels, height, width], or length for text")
    _check_input(example, f"{path} [model]")
    return str(model.get("name", Path(path).stem)), example, integers, layers


def _read_csv(path: str) -> tuple[str, Size, bool, list[Row]]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows: list[Row] = [_cells(row, f"{path} line {i + 2}") for i, row in enumerate(csv.DictReader(file))]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    if not rows or rows[0].get("kind") != "input" or not ("shape" in rows[0] or "length" in rows[0]):
        raise ConfigError(f"{path}: the first row must be of kind input, with a shape such as 3x224x224 or a length")
    first = rows[0]
    integers = "length" in first
    parts = [first["length"]] if integers else str(first["shape"]).split("x")
    example = tuple(int(part) if str(part).isdigit() else 0 for part in parts)
    _check_input(example, f"{path} line 2")
    return Path(path).stem, example, integers, rows[1:]


def _cells(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Read one line of a CSV: empty cells are left out, whole numbers become numbers."""
    if None in row or None in row.values():
        raise ConfigError(f"{where}: as many cells as the header has are expected; check the commas")
    cells = {key.strip(): value.strip() for key, value in row.items() if value.strip()}
    return {key: _number(value) if key not in ("kind", "name", "shape") else value for key, value in cells.items()}


def _number(value: str) -> Any:
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if number.is_integer() else value


def _check_input(example: Size, where: str) -> None:
    if not example or any(not isinstance(size, int) or size < 1 for size in example):
        raise ConfigError(f"{where}: the input must be whole numbers of at least 1, got {list(example)}")


def _linear(name: str, shape: Size, row: Row, options: Options) -> tuple[Layer, Size]:
    layer = Linear(name, shape[-1], row["outputs"], bias=row.get("bias", True), dtype=options.dtype, math=options.math)
    return layer, (*shape[:-1], row["outputs"])


def _conv(name: str, shape: Size, row: Row, options: Options) -> tuple[Layer, Size]:
    window = row["kernel"], row.get("stride", 1), row.get("padding", 0)
    layer = Conv2d(
        name, shape[0], row["outputs"], *window, bias=row.get("bias", True), dtype=options.dtype, math=options.math
    )
    return layer, (row["outputs"], *(output_size(name, size, *window) for size in shape[1:]))


def _max_pool(name: str, shape: Size, row: Row, options: Options) -> tuple[Layer, Size]:
    window = row["kernel"], row.get("stride", row["kernel"]), row.get("padding", 0)
    return MaxPool2d(name, *window), (shape[0], *(output_size(name, size, *window) for size in shape[1:]))


def _avg_pool(name: str, shape: Size, row: Row, options: Options) -> tuple[Layer, Size]:
    kernel = row.get("kernel") or shape[-1]
    stride = row.get("stride", kernel)
    sides = (output_size(name, size, kernel, stride, 0) for size in shape[1:])
    return AvgPool2d(name, kernel, stride), (shape[0], *sides)


def _embedding(name: str, shape: Size, row: Row, options: Options) -> tuple[Layer, Size]:
    positions = row.get("positions")
    layer = Embedding(name, row["vocabulary"], row["width"], positions, dtype=options.dtype)
    return layer, (*shape, row["width"])


def _attention(name: str, shape: Size, row: Row, options: Options) -> tuple[Layer, Size]:
    heads = row["heads"]
    groups = row.get("groups", heads)
    if shape[-1] % (heads + 2 * groups):
        raise ConfigError(f"{name}: the input must be a multiple of {heads + 2 * groups} wide, got {shape[-1]}")
    layer = Attention(name, heads, groups, fused=options.fused, math=options.math)
    return layer, (shape[0], shape[1] // (heads + 2 * groups) * heads)


def _block(name: str, shape: Size, row: Row, options: Options) -> tuple[Layer, Size]:
    if shape[-1] % row["heads"]:
        raise ConfigError(f"{name}: the width must be a multiple of heads, got {shape[-1]} and {row['heads']}")
    block = gpt_block(name, shape[-1], row["heads"], row.get("repeat", 1), options)
    return options.block(block), shape


def _custom(name: str, shape: Size, row: Row, options: Options) -> tuple[Layer, Size]:
    layer = Custom(
        name, row["parameters"], row["flops"], row["outputs"], row.get("saved"), dtype=options.dtype,
        math=options.math,
    )  # fmt: skip
    return layer, (row["outputs"],)


KINDS: dict[str, Kind] = {
    "linear": Kind(("outputs",), ("bias",), None, _linear),
    "relu": Kind((), (), None, lambda name, shape, row, options: (ReLU(name), shape)),
    "gelu": Kind((), (), None, lambda name, shape, row, options: (GELU(name), shape)),
    "layernorm": Kind(
        (), (), None, lambda name, shape, row, options: (LayerNorm(name, shape[-1], dtype=options.dtype), shape)
    ),
    "conv": Kind(("outputs", "kernel"), ("stride", "padding", "bias"), 3, _conv),
    "batchnorm": Kind(
        (), (), 3, lambda name, shape, row, options: (BatchNorm2d(name, shape[0], dtype=options.dtype), shape)
    ),
    "maxpool": Kind(("kernel",), ("stride", "padding"), 3, _max_pool),
    "avgpool": Kind((), ("kernel", "stride"), 3, _avg_pool),
    "flatten": Kind((), (), None, lambda name, shape, row, options: (Flatten(name), (prod(shape),))),
    "embedding": Kind(("vocabulary", "width"), ("positions",), 1, _embedding),
    "attention": Kind(("heads",), ("groups",), 2, _attention),
    "block": Kind(("heads",), (), 2, _block),
    "custom": Kind(("parameters", "flops", "outputs"), ("saved",), None, _custom),
}
"""The kinds of layers that a file may name. To add one: a line here."""
