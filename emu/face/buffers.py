"""Buffer specs: what mpi4py's upper-case calls take, as contiguous arrays that a wire can move.

    array | [array, MPI.DOUBLE] | [array, count] | [array, count, MPI.DOUBLE] | [array, counts, displs, MPI.DOUBLE]
    | [array, (counts, displs), MPI.DOUBLE] | MPI.IN_PLACE | bytes, bytearray, memoryview, array.array
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emu.errors import ConfigError
from emu.face.datatypes import Datatype, datatype_of, of_dtype


class _Constant:
    """A named value that stands for no buffer."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"MPI.{self.name}"


IN_PLACE, BOTTOM, BUFFER_AUTOMATIC = _Constant("IN_PLACE"), _Constant("BOTTOM"), _Constant("BUFFER_AUTOMATIC")


@dataclass
class Buffer:
    """`x` is the contiguous array to send from or receive into; `unpack` then puts what came in its place."""

    x: np.ndarray
    datatype: Datatype
    memory: np.ndarray | None = None  # where scattered elements lie
    index: np.ndarray | None = None

    def unpack(self, nbytes: int | None = None) -> None:
        """Put received elements where the datatype says."""
        if self.memory is None or self.index is None:
            return
        n = len(self.index) if nbytes is None else nbytes // self.x.itemsize
        self.memory[self.index[:n]] = self.x[:n]


@dataclass
class Blocks:
    """One buffer cut into a block a rank: `counts` and `displs` in items of the datatype."""

    buffer: Any
    memory: np.ndarray
    datatype: Datatype
    counts: list[int]
    displs: list[int]

    def block(self, rank: int) -> Buffer:
        """Return one rank's block."""
        return _pick(self.memory, self.datatype, self.counts[rank], self.displs[rank])

    def whole(self) -> Buffer:
        """Return all blocks one after the other, in rank order."""
        if self.displs == [sum(self.counts[:r]) for r in range(len(self.counts))]:
            return _pick(self.memory, self.datatype, sum(self.counts), 0)
        blocks = [self.block(rank) for rank in range(len(self.counts))]
        x = np.concatenate([b.x for b in blocks])
        positions = np.arange(len(self.memory) // x.itemsize, dtype=np.int64)
        if any(b.index is not None for b in blocks):
            raise ConfigError("buffer spec: displacements with a derived datatype are not supported by emu")
        index = np.concatenate([
            positions[d * self.datatype.elements : (d + n) * self.datatype.elements]
            for n, d in zip(self.counts, self.displs, strict=True)
        ])  # fmt: skip
        end = len(positions) * x.itemsize
        return Buffer(x, self.datatype, self.memory[:end].view(x.dtype), index)


def buffer_of(spec: Any, where: str) -> Buffer:
    """Return what a buffer spec describes. Raise ConfigError, beginning with `where`, for one that is none."""
    data, counts, displ, datatype = _parts(spec, where)
    memory, found = _memory(data, where)
    datatype = datatype if datatype is not None else found
    if counts is None:
        _check_whole(memory, datatype, where)
        counts = (len(memory) - (displ or 0) * datatype.extent) // datatype.extent if datatype.extent else 0
    if not isinstance(counts, (int, np.integer)):
        raise ConfigError(f"{where}: one count is expected, got {counts!r}; [array, count, datatype]")
    return _pick(memory, datatype, int(counts), int(displ or 0), data, where)


def blocks_of(spec: Any, size: int, where: str) -> Blocks:
    """Return a buffer with a block for each of `size` ranks: with counts of its own, or cut evenly."""
    data, counts, displs, datatype = _parts(spec, where)
    memory, found = _memory(data, where)
    datatype = datatype if datatype is not None else found
    if isinstance(counts, (int, np.integer)):
        counts = [int(counts)] * size
    elif counts is None:
        _check_whole(memory, datatype, where)
        total = len(memory) // max(1, datatype.extent)
        if total % size:
            raise ConfigError(
                f"{where}: a multiple of {size} items, one block a rank, is expected, got {total}; "
                "make the buffer longer, or use the variant with counts"
            )
        counts = [total // size] * size
    counts = [int(n) for n in counts]
    displs = _displacements(counts, displs)
    if len(counts) != size or len(displs) != size:
        raise ConfigError(f"{where}: counts and displacements of {size} ranks are expected, got {counts}, {displs}")
    needed = max((d + n for n, d in zip(counts, displs, strict=True) if n), default=0) * datatype.extent
    if needed > len(memory) or min(displs) < 0 or min(counts) < 0:
        raise ConfigError(
            f"{where}: counts and displacements must lie in the buffer of {len(memory)} bytes, got counts {counts} "
            f"at {displs} of {datatype.name}"
        )
    return Blocks(data, memory, datatype, counts, displs)


def _check_whole(memory: np.ndarray, datatype: Datatype, where: str) -> None:
    if datatype.extent and len(memory) % datatype.extent:
        raise ConfigError(
            f"{where}: a whole number of {datatype.name} of {datatype.extent} bytes is expected, got {len(memory)} "
            "bytes; name the datatype of the array, or give a count"
        )


def _displacements(counts: Sequence[int], displs: Any) -> list[int]:
    if displs is None:
        return [sum(counts[:r]) for r in range(len(counts))]
    return [int(d) for d in displs]


def _parts(spec: Any, where: str) -> tuple[Any, Any, Any, Datatype | None]:
    """Return (data, counts, displacements, datatype) of a spec."""
    if not isinstance(spec, (list, tuple)):
        return spec, None, None, None
    items = list(spec)
    if not 2 <= len(items) <= 4:
        raise ConfigError(f"{where}: a spec of 2 to 4 entries is expected, got {len(items)}; [array, MPI.DOUBLE]")
    data, rest = items[0], items[1:]
    datatype = None
    if isinstance(rest[-1], (Datatype, str, np.dtype, type)):
        datatype = datatype_of(rest.pop())
    elif len(rest) == 3 or rest[-1] is None:
        rest.pop()
    if not rest:
        return data, None, None, datatype
    counts, displs = rest[0], rest[1] if len(rest) > 1 else None
    if displs is None and isinstance(counts, (list, tuple)) and len(counts) == 2 and not _is_number(counts[0]):
        counts, displs = counts
    elif displs is None and isinstance(counts, tuple) and len(counts) == 2 and (counts[1] is None):
        counts = counts[0]
    return data, counts, displs, datatype


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, np.integer))


