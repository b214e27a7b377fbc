"""MPI's datatypes over numpy's: predefined ones, and those that pick elements out of a buffer.

A datatype is a list of base elements at byte offsets; `offsets` None means that they lie side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from emu.errors import ConfigError

ORDER_C, ORDER_FORTRAN = 56, 57


class Datatype:
    """What one item of a message consists of: `size` bytes of data, items `extent` bytes apart."""

    def __init__(
        self,
        name: str,
        dtype: np.dtype,
        offsets: np.ndarray | None = None,
        lower: int = 0,
        extent: int | None = None,
    ) -> None:
        self.name = name
        self.dtype = dtype  # of a base element
        self.offsets = offsets
        self.elements = 1 if offsets is None else len(offsets)
        self.size = dtype.itemsize * self.elements
        self.lb = lower
        self.extent = extent if extent is not None else dtype.itemsize

    @property
    def ub(self) -> int:
        """Where the next item begins."""
        return self.lb + self.extent

    def at(self) -> np.ndarray:
        """Return the byte offsets of the base elements of one item."""
        return np.zeros(1, np.int64) if self.offsets is None else self.offsets

    def Get_size(self) -> int:
        """Return the bytes of data of one item."""
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Return (lower bound, extent)."""
        return self.lb, self.extent

    Get_true_extent = Get_extent

    def Get_name(self) -> str:
        """Return the name."""
        return self.name

    def Commit(self) -> Datatype:
        """Return itself: nothing needs to be made ready."""
        return self

    def Free(self) -> None:
        """Nothing is held."""

    def Dup(self) -> Datatype:
        """Return the same datatype."""
        return self

    def Create_contiguous(self, count: int) -> Datatype:
        """Return `count` items side by side."""
        return self._blocks("contiguous", [count], [0])

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Return `count` blocks of items, `stride` items apart."""
        return self.Create_hvector(count, blocklength, stride * self.extent)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Return `count` blocks of items, `stride` bytes apart."""
        return self._blocks("vector", [blocklength] * count, [i * stride for i in range(count)])

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Return blocks of items at displacements in items."""
        return self._blocks("indexed", blocklengths, [d * self.extent for d in displacements])

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Return blocks of items at displacements in bytes."""
        return self._blocks("hindexed", blocklengths, displacements)

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Return blocks of one length at displacements in items."""
        return self.Create_indexed([blocklength] * len(displacements), displacements)

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = ORDER_C
    ) -> Datatype:
        """Return a part of an array, whose extent is the whole array's."""
        if order == ORDER_FORTRAN:
            sizes, subsizes, starts = sizes[::-1], subsizes[::-1], starts[::-1]
        index = np.arange(int(np.prod(sizes))).reshape(tuple(sizes))
        part = index[tuple(slice(s, s + n) for s, n in zip(starts, subsizes, strict=True))].ravel()
        offsets = (part[:, None] * self.extent + self.at()).ravel()
        return Datatype("subarray", self.dtype, offsets, 0, int(np.prod(sizes)) * self.extent)

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """Return the same items, `extent` bytes apart."""
        return Datatype(self.name, self.dtype, self.at(), lb, extent)

    @staticmethod
    def Create_struct(
        blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Datatype:
        """Return blocks of several datatypes, as bytes."""
        parts = [
            (displacement + base._blocks("block", [length], [0])._bytes()).ravel()
            for length, displacement, base in zip(blocklengths, displacements, datatypes, strict=True)
        ]
        offsets = np.concatenate(parts)
        return Datatype("struct", np.dtype(np.uint8), offsets, int(offsets.min()), int(np.ptp(offsets)) + 1)

    def _bytes(self) -> np.ndarray:
        return (self.at()[:, None] + np.arange(self.dtype.itemsize)).ravel()

    def _blocks(self, name: str, lengths: Sequence[int], starts: Sequence[int]) -> Datatype:
        """Return blocks of items, `lengths` items each, at byte `starts`."""
        items = [start + np.arange(n, dtype=np.int64) * self.extent for n, start in zip(lengths, starts, strict=True)]
        first = np.concatenate(items) if items else np.zeros(0, np.int64)
        offsets = (first[:, None] + self.at()).ravel()
        if not len(first):
            return Datatype(name, self.dtype, offsets, 0, 0)
        lower = int(first.min()) + self.lb
        return Datatype(name, self.dtype, offsets, lower, int(first.max()) + self.ub - lower)

    def tocode(self) -> str:
        """Return numpy's code of the base element."""
        return self.dtype.char

    @property
    def typestr(self) -> str:
        """numpy's code of the base element."""
        return self.dtype.str

    def Get_envelope(self) -> Any:
        """Raise ConfigError: how a datatype was made is not kept."""
        raise ConfigError("MPI.Datatype.Get_envelope: not supported by emu")

    def __repr__(self) -> str:
        return f"MPI.{self.name}"


_FORTRAN = {
    "F_BOOL": "LOGICAL", "F_INT": "INTEGER", "F_FLOAT": "REAL", "F_DOUBLE": "DOUBLE_PRECISION", "F_COMPLEX": "COMPLEX",
    "F_FLOAT_COMPLEX": "COMPLEX", "F_DOUBLE_COMPLEX": "DOUBLE_COMPLEX",
}  # fmt: skip


def _named() -> dict[str, Datatype]:
    names = {
        "CHAR": "u1", "SIGNED_CHAR": "i1", "UNSIGNED_CHAR": "u1", "BYTE": "u1", "PACKED": "u1", "WCHAR": "i4",
        "SHORT": "i2", "UNSIGNED_SHORT": "u2", "INT": "i4", "UNSIGNED": "u4", "LONG": "i8", "UNSIGNED_LONG": "u8",
        "LONG_LONG": "i8", "UNSIGNED_LONG_LONG": "u8", "FLOAT": "f4", "DOUBLE": "f8", "LONG_DOUBLE": "g",
        "BOOL": "?", "C_BOOL": "?", "CXX_BOOL": "?", "LOGICAL": "i4", "AINT": "i8", "OFFSET": "i8", "COUNT": "i8",
        "C_FLOAT_COMPLEX": "c8", "C_DOUBLE_COMPLEX": "c16", "C_COMPLEX": "c8", "C_LONG_DOUBLE_COMPLEX": "G",
        "CXX_FLOAT_COMPLEX": "c8", "CXX_DOUBLE_COMPLEX": "c16", "COMPLEX": "c8", "DOUBLE_COMPLEX": "c16",
        "CHARACTER": "u1", "INTEGER": "i4", "REAL": "f4", "DOUBLE_PRECISION": "f8",
        "INTEGER1": "i1", "INTEGER2": "i2", "INTEGER4": "i4", "INTEGER8": "i8", "REAL4": "f4", "REAL8": "f8",
        "COMPLEX8": "c8", "COMPLEX16": "c16", "UNSIGNED_INT": "u4", "SIGNED_SHORT": "i2", "SIGNED_INT": "i4",
        "SIGNED_LONG": "i8", "SIGNED_LONG_LONG": "i8", "FLOAT16_T": "f2", "FLOAT32_T": "f4", "FLOAT64_T": "f8",
        "CXX_LONG_DOUBLE_COMPLEX": "G", "LOGICAL1": "i1", "LOGICAL2": "i2", "LOGICAL4": "i4", "LOGICAL8": "i8",
        "REAL2": "f2", "REAL16": "g",
    }  # fmt: skip
    for bits in (8, 16, 32, 64):
        names[f"INT{bits}_T"] = names[f"SINT{bits}_T"] = f"i{bits // 8}"
        names[f"UINT{bits}_T"] = f"u{bits // 8}"
    types = {name: Datatype(name, np.dtype(code)) for name, code in names.items()}
    pairs = {"FLOAT_INT": "f4", "DOUBLE_INT": "f8", "INT_INT": "i4", "LONG_INT": "i8", "SHORT_INT": "i2"}
    for name, code in pairs.items():
        types[name] = Datatype(name, np.dtype([("value", code), ("index", "i4")], align=True))
    types["TWOINT"] = types["INT_INT"]
    for alias, name in _FORTRAN.items():
        types[alias] = types[name]
    return types


NAMED = _named()
DATATYPE_NULL = Datatype("DATATYPE_NULL", np.dtype("V0"))

_BY_CODE = {
    "u1": "UNSIGNED_CHAR", "i1": "SIGNED_CHAR", "i2": "SHORT", "u2": "UNSIGNED_SHORT", "i4": "INT", "u4": "UNSIGNED",
    "i8": "LONG", "u8": "UNSIGNED_LONG", "f4": "FLOAT", "f8": "DOUBLE", "c8": "C_FLOAT_COMPLEX",
    "c16": "C_DOUBLE_COMPLEX", "b1": "C_BOOL",
}  # fmt: skip
_KNOWN: dict[np.dtype, Datatype] = {}


def of_dtype(dtype: np.dtype) -> Datatype:
    """Return the datatype of a numpy dtype."""
    found = _KNOWN.get(dtype)
    if found is None:
        name = _BY_CODE.get(dtype.str[1:]) if dtype.isbuiltin == 1 else None
        found = _KNOWN[dtype] = NAMED[name] if name else Datatype(dtype.name, dtype)
    return found


def datatype_of(given: Any) -> Datatype:
    """Return the datatype that a buffer spec gives: one of these, or what numpy calls a dtype."""
    if isinstance(given, Datatype):
        return given
    try:
        return of_dtype(np.dtype(given))
    except TypeError:
        raise ConfigError(f"buffer spec: a datatype is expected, got {given!r}; such as MPI.DOUBLE") from None
