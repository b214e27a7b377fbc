"""Comm: what an algorithm or a program sends and receives through. It records, and moves bytes by its wire.

One class serves every way to run: under MPI, in one process, without bytes. What differs is the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from emu.comm.calls import Collective, run_call
from emu.comm.recording import Log
from emu.comm.wire import Wire
from emu.errors import ConfigError
from emu.trace import ANY, DTYPE_CODE

OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


class Request:
    """A message under way. Wait for it with `wait`, or for several with `Comm.waitall`."""

    __slots__ = ("comm", "pending", "stream", "number", "done")

    def __init__(self, comm: Comm, pending: Any, stream: int, number: int) -> None:
        self.comm = comm
        self.pending = pending
        self.stream = stream
        self.number = number
        self.done = False

    def wait(self) -> None:
        """Return when the buffer may be used again (send) or holds the message (receive)."""
        self.comm.waitall((self,))


class Comm:
    """A communicator: `size` ranks, of which this is `rank`.

    `group` lists the members' world ranks. Buffers are contiguous arrays of the device (numpy, cupy or dry).
    """

    def __init__(self, wire: Wire, log: Log, group: Sequence[int], context: int = 0) -> None:
        self.wire = wire
        self.log = log
        self.group = tuple(group)
        self.context = context
        self.rank = wire.rank
        self.size = wire.size
        self.dry = wire.dry
        self.checks = True  # ranks check that they make the same collective calls
        self.templates = True  # collectives are recorded once and then by reference
        self.calls_begun = 0
        self.cluster: Any = None  # where the program runs, for decisions that look at it
        self.decisions: dict[str, Any] = {}  # what was decided so; goes into the trace's header
        self._contexts = [context + 1]  # next free context, shared by all communicators of this rank

    def isend(self, x: Any, to: int, tag: int = 0) -> Request:
        """Start to send x to rank `to`; x must not change before the request is waited for."""
        log = self.log
        if not x.flags.c_contiguous and not self.dry:
            _refuse_strides(x)
        pending = self.wire.isend(x, to, tag, log.flag)
        return Request(self, pending, log.stream, log.send(self.group[to], tag, self.context, x.nbytes))

    def irecv(self, x: Any, source: int = ANY, tag: int = ANY) -> Request:
        """Start to receive into x from rank `source`; the message must have x's size."""
        log = self.log
        if not x.flags.c_contiguous and not self.dry:
            _refuse_strides(x)
        pending = self.wire.irecv(x, source, tag, log.flag)
        peer = ANY if source == ANY else self.group[source]
        return Request(self, pending, log.stream, log.recv(peer, tag, self.context, x.nbytes))

    def waitall(self, requests: Sequence[Request]) -> None:
        """Return when all requests are done."""
        self.wire.wait([request.pending for request in requests])
        if not self.log.muted:
            self._record_wait(requests)

    def send(self, x: Any, to: int, tag: int = 0) -> None:
        """Send x and wait until it may be changed again."""
        self.waitall((self.isend(x, to, tag),))

    def recv(self, x: Any, source: int = ANY, tag: int = ANY) -> None:
        """Receive into x."""
        self.waitall((self.irecv(x, source, tag),))

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int = 0) -> None:
        """Send x and receive into `into` at the same time."""
        log = self.log
        if not (x.flags.c_contiguous and into.flags.c_contiguous) and not self.dry:
            _refuse_strides(into if x.flags.c_contiguous else x)
        self.wire.sendrecv(x, to, into, source, tag, log.flag)
        log.exchange(self.group[source], into.nbytes, self.group[to], x.nbytes, tag, self.context)

    def reduce(self, op: str, into: Any, received: Any, received_first: bool = False) -> None:
        """Set into = op(into, received) element by element; its cost is recorded.

        `received_first` swaps the operands: two ranks that exchange their values get the same bits only if
        both compute in one order (max of -0.0 and 0.0, the sum of two NaN).
        """
        if not self.dry:
            function = OPERATIONS[op]
            if received_first:
                function(received, into, out=into)
            else:
                function(into, received, out=into)
        self.log.compute(dtype_code(into), self.log.tables.label("reduce"), 3 * into.nbytes, float(into.size))

    def scale(self, x: Any, factor: float) -> None:
        """Multiply x in place; its cost is recorded."""
        if not self.dry:
            np.multiply(x, x.dtype.type(factor), out=x)
        self.log.compute(dtype_code(x), self.log.tables.label("scale"), 2 * x.nbytes, float(x.size))

    def divide(self, x: Any, by: int) -> None:
        """Divide x in place, integers rounding down; its cost is recorded."""
        if not self.dry:
            if x.dtype.kind in "iu":
                x //= by
            else:
                x /= x.dtype.type(by)
        self.log.compute(dtype_code(x), self.log.tables.label("divide"), 2 * x.nbytes, float(x.size))

    def copy(self, into: Any, x: Any) -> None:
        """Copy x into `into` on this device; its cost is recorded."""
        if not self.dry:
            into[...] = x
        self.log.compute(dtype_code(x), self.log.tables.label("copy"), 2 * x.nbytes, 0.0)

    def empty(self, size: int, dtype: Any, like: Any = None) -> Any:
        """Return scratch of `size` elements, on the device of `like`."""
        if self.dry:
            from emu.gpu.dry import DryArray

            return DryArray.of((size,), dtype)
        if like is not None and not isinstance(like, np.ndarray):
            return like.__class__((size,), dtype=dtype)
        return np.empty(size, dtype)

    def empty_like(self, x: Any) -> Any:
        """Return scratch of x's size and dtype on x's device."""
        return self.empty(x.size, x.dtype, like=x)

    def split(self, color: int | None, key: int = 0) -> Comm | None:
        """Make a communicator of the ranks that give the same colour, ordered by key, then rank.

        Collective. A rank that gives None gets None.
        """
        told = self.wire.exchange((color, key, self._contexts[0]))
        base = max(context for _, _, context in told)
        colors = sorted({c for c, _, _ in told if c is not None})
        self._contexts[0] = base + len(colors)
        made = None
        for i, each in enumerate(colors):
            members = [r for _, r in sorted((k, r) for r, (c, k, _) in enumerate(told) if c == each)]
            wire = self.wire.sub(members if self.rank in members else None, base + i)
            if wire is not None:
                made = Comm(wire, self.log, [self.group[m] for m in members], base + i)
                made._contexts, made.checks, made.templates = self._contexts, self.checks, self.templates
                made.cluster, made.decisions = self.cluster, self.decisions
        return made

    def free(self) -> None:
        """Give the communicator back; it must not be used any more."""
        self.wire.free()

    def call(self, collective: Collective, args: tuple, kwargs: dict) -> Any:
        """Run a collective on this communicator: checked, as one span, recorded once."""
        return run_call(self, collective, args, kwargs)

    def _record_wait(self, requests: Sequence[Request]) -> None:
        log, here = self.log, self.log.stream
        if len(requests) == 1:
            request = requests[0]
            if request.stream == here and not request.done:
                log.wait(request.number)
                request.done = True
                return
        by_stream: dict[int, list[int]] = {}
        for request in requests:
            if not request.done:
                by_stream.setdefault(request.stream, []).append(request.number)
                request.done = True
        for stream, numbers in by_stream.items():
            log.stream = stream
            for first, count in _runs(sorted(numbers)):
                log.wait(first, count)
            if stream != here:
                event = log.record()
                log.stream = here
                log.await_event(event)
        log.stream = here


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Return sorted numbers as (first, count) of runs without a gap."""
    runs = [(numbers[0], 1)]
    for number in numbers[1:]:
        first, count = runs[-1]
        if number == first + count:
            runs[-1] = (first, count + 1)
        else:
            runs.append((number, 1))
    return runs


def dtype_code(x: Any) -> int:
    """Return the trace's code of x's dtype."""
    return DTYPE_CODE[x.dtype.name]


def _refuse_strides(x: Any) -> None:
    raise ConfigError(
        f"message buffer: a contiguous array is expected, got shape {x.shape} with strides {x.strides}; "
        "copy it first (numpy.ascontiguousarray)"
    )