def _memory(data: Any, where: str) -> tuple[np.ndarray, Datatype]:
    """Return a buffer's bytes and the datatype of its elements."""
    if data is None or data is BOTTOM:
        return np.zeros(0, np.uint8), of_dtype(np.dtype(np.uint8))
    if not isinstance(data, np.ndarray):
        if hasattr(data, "__cuda_array_interface__"):
            raise ConfigError(f"{where}: an array in host memory is expected, got {type(data).__name__}; copy it first")
        try:
            data = np.asarray(data) if isinstance(data, np.generic) else np.asarray(memoryview(data))
        except TypeError:
            raise ConfigError(
                f"{where}: a buffer such as a numpy array is expected, got {type(data).__name__}; the lower-case "
                "calls take any object"
            ) from None
    if data.dtype.kind == "O":
        raise ConfigError(f"{where}: an array of numbers is expected, got objects; the lower-case calls take them")
    if not data.flags.c_contiguous:
        if not data.flags.f_contiguous:
            raise ConfigError(
                f"{where}: a contiguous array is expected, got shape {data.shape} with strides {data.strides}; copy it "
                "first (numpy.ascontiguousarray), or describe it by a datatype (Create_vector, Create_subarray)"
            )
        data = data.T
    return data.reshape(-1).view(np.uint8), of_dtype(data.dtype)


def _pick(
    memory: np.ndarray, datatype: Datatype, count: int, displ: int, data: Any = None, where: str = "buffer"
) -> Buffer:
    """Return `count` items of a datatype, beginning `displ` items into the memory."""
    start, n = displ * datatype.extent, count * datatype.size
    if datatype.offsets is None:
        if start + n > len(memory) or count < 0:
            raise ConfigError(
                f"{where}: at most {len(memory)} bytes are there, got {count} of {datatype.name} from byte {start}"
            )
        return Buffer(memory[start : start + n].view(datatype.dtype), datatype)
    offsets = (start + np.arange(count, dtype=np.int64)[:, None] * datatype.extent + datatype.offsets).ravel()
    size = datatype.dtype.itemsize
    if len(offsets) and (offsets.min() < 0 or offsets.max() + size > len(memory)):
        memory, shift = _around(memory)
        offsets = offsets + shift
        if offsets.min() < 0 or offsets.max() + size > len(memory):
            raise ConfigError(
                f"{where}: items must lie in the buffer, got {count} of {datatype.name} from byte {start}"
            )
    whole = memory[: len(memory) // size * size]
    if (offsets % size == 0).all():
        elements, index = whole.view(datatype.dtype), offsets // size
        return Buffer(elements[index], datatype, elements, index)
    index = (offsets[:, None] + np.arange(size)).ravel()
    return Buffer(memory[index], datatype, memory, index)


def _around(memory: np.ndarray) -> tuple[np.ndarray, int]:
    """Return all memory that a slice was taken from, and where the slice begins in it."""
    base: Any = memory
    while isinstance(base.base, np.ndarray):
        base = base.base
    if not (base.flags.c_contiguous or base.flags.f_contiguous):
        return memory, 0
    whole = (base if base.flags.c_contiguous else base.T).reshape(-1).view(np.uint8)
    shift = memory.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return whole, shift
