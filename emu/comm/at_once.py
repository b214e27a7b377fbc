"""Numbers and arrays of many ranks at once, for running a collective's function once for all of its ranks.

An algorithm computes with its rank: `(rank - 1 - step) % p`, `x[cut[c] : cut[c + 1]]`. Given `Ranks` for a rank and an
`Extent` for an array, the same lines compute for every rank of a class. Where the ranks would go different ways (an
`if`, a loop's length, a place in a plain list), `Parted` tells who goes which, and each part is run by itself.

Not its business: what is recorded of it (`together`).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np


class Parted(Exception):
    """Ranks go different ways: `values` tells each one's."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values


class NotAtOnce(Exception):
    """The function does what can't be done for many ranks at once."""


class Ranks(np.ndarray):
    """A whole number of each rank of a class, or a truth about each."""

    @staticmethod
    def of(values: Any) -> Ranks:
        """Return whole numbers as one."""
        return np.ascontiguousarray(values, np.int64).view(Ranks)

    def __bool__(self) -> bool:
        return bool(self._same())

    def __index__(self) -> int:
        return int(self._same())

    def __mod__(self, by: Any) -> Any:
        """Wrap round; numbers within one turn of the range without a division."""
        if by.__class__ is not int or not -by <= int(self.min()) <= int(self.max()) < 2 * by:
            return super().__mod__(by)
        told = np.asarray(self).view(np.uint64)  # negative ones are huge
        turn = np.uint64(by)
        return np.minimum(np.minimum(told, told + turn), told - turn).view(np.int64).view(Ranks)

    def _same(self) -> Any:
        values = np.asarray(self)
        if not (values == values[0]).all():
            raise Parted(values)
        return values[0]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.__index__())


class Table(tuple):
    """A tuple that is looked up for one rank or for many."""

    @cached_property
    def _array(self) -> np.ndarray:
        return np.array(self, np.int64)

    @cached_property
    def _places(self) -> np.ndarray:
        """The place of each number from 0 on; -1 where it has none."""
        found = np.full(int(self._array.max(initial=-1)) + 1, -1, np.int64)
        found[self._array[::-1]] = np.arange(len(self))[::-1]
        return found

    def __getitem__(self, at: Any) -> Any:
        if at.__class__ is Ranks:
            return self._array[at].view(Ranks)
        return tuple.__getitem__(self, at)

    def index(self, value: Any, *bounds: Any) -> Any:
        """Return where a number stands. Raise ValueError where it does not."""
        if value.__class__ is not Ranks:
            return tuple.index(self, value, *bounds)
        inside = (0 <= value) & (value < len(self._places))
        if not inside:
            raise ValueError("tuple.index(x): x not in tuple")
        found = self._places[value].view(Ranks)
        if found < 0:
            raise ValueError("tuple.index(x): x not in tuple")
        return found


def one(values: Any) -> Any:
    """Return a plain number where all ranks have the same."""
    if values.__class__ is not Ranks:
        return values
    plain = np.asarray(values)
    return int(plain[0]) if (plain == plain[0]).all() else values


def _least(values: Any) -> int:
    return int(np.asarray(values).min())


class Bytes:
    """So many bytes of each of the elements that an `Extent` has."""

    __slots__ = ("elements", "each")

    def __init__(self, elements: Ranks, each: int) -> None:
        self.elements, self.each = elements, each

    def __mul__(self, by: int) -> Bytes:
        return Bytes(self.elements, self.each * by)

    __rmul__ = __mul__


class Extent:
    """A one-dimensional array of each rank, without bytes: a dtype, and how long it is."""

    ndim = 1

    def __init__(self, size: Any, dtype: Any) -> None:
        self.size = one(size)
        self.dtype = np.dtype(dtype)
        self.itemsize = self.dtype.itemsize
        differ = self.size.__class__ is Ranks
        self.nbytes: Any = Bytes(self.size, self.itemsize) if differ else self.size * self.itemsize

    @property
    def shape(self) -> tuple[Any]:
        """Its one dimension."""
        return (self.size,)

    @property
    def flags(self) -> Any:
        """Whether it lies in one piece: it always does."""
        return _InOnePiece

    def __getitem__(self, part: slice) -> Extent:
        if part.__class__ is not slice or part.step is not None:
            raise NotAtOnce
        begin, end = 0 if part.start is None else part.start, self.size if part.stop is None else part.stop
        if Ranks not in (begin.__class__, end.__class__, self.size.__class__):
            begin, end, _ = slice(begin, end).indices(self.size)
            end = max(begin, end)
        elif min(_least(begin), _least(end - begin), _least(self.size - end)) < 0:
            raise NotAtOnce
        return Extent(end - begin, self.dtype)

    def reshape(self, *shape: int) -> Extent:
        """Return itself: it is one line already."""
        if shape != (-1,):
            raise NotAtOnce
        return self


class _InOnePiece:
    c_contiguous = True

