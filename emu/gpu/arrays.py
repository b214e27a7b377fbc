"""Where an emulated GPU's arrays really live: host memory (numpy), a real GPU (cupy), or nowhere (dry)."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from emu.comm.dry import DryArray
from emu.errors import ConfigError

DEVICES = ("numpy", "cupy")
REUSED_BYTES = 1 << 17
"""Host arrays from this size on are kept for others of about the same size; the C library keeps smaller ones."""


class Arrays(Protocol):
    """Allocates arrays and copies between them and the host."""

    @property
    def xp(self) -> Any:
        """The module that works on these arrays: numpy or cupy."""

    def empty(self, shape: Any, dtype: np.dtype) -> Any:
        """Allocate, uninitialised."""

    def to_device(self, array: Any, data: Any) -> None:
        """Copy host data into an array."""

    def to_host(self, array: Any) -> np.ndarray:
        """Return a copy on the host."""

    def ready(self) -> None:
        """Return when all work on the device is done, so that its buffers may be sent."""


def dtype_of(dtype: Any) -> np.dtype:
    """Return the numpy dtype of a name, bfloat16 included. Raise ConfigError for an unknown one."""
    if isinstance(dtype, np.dtype):
        return dtype
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    try:
        return np.dtype(dtype)
    except TypeError:
        raise ConfigError(f"dtype: a numpy dtype or 'bfloat16' is expected, got {dtype!r}") from None


class _Block(np.ndarray):
    """Memory of an array. Views refer to the array, not past it to a block: that is of another class."""


class NumpyArrays:
    """Arrays in host memory. Large ones take over the memory of those that are gone, as on a GPU.

    The system clears memory that it hands out anew, page by page at the first touch: a tenth of a training step.
    """

    xp = np

    def __init__(self, allocate: Callable[[Any, Any], np.ndarray] = np.empty) -> None:
        self.allocate = allocate  # (shape, dtype) -> new memory
        self._free: dict[int, list[_Block]] = {}  # by size
        self._used: dict[int, tuple[weakref.ref, int]] = {}  # by the array's id

    def empty(self, shape: Any, dtype: np.dtype) -> np.ndarray:
        """Allocate, uninitialised."""
        nbytes = math.prod(shape) * dtype.itemsize if isinstance(shape, tuple) else 0
        return self.allocate(shape, dtype) if nbytes < REUSED_BYTES else self._reused(shape, dtype, nbytes)

    def _reused(self, shape: tuple[int, ...], dtype: np.dtype, nbytes: int) -> np.ndarray:
        size = -(-nbytes // REUSED_BYTES) * REUSED_BYTES
        try:
            block = self._free[size].pop()
        except LookupError:
            block = self._new(size)
        array = np.ndarray(shape, dtype, buffer=block)
        key = id(array)

        def gone(_: Any, used: Any = self._used, free: Any = self._free) -> None:
            used.pop(key, None)
            free.setdefault(size, []).append(block)

        self._used[key] = weakref.ref(array, gone), size
        return array

    def _new(self, size: int) -> _Block:
        """Return new memory; let go of what is free where that is more than what is used."""
        free = sum(each * len(blocks) for each, blocks in list(self._free.items()))
        if free > sum(each for _, each in list(self._used.values())):
            self._free.clear()
        memory = self.allocate((size,), np.uint8).view(_Block)
        return memory.view(_Block)  # once more, or numpy would have arrays refer to what lies below the block

    def to_device(self, array: np.ndarray, data: Any) -> None:
        """Copy host data into an array."""
        array[...] = data

    def to_host(self, array: np.ndarray) -> np.ndarray:
        """Return a copy on the host."""
        return array.copy()

    def ready(self) -> None:
        """Nothing runs behind the host's back."""


class DryArrays:
    """Arrays without bytes."""

    xp = np

    def empty(self, shape: Any, dtype: np.dtype) -> DryArray:
        """Make an array of a shape and dtype, without memory."""
        return DryArray.of(shape, dtype)

    def to_device(self, array: DryArray, data: Any) -> None:
        """Nothing is copied."""

    def to_host(self, array: DryArray) -> np.ndarray:
        """Raise ConfigError: a dry array has no values."""
        return array.item()

    def ready(self) -> None:
        """Nothing runs."""


class CupyArrays:
    """Arrays on a real GPU. Raise ConfigError where cupy or a GPU is missing."""


    xp: Any = None

    def __init__(self) -> None:
        try:
            import cupy

            found = cupy.cuda.runtime.getDeviceCount()
        except Exception as error:
            raise ConfigError(
                f"device cupy: a GPU that cupy sees is expected, got {type(error).__name__}: {error}; "
                "pip install .[cupy] in the checkout, on a machine with a CUDA GPU, or use --device numpy"
            ) from None
        if not found:
            raise ConfigError("device cupy: a GPU that cupy sees is expected, got none; use --device numpy")
        self.xp = cupy

    def empty(self, shape: Any, dtype: np.dtype) -> Any:
        """Allocate, uninitialised."""
        return self.xp.empty(shape, dtype)

    def to_device(self, array: Any, data: Any) -> None:
        """Copy host data into an array."""
        array.set(np.ascontiguousarray(data, dtype=array.dtype))

    def to_host(self, array: Any) -> np.ndarray:
        """Return a copy on the host."""
        return self.xp.asnumpy(array)

    def ready(self) -> None:
        """Return when all work on the device is done."""
        self.xp.cuda.get_current_stream().synchronize()


def arrays_of(
    device: str, dry: bool = False, allocate: Callable[[Any, np.dtype], np.ndarray] = np.empty
) -> Arrays:
    """Return the arrays of a device by its name; those of host memory are from `allocate`."""
    if dry:
        return DryArrays()
    if device not in DEVICES:
        raise ConfigError(f"device: one of {', '.join(DEVICES)} is expected, got {device!r}")
    return NumpyArrays(allocate) if device == "numpy" else CupyArrays()
