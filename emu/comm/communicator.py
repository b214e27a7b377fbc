"""Comm: what an algorithm or a program sends and receives through. It records, and moves bytes by its wire.

One class serves every way to run: under MPI, in one process, without bytes. What differs is the wire.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from types import FrameType
from typing import Any

import numpy as np

from emu.comm.calls import Collective, run_call
from emu.comm.operations import OPERATIONS
from emu.comm.recording import Log
from emu.comm.wire import Wire
from emu.errors import ConfigError
from emu.trace import ANY, DTYPE_CODE

_frame = sys._getframe
_ALONE = -1_000_000_000  # contexts from here down are ranks' own

class Request:
    """A message under way. Wait for it with `wait`, or for several with `Comm.waitall`."""

    __slots__ = ("comm", "pending", "stream", "number", "done", "open_row")

    def __init__(self, comm: Comm, pending: Any, stream: int, number: int, open_row: int = -1) -> None:
        self.comm = comm
        self.pending = pending
        self.stream = stream
        self.number = number
        self.done = False
        self.open_row = open_row  # where the log has a receive from any source or of any tag, to be filled in

    @property
    def source(self) -> int:
        """The rank that a received message came from."""
        return self.pending.source

    @property
    def tag(self) -> int:
        """The tag of a received message."""
        return self.pending.tag

    def wait(self) -> None:
        """Return when the buffer may be used again (send) or holds the message (receive)."""
        self.comm.waitall((self,))


class Comm:
    """A communicator: `size` ranks, of which this is `rank`.

    `group` lists the members' world ranks. Buffers are contiguous arrays of the device (numpy, cupy or dry).
    """

    def __init__(self, wire: Wire, log: Log, group: Sequence[int], context: int = 0) -> None:
        self.wire: Any = wire  # a FullWire, where questions and mpi4py's face are to work
        self.log = log
        self.group = tuple(group)
        self.context = context
        self.rank = wire.rank
        self.size = wire.size
        self.dry = wire.dry
        self.answers: Any = None  # who answers questions of time and order; None: what happens to come first
        self.rows_first = False  # rows are written before the wait that they tell of, for an engine that looks on
        self.checks = True  # ranks check that they make the same collective calls
        self.templates = True  # collectives are recorded once and then by reference
        self.calls_begun = 0
        self.group_number: int | None = None  # in the log's tables, once it is there
        self.known: dict[Any, Any] = {}  # what is known of calls that were made before
        self.cluster: Any = None  # where the program runs, for decisions that look at it
        self.profile = "ideal"  # whose library's choices "auto" makes
        self.decisions: dict[str, Any] = {}  # what was decided so; goes into the trace's header
        # context -> the latest collective there; one table for all communicators of this rank
        self.turns: dict[int, tuple[int, tuple[int, ...], Any]] = {context: (-1, self.group, None)}
        self._contexts = [context + 1]  # next free context, the same
        wire.sites = log.sites

    def isend(self, x: Any, to: int, tag: int = 0) -> Request:
        """Start to send x to rank `to`; x must not change before the request is waited for."""
        if not self.log.flag:
            self._note(_frame(1))
        return self._isend(x, to, tag)

    def irecv(self, x: Any, source: int = ANY, tag: int = 0) -> Request:
        """Start to receive into x from rank `source`; the message must have x's size."""
        if not self.log.flag:
            self._note(_frame(1))
        return self._irecv(x, source, tag)

    def waitall(self, requests: Sequence[Request]) -> None:
        """Return when all requests are done."""
        if self.answers is None:
            self.wire.wait([request.pending for request in requests])
        else:
            self.answers.wait(self, requests)
        if not self.log.muted:
            self.record_wait(requests)

    def send(self, x: Any, to: int, tag: int = 0) -> None:
        """Send x and wait until it may be changed again."""
        self._note(_frame(1))
        self.waitall((self._isend(x, to, tag),))

    def recv(self, x: Any, source: int = ANY, tag: int = 0) -> None:
        """Receive into x."""
        self._note(_frame(1))
        self.waitall((self._irecv(x, source, tag),))

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int = 0) -> None:
        """Send x and receive into `into` at the same time."""
        log = self.log
        if not log.flag:
            caller = _frame(1)
            log.sites.append((caller.f_code, caller.f_lasti))
        self._check_buffer(x)
        self._check_buffer(into)
        if not (0 <= to < self.size and 0 <= source < self.size):
            self._refuse_rank("send and receive", source if 0 <= to < self.size else to)
        if self.rows_first and not log.muted:
            self.waitall((self._irecv(into, source, tag), self._isend(x, to, tag)))
            return
        self.wire.sendrecv(x, to, into, source, tag, log.flag)
        log.exchange(self.group[source], into.nbytes, self.group[to], x.nbytes, tag, self.context)

    def now_s(self) -> float:
        """Return the emulated time at which this rank stands. The engine answers beside the program."""
        return self._answers().now_s(self)

    def test(self, request: Request) -> bool:
        """Tell whether a request is done by now, in emulated time."""
        done = self._answers().test(self, [request])[0]
        if done and not self.log.muted:
            self.record_wait([request])
        return done

    def waitany(self, requests: Sequence[Request]) -> int:
        """Return the place of the request that is done first, in emulated time."""
        place = self._answers().first(self, requests)[0]
        self.waitall((requests[place],))
        return place

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
        self.log.compute(dtype_code(into), self.log.tables.label("reduce"), 3 * into.nbytes, into.size)

    def scale(self, x: Any, factor: float) -> None:
        """Multiply x in place; its cost is recorded."""
        if not self.dry:
            np.multiply(x, x.dtype.type(factor), out=x)
        self.log.compute(dtype_code(x), self.log.tables.label("scale"), 2 * x.nbytes, x.size)

    def divide(self, x: Any, by: int) -> None:
        """Divide x in place, integers rounding down; its cost is recorded."""
        if not self.dry:
            if x.dtype.kind in "iu":
                x //= by
            else:
                x /= x.dtype.type(by)
        self.log.compute(dtype_code(x), self.log.tables.label("divide"), 2 * x.nbytes, x.size)

    def copy(self, into: Any, x: Any) -> None:
        """Copy x into `into` on this device; its cost is recorded."""
        if not self.dry:
            into[...] = x
        self.log.compute(dtype_code(x), self.log.tables.label("copy"), 2 * x.nbytes, 0.0)

    def empty(self, size: int, dtype: Any, like: Any = None) -> Any:
        """Return scratch of `size` elements, on the device of `like`."""
        if self.dry:
            from emu.comm.dry import DryArray

            return DryArray.of((size,), dtype)
        if like is not None and not isinstance(like, np.ndarray):
            return like.__class__((size,), dtype=dtype)
        return self.wire.empty(size, dtype)

    def empty_like(self, x: Any) -> Any:
        """Return scratch of x's size and dtype on x's device."""
        return self.empty(x.size, x.dtype, like=x)

    def split(self, color: int | None, key: int = 0) -> Comm | None:
        """Make a communicator of the ranks that give the same colour, ordered by key, then rank.

        Collective. A rank that gives None gets None.
        """
        mine = (color, key, self._contexts[0])
        meet = self.wire.exchange if self.answers is None else partial(self.answers.meet, self)
        base, parts = meet(mine, _parts)
        self._contexts[0] = base + len(parts)
        number, members = parts.get(color, (None, ()))
        context = base + (number or 0)
        wire = self.wire.sub(number, members, context)
        if wire is None:
            return None
        made = Comm(wire, self.log, [self.group[m] for m in members], context)
        made._contexts, made.checks, made.templates = self._contexts, self.checks, self.templates
        self.turns |= made.turns
        made.turns = self.turns
        made.answers, made.rows_first = self.answers, self.rows_first
        made.cluster, made.profile, made.decisions = self.cluster, self.profile, self.decisions
        return made

    def alone(self) -> Comm:
        """Return a communicator of this rank alone."""
        context = _ALONE - self.group[self.rank]
        made = Comm(self.wire.alone(context), self.log, [self.group[self.rank]], context)
        made._contexts, made.checks, made.templates = self._contexts, self.checks, self.templates
        made.cluster, made.profile, made.decisions = self.cluster, self.profile, self.decisions
        made.answers, made.rows_first = self.answers, self.rows_first
        return made

    def beside(self, wire: Any) -> Comm:
        """Return a communicator of the same members on another wire, for calls that run beside the program."""
        made = Comm(wire, self.log, self.group, self.context)
        made.checks, made.templates = self.checks, self.templates
        made.cluster, made.profile, made.decisions = self.cluster, self.profile, self.decisions
        made.answers, made.rows_first = self.answers, self.rows_first
        return made

    def free(self) -> None:
        """Give the communicator back; it must not be used any more."""
        self.turns.pop(self.context, None)
        self.wire.free()

    def call(self, collective: Collective, args: tuple, kwargs: dict) -> Any:
        """Run a collective on this communicator: checked, as one span, recorded once."""
        return run_call(self, collective, args, kwargs)

    def record_wait(self, requests: Sequence[Request]) -> None:
        """Record that the current stream waits for requests that are done."""
        log, here = self.log, self.log.stream
        for request in requests:
            if request.open_row >= 0:
                self._fill_in(request)
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


    def _note(self, caller: FrameType) -> None:
        self.log.sites.append((caller.f_code, caller.f_lasti))

    def _isend(self, x: Any, to: int, tag: int) -> Request:
        log = self.log
        self._check_buffer(x)
        if not 0 <= to < self.size:
            self._refuse_rank("send to", to)
        if tag < 0:
            raise ConfigError(f"send: a tag from 0 on is expected, got {tag}")
        number = log.send(self.group[to], tag, self.context, x.nbytes)
        return Request(self, self.wire.isend(x, to, tag, log.flag), log.stream, number)

    def _irecv(self, x: Any, source: int, tag: int) -> Request:
        log = self.log
        self._check_buffer(x)
        if not ANY <= source < self.size:
            self._refuse_rank("receive from", source)
        pending = self.wire.irecv(x, source, tag, log.flag)
        peer = ANY if source == ANY else self.group[source]
        open_row = len(log.data) if (source == ANY or tag == ANY) and not log.flag else -1
        return Request(self, pending, log.stream, log.recv(peer, tag, self.context, x.nbytes), open_row)

    def _answers(self) -> Any:
        if self.answers is None:
            from emu.comm.answers import HostAnswers

            self.answers = HostAnswers()
        return self.answers

    def _check_buffer(self, x: Any) -> None:
        try:
            if (x.flags.c_contiguous or self.dry) and not x.dtype.hasobject:
                return
        except AttributeError:
            raise ConfigError(f"message buffer: an array is expected, got {type(x).__name__}") from None
        if x.dtype.hasobject:
            raise ConfigError(f"message buffer: an array of numbers is expected, got dtype {x.dtype}")
        raise ConfigError(
            f"message buffer: a contiguous array is expected, got shape {x.shape} with strides {x.strides}; "
            "copy it first (numpy.ascontiguousarray)"
        )

    def _refuse_rank(self, what: str, rank: int) -> None:
        raise ConfigError(f"{what}: a rank from 0 to {self.size - 1} is expected, got {rank}; see comm.size")

    def _fill_in(self, request: Request) -> None:
        """Write into the log what a receive from any source, or of any tag, has got."""
        got = request.pending
        if not self.dry:
            self.log.fill_in(request.open_row, self.group[got.source], got.tag)
        request.open_row = -1


