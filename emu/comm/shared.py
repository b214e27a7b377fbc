"""Arrays that the other processes of the host can read as their own memory.

Each process has one arena, a file in memory that is mapped whole. It is as long as the machine's memory and takes none
until it is written. What is freed is used again and not given back before the process ends.
"""

from __future__ import annotations

import bisect
import mmap
import os
import threading
from collections import deque
from typing import Any

import numpy as np

LEAST_BYTES = 16384  # shorter arrays are better sent whole
_ALIGNED = 4096
_NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux: address space only


class Arena:
    """This process's arena. Raise OSError where there can be none."""

    def __init__(self) -> None:
        self.nbytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.file = os.memfd_create("emu-arrays", os.MFD_CLOEXEC)
        self.memory, self.start = _map(self.file, self.nbytes)
        self._free = [(0, self.nbytes)]  # offset and length, in order
        self._returned: deque[tuple[int, int]] = deque()  # freed, and not yet among those
        self._taking = threading.Lock()

    def empty(self, shape: Any, dtype: Any) -> np.ndarray:
        """Return an uninitialised array; of ordinary memory if it is short, or if there is no room."""
        dtype = np.dtype(dtype)
        shape = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        offset = self._take(-(-nbytes // _ALIGNED) * _ALIGNED) if nbytes >= LEAST_BYTES else None
        if offset is None:
            return np.empty(shape, dtype)
        return np.asarray(_Piece(self, offset, nbytes)).view(dtype).reshape(shape)

    def holds(self, address: int) -> bool:
        """Tell whether an address lies in the arena."""
        return self.start <= address < self.start + self.nbytes

    def _take(self, nbytes: int) -> int | None:
        with self._taking:
            while self._returned:
                self._merge(*self._returned.popleft())
            for place, (offset, length) in enumerate(self._free):
                if length >= nbytes:
                    self._free[place : place + 1] = [(offset + nbytes, length - nbytes)] if length > nbytes else []
                    return offset
            return None

    def give_back(self, offset: int, nbytes: int) -> None:
        """Let the memory be used again. Whatever thread lets go of an array calls this, at any time."""
        self._returned.append((offset, nbytes))

    def _merge(self, offset: int, nbytes: int) -> None:
        free = self._free
        place = bisect.bisect(free, (offset, 0))
        if place < len(free) and offset + nbytes == free[place][0]:
            nbytes += free.pop(place)[1]
        if place and sum(free[place - 1]) == offset:
            place -= 1
            before = free.pop(place)
            offset, nbytes = before[0], before[1] + nbytes
        free.insert(place, (offset, nbytes))


class _Piece:
    """Memory of an array; it goes back when the last view of it is gone."""

    def __init__(self, arena: Arena, offset: int, nbytes: int) -> None:
        self._arena, self._offset, self._length = arena, offset, -(-nbytes // _ALIGNED) * _ALIGNED
        self.__array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (arena.start + offset, False), "version": 3
        }  # fmt: skip

    def __del__(self) -> None:
        self._arena.give_back(self._offset, self._length)


class Window:
    """Another process's arena, which starts at `start` there. It is mapped when it is first needed."""

    def __init__(self, pid: int, file: int, start: int, nbytes: int) -> None:
        self._place = (pid, file)
        self.start, self.nbytes = start, nbytes
        self._memory: Any = None
        self._mine = 0

    def address(self, theirs: int) -> int:
        """Return where their address lies in this process; 0 if it is not in the arena."""
        if not self.start <= theirs < self.start + self.nbytes:
            return 0
        if self._memory is None:
            pid, file = self._place
            opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
            self._memory, self._mine = _map(opened, self.nbytes)
            os.close(opened)
        return self._mine + theirs - self.start


def _map(file: int, nbytes: int) -> tuple[mmap.mmap, int]:
    """Map a file of memory; return the mapping and its address."""
    if os.fstat(file).st_size < nbytes:
        os.ftruncate(file, nbytes)
    memory = mmap.mmap(file, nbytes, flags=mmap.MAP_SHARED | _NO_RESERVE)
    return memory, np.frombuffer(memory, np.uint8, 1).ctypes.data
