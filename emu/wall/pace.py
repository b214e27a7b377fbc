"""Waiting for a moment on this host's clock, precisely and without burning a core.

A sleep ends late by what it takes to wake a core, the later the longer it has slept: on a quiet host 0.1 ms after
milliseconds, 0.03 ms after a tenth of that. So the last stretches before a moment are short sleeps, and the very
last is spent awake. On a busy host what matters is who gets a core first: threads that wait ask for a short time
slice (a smaller portion, not a smaller share), so that they may interrupt who has a long one, a kernel's work.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

now = time.monotonic  # one clock for all processes of a host

FAR_S = 1e-3  # up to here before a moment one sleep goes on ...
NEAR_S = 150e-6  # ... then shorter ones up to here ...
AWAKE_S = 30e-6  # ... and the rest is not slept
SHORT_SLICE_NS, LONG_SLICE_NS = 100_000, 20_000_000  # Linux gives 0.1 to 100 ms
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # the number of the system call, by machine
_SET_TIMER_SLACK = 29
_KEEP_POLICY = 8


def sleep_until(moment: float) -> float:
    """Return at `moment` (or at once, if it has passed), never before; return how late that was."""
    while True:
        left = moment - now()
        if left <= 0:
            return -left
        if left > 1.5 * FAR_S:
            time.sleep(left - FAR_S)
        elif left > NEAR_S:
            time.sleep(max(AWAKE_S, min(left - NEAR_S, left / 2)))
        elif left > AWAKE_S:
            time.sleep(left - AWAKE_S)


def sharpen() -> None:
    """Let this thread's sleeps end when asked, not up to 50 us later (Linux), and let it interrupt who works."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, 1, 0, 0, 0)
        _take_slices_of(SHORT_SLICE_NS)


@contextmanager
def working() -> Iterator[None]:
    """Let whoever has waited interrupt what this thread does meanwhile."""
    _take_slices_of(LONG_SLICE_NS)
    try:
        yield
    finally:
        _take_slices_of(SHORT_SLICE_NS)


@cache
def _slice_setter() -> Callable[[Any], int] | None:
    """Return the system call that sets a thread's time slice; None where there is none (Linux has it from 6.12)."""
    number = _SCHED_SETATTR.get(platform.machine()) if sys.platform.startswith("linux") else None
    if number is None:
        return None
    call = partial(ctypes.CDLL(None).syscall, ctypes.c_long(number), 0)

    def set_slice(attributes: Any) -> int:
        return int(call(attributes, 0))

    return set_slice if set_slice(_attributes(SHORT_SLICE_NS)) == 0 else None


@cache
def _attributes(slice_ns: int) -> Any:
    """Return a `struct sched_attr`: this thread's policy and niceness as they are, and a time slice."""
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    return ctypes.create_string_buffer(struct.pack("<IIQiIQQQ", 48, 0, _KEEP_POLICY, nice, 0, slice_ns, 0, 0))


def _take_slices_of(slice_ns: int) -> None:
    setter = _slice_setter()
    if setter is not None:
        setter(_attributes(slice_ns))
