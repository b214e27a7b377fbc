"""How layers compute: the little of a GPU that they need, one launch, and blocks that stay in cache.

A kernel is a plain function `kernel(xp, *arrays, **constants)` whose last arrays are the ones it
writes. It sees arrays of one device module (`xp`: numpy or cupy), never converts them, and never runs dry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Protocol

import numpy as np

from emu.gpu import Cost

__all__ = ["Array", "Cost", "Device", "Kernel", "blocks", "dtype_name", "launch", "rows", "stats_dtype"]

Array = Any
"""An array of the device's module, or a dry array: shape, dtype, size, nbytes, `reshape`, slices as views."""

Kernel = Callable[..., None]

BLOCK_ELEMENTS = 1 << 15
"""Elements of one array that a kernel handles at a time on the host, so that its scratch stays in cache."""


class Device(Protocol):
    """What layers and optimizers use of a Gpu."""

    @property
    def xp(self) -> Any: ...
    @property
    def dry(self) -> bool: ...
    def empty(self, shape: Any, dtype: Any = "float32", purpose: str = "activations") -> Array: ...
    def zeros(self, shape: Any, dtype: Any = "float32", purpose: str = "activations") -> Array: ...
    def launch(self, kernel: Kernel, *arrays: Array, cost: Any, name: str | None = None) -> Any: ...


def launch(
    gpu: Device, kernel: Kernel, /, *arrays: Array, cost: Cost, name: str, writes: int = 1, **constants: Any
) -> None:
    """Launch `kernel(xp, *arrays, **constants)`; its last `writes` arrays are the ones it writes.

    Arithmetic on 16-bit arrays is done in float32 and rounded where it is stored, as tensor cores and
    fused kernels do.
    """
    gpu.launch(partial(_run, gpu.xp, kernel, writes, constants), *arrays, cost=cost, name=name)


def _run(xp: Any, kernel: Kernel, writes: int, constants: dict[str, Any], *arrays: Array) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # as on a GPU, infinities are values
        if not any(is_half(array.dtype) for array in arrays):
            kernel(xp, *arrays, **constants)
        else:
            _run_wide(xp, kernel, writes, constants, arrays)


def _run_wide(xp: Any, kernel: Kernel, writes: int, constants: dict[str, Any], arrays: tuple[Array, ...]) -> None:
    wide = [array.astype(xp.float32) if is_half(array.dtype) else array for array in arrays]
    kernel(xp, *wide, **constants)
    for array, result in zip(arrays[-writes:], wide[-writes:], strict=True):
        if result is not array:
            array[...] = result.astype(array.dtype)


def is_half(dtype: Any) -> bool:
    """Say whether `dtype` is float16 or bfloat16."""
    return dtype.itemsize == 2 and _name(dtype) in ("float16", "bfloat16")


def blocks(xp: Any, length: int, width: int = 1) -> Iterator[slice]:
    """Yield slices that cover `length` rows of `width` elements, each small enough for the host's cache.

    On a real GPU's module it is one slice: there a launch costs more than memory traffic does.
    """
    step = max(1, BLOCK_ELEMENTS // max(1, width)) if xp.__name__ == "numpy" else max(1, length)
    for start in range(0, length, step):
        yield slice(start, min(length, start + step))


def dtype_name(x: Array) -> str:
    """Name the dtype of `x`. (numpy takes microseconds for it, which a dry run would feel.)"""
    return _name(x.dtype)


@cache
def _name(dtype: Any) -> str:
    return str(dtype)


def stats_dtype(x: Array) -> str:
    """Name the dtype that a layer keeps its statistics of `x` in: float32, or float64 where x is."""
    return "float64" if dtype_name(x) == "float64" else "float32"


def rows(array: Array) -> Array:
    """View an array of any rank as a matrix of its last dimension."""
    return array.reshape((math.prod(array.shape[:-1]), array.shape[-1]))