def _parts(told: Sequence[tuple[int | None, int, int]]) -> tuple[int, dict[int | None, tuple[int, tuple[int, ...]]]]:
    """Return the first context that is free on all ranks, and each colour's number and members, in order."""
    by_color: dict[int, list[tuple[int, int]]] = {}
    for rank, (color, key, _) in enumerate(told):
        if color is not None:
            by_color.setdefault(color, []).append((key, rank))
    parts: dict[int | None, tuple[int, tuple[int, ...]]] = {}
    for number, color in enumerate(sorted(by_color)):
        parts[color] = number, tuple(rank for _, rank in sorted(by_color[color]))
    return max(context for _, _, context in told), parts


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
    """Return the trace's code of x's dtype: of the nearest one that GPUs have figures for."""
    return _code_of(x.dtype)


@lru_cache(maxsize=256)
def _code_of(dtype: np.dtype) -> int:  # a dtype takes 10 us to tell its name
    name = dtype.name
    code = DTYPE_CODE.get(name)
    if code is None:
        code = DTYPE_CODE[_NEAREST.get(name) or ("float8" if name.startswith("float8") else "uint8")]
    return code


_NEAREST = {
    "complex64": "float32", "longdouble": "float64", "float128": "float64", "clongdouble": "complex128",
    "complex256": "complex128",
}  # fmt: skip
