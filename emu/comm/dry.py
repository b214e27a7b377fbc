"""Arrays without bytes: shapes and dtypes only, for runs of thousands of GPUs in one process.

A dry array has no values: slicing, reshaping and views work and cost nothing; reading a value is an error, since
the program would go another way with real data; writing is ignored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from emu.errors import ConfigError


class DryArray(np.ndarray):
    """An ndarray of one shared element with strides 0."""

    @classmethod
    def of(cls, shape: Any, dtype: Any) -> DryArray:
        """Return a dry array of a shape and dtype."""
        dtype = np.dtype(dtype)
        shape = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        return np.ndarray.__new__(cls, shape, dtype, buffer=_ELEMENT, strides=(0,) * len(shape))

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return found if isinstance(found, DryArray) else _refuse()

    def __setitem__(self, index: Any, value: Any) -> None:
        """Ignore: there is nothing to write to."""

    def fill(self, value: Any) -> None:
        """Ignore: there is nothing to write to."""

    def copy(self, order: Any = "C") -> DryArray:
        """Return another dry array of the same shape."""
        return DryArray.of(self.shape, self.dtype)

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> DryArray:  # type: ignore[override]
        """Return a dry array of the same shape and another dtype."""
        return DryArray.of(self.shape, dtype)

    def view(self, dtype: Any = None, type: Any = None) -> Any:  # noqa: A002
        """Return a dry array of another dtype; the last dimension's bytes stay the same."""
        if dtype is None:
            return super().view()
        dtype = np.dtype(dtype)
        last = self.shape[-1] * self.itemsize
        if last % dtype.itemsize:
            raise ValueError(f"a last dimension of {last} bytes is no multiple of {dtype}'s {dtype.itemsize}")
        return DryArray.of((*self.shape[:-1], last // dtype.itemsize), dtype)

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        _refuse()

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        _refuse()

    def item(self, *args: Any) -> Any:
        """Raise: a dry array has no values."""
        _refuse()

    def tolist(self) -> Any:
        """Raise: a dry array has no values."""
        _refuse()

    def tobytes(self, order: Any = "C") -> Any:
        """Raise: a dry array has no values."""
        _refuse()

    def __float__(self) -> float:
        return _refuse()

    def __int__(self) -> int:
        return _refuse()

    def __bool__(self) -> bool:
        return _refuse()

    def __iter__(self) -> Any:
        _refuse()

    def __repr__(self) -> str:
        return f"DryArray(shape={self.shape}, dtype={self.dtype})"

    __str__ = __repr__


_ELEMENT = np.zeros(16, np.uint8)


def _refuse() -> Any:
    import os
    import sys

    frame = sys._getframe(2)
    while frame.f_back is not None and "numpy" in frame.f_code.co_filename:
        frame = frame.f_back
    raise ConfigError(
        f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}: a dry run has no values to read; "
        "state the branch with gpu.decide(name, value, dry=...), or run with bytes"
    )
