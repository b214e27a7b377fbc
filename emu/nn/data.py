"""Real data as plain numpy arrays, and the order in which a training run sees it.

Nothing here knows of ranks' arrays or GPUs: a program takes the rows of its part of each global batch.
"""

from __future__ import annotations

import gzip
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from emu.errors import ConfigError


@dataclass(frozen=True)
class Dataset:
    """Examples for training and examples kept apart; row i of `inputs` belongs to row i of `targets`."""

    name: str
    inputs: np.ndarray
    targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray
    classes: int
    symbols: str = ""
    """The characters of a text's vocabulary, in the order of their numbers."""


def digits(dtype: str = "float32", *, images: bool = False) -> Dataset:
    """Return scikit-learn's 1,797 handwritten digits: 1,500 to train on, 297 apart, pixels from 0 to 1.

    Inputs have shape (n, 64), or (n, 1, 8, 8) as `images`. Raise ConfigError without scikit-learn.
    """
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "data 'digits': scikit-learn must be installed, got no module 'sklearn'; pip install 'emu[data]'"
        )
    return _digits(Path(found.submodule_search_locations[0]), dtype, images)


@cache
def _digits(package: Path, dtype: str, images: bool) -> Dataset:
    """Make the digits' dataset; the ranks of a process share one."""
    pixels, labels = _load_digits(package)
    order = np.random.default_rng(0).permutation(len(labels))  # the file is sorted by writer
    inputs = (pixels[order] / 16).astype(_numpy_dtype(dtype))
    if images:
        inputs = inputs.reshape(-1, 1, 8, 8)
    targets = labels[order].astype(np.int32)
    return Dataset("digits", inputs[:1500], targets[:1500], inputs[1500:], targets[1500:], classes=10)


def _load_digits(package: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels and labels that scikit-learn brings, from its file: importing it takes a second a rank."""
    path = package / "datasets" / "data" / "digits.csv.gz"
    if not path.exists():  # a release that keeps it elsewhere
        from sklearn.datasets import load_digits

        return load_digits(return_X_y=True)
    lines = gzip.decompress(path.read_bytes()).decode("ascii").split()
    table = np.array([line.split(",") for line in lines], np.float64)
    return table[:, :-1], table[:, -1].astype(np.int64)


@cache
def text(length: int = 64, *, characters: int = 1 << 20, test_fraction: float = 0.1) -> Dataset:
    """Return the Python standard library's own sources, cut into windows of `length` characters.

    Inputs have shape (n, length); targets are the same characters one later. The first `characters`
    characters of the top-level modules, sorted by name, are taken; the last `test_fraction` is kept apart.
    """
    if length < 1 or characters <= 2 * length:
        raise ConfigError(
            f"data 'text': length must be at least 1 and below half of characters, got {length} and {characters}"
        )
    numbers, symbols = encode(standard_library(characters))
    count = (len(numbers) - 1) // length
    inputs = numbers[: count * length].reshape(count, length)
    targets = numbers[1 : count * length + 1].reshape(count, length)
    split = count - max(1, int(count * test_fraction))
    return Dataset("text", inputs[:split], targets[:split], inputs[split:], targets[split:], len(symbols), symbols)


def standard_library(characters: int) -> str:
    """Return the first `characters` characters of the standard library's top-level sources."""
    folder = Path(sysconfig.get_path("stdlib"))
    parts: list[str] = []
    left = characters
    for path in sorted(folder.glob("*.py")):
        parts.append(path.read_text(encoding="utf-8", errors="replace")[:left])
        left -= len(parts[-1])
        if left <= 0:
            break
    if left == characters:
        raise ConfigError(f"data 'text': {folder} must hold the standard library's *.py files, got none")
    return "".join(parts)


def encode(characters: str) -> tuple[np.ndarray, str]:
    """Return each character's number and the vocabulary; characters beyond ASCII share the last number.

    >>> encode("abca")[0].tolist(), encode("abca")[1]
    ([0, 1, 2, 0], 'abc')
    """
    codes = np.frombuffer(characters.encode("utf-32-le"), np.uint32)
    codes = np.minimum(codes, 128)  # 128 stands for everything beyond ASCII
    present = np.flatnonzero(np.bincount(codes, minlength=129))
    numbers = np.searchsorted(present, np.arange(129)).astype(np.int32)[codes]
    symbols = "".join("\N{REPLACEMENT CHARACTER}" if code == 128 else chr(code) for code in present)
    return numbers, symbols


def batch_rows(examples: int, batch: int, step: int, seed: int) -> np.ndarray:
    """Return the rows of the global batch of `step` (0, 1, …): a shuffle an epoch, batches run on across epochs."""
    if not 1 <= batch or examples < 1:
        raise ConfigError(f"batch: batch and examples must be at least 1, got {batch} and {examples}")
    start, stop = step * batch, (step + 1) * batch
    parts = []
    for epoch in range(start // examples, (stop - 1) // examples + 1):
        order = np.random.default_rng([seed, epoch]).permutation(examples)
        parts.append(order[max(0, start - epoch * examples) : stop - epoch * examples])
    return np.concatenate(parts)


def share(batch: int, rank: int, size: int) -> slice:
    """Return rank's part of a batch over `size` ranks; the first `batch % size` ranks take one more.

    >>> [share(10, rank, 4) for rank in range(4)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None), slice(8, 10, None)]
    """
    each, more = divmod(batch, size)
    start = rank * each + min(rank, more)
    return slice(start, start + each + (rank < more))


def _numpy_dtype(dtype: str) -> np.dtype:
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)
