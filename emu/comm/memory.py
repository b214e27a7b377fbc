"""Reading another process's memory, where the kernel allows it: one copy from its buffer to where it is needed.

Linux's process_vm_readv, which MPI libraries use for long messages on one host too. Containers may forbid it.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from emu.comm.shared import Window
from emu.errors import EmuError

_PR_SET_PTRACER, _ANY_PROCESS = 0x59616D61, -1


class _Piece(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("nbytes", ctypes.c_size_t)]


class Reader:
    """Reads from the memory of the process `pid` of this host; what lies in its arena is seen through `window`."""

    def __init__(self, pid: int, window: Window | None = None) -> None:
        self.pid = pid
        self.window = window
        self._mine, self._theirs = _Piece(), _Piece()
        self._arguments = (pid, ctypes.addressof(self._mine), 1, ctypes.addressof(self._theirs), 1, 0)
        self._read = _function()

    def seen(self, start: int, size: int, dtype: np.dtype) -> np.ndarray | None:
        """Return what stands at their address `start` as an array, if this process sees that memory."""
        mine = self.window.address(start) if self.window is not None else 0
        return at(mine, size, dtype) if mine else None

    def read(self, into: int, start: int, nbytes: int) -> None:
        """Copy what stands at their address `start` to my address `into`. Raise EmuError if that fails."""
        seen = self.window.address(start) if self.window is not None else 0
        if seen:
            ctypes.memmove(into, seen, nbytes)
            return
        mine, theirs, read = self._mine, self._theirs, self._read
        while nbytes:
            mine.start, mine.nbytes = into, nbytes
            theirs.start, theirs.nbytes = start, nbytes
            got = read(*self._arguments)
            if got <= 0:
                raise EmuError(
                    f"message from process {self.pid}: its memory must be readable, got "
                    f"{os.strerror(ctypes.get_errno())}; see whether that rank has ended"
                )
            into, start, nbytes = into + got, start + got, nbytes - got


@lru_cache(maxsize=1)
def _function() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    function.restype = ctypes.c_ssize_t
    function.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong
    ]  # fmt: skip
    return function


def processes() -> str:
    """Name what processes must share to read each other's memory; empty where it can't be read at all.

    They must know each other by their pid, and be on one host as their user sees it: between hosts that are network
    namespaces of one machine, messages take the network.
    """
    try:
        _function()
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        spaces = (os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "net"))
        return " ".join((socket.gethostname(), boot, *spaces))
    except (OSError, AttributeError, TypeError):
        return ""


def allow_reading() -> None:
    """Let the other processes of this user read this one's memory where the kernel's Yama module would not."""
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(_ANY_PROCESS), 0, 0, 0)


def at(address: int, size: int, dtype: np.dtype) -> np.ndarray:
    """Return the memory at an address as an array that does not own it."""
    if size == 0:
        return np.empty(0, dtype)
    return np.asarray(_At(address, size * dtype.itemsize)).view(dtype)


class _At:
    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3
        }  # fmt: skip
