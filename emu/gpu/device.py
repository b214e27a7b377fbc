"""Gpu: what a rank's program holds. Memory, streams, kernels with their costs, and the communicator.

Work is enqueued on streams, as in CUDA; its time is known after `synchronize()` or when the run has ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from emu.comm.communicator import Comm
from emu.errors import ConfigError
from emu.gpu.arrays import Arrays, dtype_of
from emu.gpu.memory import Memory
from emu.trace import D2H, DTYPE_CODE, H2D, STEP


@dataclass(frozen=True)
class Cost:
    """What a kernel does: FLOPs, and bytes of device memory that it reads and writes."""

    flops: float = 0.0
    bytes: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if not (0 <= self.flops < math.inf and 0 <= self.bytes < math.inf):
            raise ConfigError(f"cost: finite FLOPs and bytes from 0 on are expected, got {self.flops}, {self.bytes}")


@dataclass(frozen=True)
class Event:
    """A point on a stream, to wait for from another one."""

    ordinal: int


class Gpu:
    """One emulated GPU, as its rank's program sees it."""

    def __init__(self, comm: Comm, arrays: Arrays, memory: Memory, decisions: dict[str, Any] | None = None) -> None:
        self.comm = comm
        self.rank = comm.rank
        self.size = comm.size
        self.memory = memory
        self.dry = comm.dry
        self.xp = arrays.xp
        self.decisions = comm.decisions = decisions if decisions is not None else {}
        self._arrays = arrays
        self._log = comm.log
        self._labels: dict[str, int] = {}
        self._host: Callable[[Gpu], float] | None = None  # resolves the time so far

    # Memory

    def empty(self, shape: Any, dtype: Any = "float32", purpose: str = "activations") -> Any:
        """Allocate an array, uninitialised. Raise DeviceOutOfMemory where it does not fit."""
        dtype = dtype_of(dtype)
        sizes = shape if isinstance(shape, (tuple, list)) else (shape,)
        if any(size < 0 for size in sizes):
            raise ConfigError(f"array of {purpose}: sizes from 0 on are expected, got {shape}")
        elements = math.prod(sizes)
        nbytes = elements * dtype.itemsize
        self.memory.take(nbytes, purpose)
        try:
            array = self._arrays.empty(shape, dtype)
        except BaseException:
            self.memory.give(nbytes, purpose)
            raise
        self.memory.watch(array, nbytes, purpose)
        return array

    def zeros(self, shape: Any, dtype: Any = "float32", purpose: str = "activations") -> Any:
        """Allocate an array of zeros."""
        return self.full(shape, 0, dtype, purpose)

    def full(self, shape: Any, value: Any, dtype: Any = "float32", purpose: str = "activations") -> Any:
        """Allocate an array of one value."""
        array = self.empty(shape, dtype, purpose)
        if not self.dry:
            array.fill(value)
        return array

    def array(self, data: Any, dtype: Any = None, purpose: str = "activations", name: str = "copy to device") -> Any:
        """Allocate an array and copy host data into it; the copy over the host's link is recorded."""
        dtype = dtype_of(dtype if dtype is not None else data.dtype)
        array = self.empty(data.shape, dtype, purpose)
        self._copy_in(array, data, name)
        return array

    def _copy_in(self, array: Any, data: Any, name: str) -> None:
        self._log.copy(H2D, self._label(name), array.nbytes)
        if not self.dry:
            self._arrays.to_device(array, data)

    def to_host(self, array: Any, name: str = "copy to host") -> np.ndarray:
        """Copy an array to the host; the copy is recorded. Raise ConfigError in a dry run."""
        self._log.copy(D2H, self._label(name), array.nbytes)
        return self._arrays.to_host(array)

    def host_work(self, work: Callable[[], Any], seconds: float, name: str) -> None:
        """Let the current stream wait `seconds` of emulated time for work of the host, which is done here."""
        self._log.elapsed(self._label(name), seconds)
        if not self.dry:
            work()

    def pass_host(self, array: Any, direction: str, name: str) -> None:
        """Record that an array's bytes go through the host's memory, "d2h" or "h2d"; the values stay as they are."""
        self._log.copy(D2H if direction == "d2h" else H2D, self._label(name), array.nbytes)

    def read(self, array: Any, name: str, dry: float) -> float:
        """Return the first value of an array, copied to the host for a decision; `dry` where there are no values."""
        self._log.copy(D2H, self._label(f"read {name}"), array.itemsize)
        return self.decide(name, lambda: float(self._arrays.to_host(array).reshape(-1)[0]), dry)

    # Work

    def launch(self, kernel: Callable[..., Any], *arrays: Any, cost: Cost, name: str | None = None) -> None:
        """Run kernel(*arrays) on the current stream; what it costs is recorded. Dry, nothing is run."""
        label = self._label(name or kernel.__name__)
        try:
            dtype = DTYPE_CODE[cost.dtype]
        except KeyError:
            raise ConfigError(f"cost of {name or kernel.__name__}: {_DTYPES}, got {cost.dtype!r}") from None
        self._log.compute(dtype, label, int(cost.bytes), float(cost.flops))
        if not self.dry:
            kernel(*arrays)

    # Streams

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        """Enqueue what follows on the named stream."""
        streams, before = self._log.tables.streams, self._log.stream
        number = streams.setdefault(name, len(streams))
        if number > 255:
            raise ConfigError(f"streams: at most 256 names are expected, got {name!r}; reuse a stream")
        self._log.stream = number
        try:
            yield
        finally:
            self._log.stream = before

    def record(self) -> Event:
        """Record an event on the current stream."""
        return Event(self._log.record())

    def wait(self, event: Event) -> None:
        """Make the current stream wait for an event."""
        if not isinstance(event, Event):
            raise ConfigError(f"wait: an event is expected, which gpu.record() returns, got {type(event).__name__}")
        self._log.await_event(event.ordinal)

    def synchronize(self) -> float:
        """Wait for all streams of all ranks; return this rank's emulated time in s. Collective."""
        self._log.sync()
        if self._host is None:
            raise ConfigError("synchronize: a run with a cluster is expected; start the program with emu.run")
        return self._host(self)

    @contextmanager
    def span(self, label: str, index: int = -1) -> Iterator[None]:
        """Name what follows on the current stream in the timeline."""
        with self._opened(label, index, 0):
            yield

    @contextmanager
    def step(self, index: int) -> Iterator[None]:
        """Mark one training step, which the accounting is made for."""
        with self._opened("step", index, STEP):
            yield

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Run what follows without recording it: for what judges a program and is no part of it."""
        before, self._log.muted = self._log.muted, True
        try:
            yield
        finally:
            self._log.muted = before

    @contextmanager
    def about(self, what: str) -> Iterator[None]:
        """Say what the collectives inside are about: ranks that disagree on it get an error, as for arguments."""
        before, self._log.about = self._log.about, what
        try:
            yield
        finally:
            self._log.about = before

    def decide(self, name: str, value: Any, dry: Any) -> Any:
        """Return `value`, or what a dry run assumes instead; the trace's header keeps what was assumed."""
        if not self.dry:
            return value() if callable(value) else value
        self.decisions[name] = dry
        return dry

    def _opened(self, label: str, index: int, flag: int) -> Any:
        return _Span(self._log, self._label(label), index, flag)

    def _label(self, name: str) -> int:
        number = self._labels.get(name)
        if number is None:
            number = self._labels[name] = self._log.tables.label(name)
        return number


class _Span:
    """An open span; it closes on the stream that it was opened on, also when an error passes through."""

    def __init__(self, log: Any, label: int, index: int, flag: int) -> None:
        self.log, self.told = log, (label, index, flag)

    def __enter__(self) -> None:
        self.stream = self.log.stream
        self.log.begin(*self.told)

    def __exit__(self, *error: Any) -> None:
        here, self.log.stream = self.log.stream, self.stream
        self.log.end()
        self.log.stream = here


_DTYPES = "a dtype of " + ", ".join(DTYPE_CODE)

