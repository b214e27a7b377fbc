"""WallGpu and WallComm: what a program holds under the wall clock.

They differ from Gpu and Comm in one thing: inside `with gpu.stream(name)`, work goes to that stream's thread.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from emu.comm.calls import Collective
from emu.comm.communicator import Comm, Request
from emu.comm.recording import Log
from emu.gpu.arrays import Arrays
from emu.gpu.device import Cost, Event, Gpu
from emu.gpu.memory import Memory
from emu.trace import Op
from emu.wall.log import WallLog
from emu.wall.pace import now, working
from emu.wall.seat import Seat
from emu.wall.streams import Stream, Streams
from emu.wall.wire import WallWire

LONG_BYTES = 1 << 20  # a sum of so many takes long enough for others to be let in between
COMPUTE = ("model", "measured", "none")


class WallComm(Comm):
    """A communicator of one stream; the default stream's hands work over to others."""

    wire: WallWire
    log: WallLog

    def __init__(self, wire: WallWire, log: WallLog, group: Sequence[int], context: int = 0) -> None:
        super().__init__(wire, log, group, context)
        self.gpu: WallGpu | None = None  # of the default stream's communicators

    def on(self, seat: Seat, log: WallLog) -> WallComm:
        """Return this communicator as another stream sees it."""
        twin = copy.copy(self)
        twin.wire, twin.log, twin.gpu = self.wire.on(seat), log, None
        twin.turns = {self.context: (-1, self.group, None)}  # streams do not keep one order among themselves
        return twin

    def _isend(self, x: Any, to: int, tag: int) -> Any:
        stream = self._stream()
        return super()._isend(x, to, tag) if stream is None else _Later(stream, self, Comm._isend, (x, to, tag))

    def _irecv(self, x: Any, source: int, tag: int) -> Any:
        stream = self._stream()
        return super()._irecv(x, source, tag) if stream is None else _Later(stream, self, Comm._irecv, (x, source, tag))

    def waitall(self, requests: Sequence[Any]) -> None:
        """Return when all requests are done; on another stream, let that stream wait."""
        later = [request for request in requests if isinstance(request, _Later)]
        own = [request for request in requests if not isinstance(request, _Later)]
        if own:
            super().waitall(own)
        for stream in dict.fromkeys(request.stream for request in later):
            self._wait_on(stream, [request for request in later if request.stream is stream])

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int = 0) -> None:
        """Send x and receive into `into` at the same time."""
        self._run(Comm.sendrecv, x, to, into, source, tag)

    def reduce(self, op: str, into: Any, received: Any, received_first: bool = False) -> None:
        """Set into = op(into, received) element by element; its cost is recorded."""
        self._work(into, Comm.reduce, op, into, received, received_first)

    def scale(self, x: Any, factor: float) -> None:
        """Multiply x in place; its cost is recorded."""
        self._work(x, Comm.scale, x, factor)

    def divide(self, x: Any, by: int) -> None:
        """Divide x in place, integers rounding down; its cost is recorded."""
        self._work(x, Comm.divide, x, by)

    def copy(self, into: Any, x: Any) -> None:
        """Copy x into `into` on this device; its cost is recorded."""
        self._work(into, Comm.copy, into, x)

    def call(self, collective: Collective, args: tuple, kwargs: dict) -> Any:
        """Run a collective on this communicator: checked, as one span, recorded once."""
        return self._run(_call, collective, args, kwargs)

    def split(self, color: int | None, key: int = 0) -> Any:
        """Make a communicator of the ranks that give the same colour, ordered by key, then rank."""
        made = super().split(color, key)
        if made is None:
            return None
        mine = WallComm(made.wire, self.log, made.group, made.context)  # type: ignore[arg-type]
        mine.__dict__ |= {name: value for name, value in made.__dict__.items() if name not in ("wire", "log")}
        mine.gpu = self.gpu
        return mine

    def _stream(self) -> Stream | None:
        """Return the other stream that the program is on, if it is."""
        return None if self.gpu is None else self.gpu.other_stream()

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:
        stream = self._stream()
        if stream is None:
            return function(self, *args)
        twin = stream.comm(self)
        return stream.give(lambda: function(twin, *args))

    def _work(self, on: Any, function: Callable[..., None], *args: Any) -> None:
        if on.nbytes < LONG_BYTES:
            self._run(function, *args)
        else:
            with working():
                self._run(function, *args)

    def _wait_on(self, stream: Stream, requests: list[_Later]) -> None:
        """Wait for requests of another stream: there, and then here too unless the program is there."""
        twin = stream.comm(self)
        stream.give(lambda: twin.waitall([request.made for request in requests]))
        gpu = self.gpu
        if gpu is not None and gpu.other_stream() is not stream:
            with gpu.on(stream.number):
                event = gpu.record()
            gpu.wait(event)


class _Later:
    """A request that another stream makes when it comes to it."""

    def __init__(self, stream: Stream, comm: WallComm, function: Callable[..., Request], args: tuple) -> None:
        self.stream = stream
        self.comm = comm
        self.made: Any = None
        twin = stream.comm(comm)

        def make() -> None:
            self.made = function(twin, *args)

        stream.give(make)

    def wait(self) -> None:
        """Return when the buffer may be used again (send) or holds the message (receive)."""
        self.comm.waitall((self,))


def _call(comm: WallComm, collective: Collective, args: tuple, kwargs: dict) -> Any:
    log = comm.log
    if log.flag:
        return Comm.call(comm, collective, args, kwargs)
    seat = log.seat
    seat.settle()
    if not comm.checks:
        comm.wire.enter()
    first, log.called = len(seat.ended), False
    result = Comm.call(comm, collective, args, kwargs)
    if log.called:
        del seat.ended[first:]  # what it did inside is one row
        seat.did(int(Op.CALL))
    return result


class WallGpu(Gpu):
    """A rank's GPU. `compute` says what a kernel takes: its modelled time, its measured time, or none."""

    comm: WallComm

    def __init__(
        self, comm: WallComm, arrays: Arrays, memory: Memory, streams: Streams, compute: str = "model",
        speedup: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(comm, arrays, memory)
        self.log = comm.log
        self.streams: Streams | None = streams
        self.compute, self.speedup = compute, speedup
        comm.gpu = self

    def take_place(self, stream: Stream, comm: WallComm) -> None:
        """Become what a stream's own thread holds."""
        self.comm, self.log, self._log, self.streams = comm, stream.log, stream.log, None

    def other_stream(self) -> Stream | None:
        """Return the stream that the program is on, None on the default one."""
        if self.streams is None or self._log.stream == 0:
            return None
        return self.streams.get(self._log.stream, self)

    def on(self, number: int) -> Any:
        """Enqueue what follows on a stream by its number."""
        return self.stream(list(self._log.tables.streams)[number])

    def array(self, data: Any, dtype: Any = None, purpose: str = "activations", name: str = "copy to device") -> Any:
        """Allocate an array and copy host data into it; the copy over the host's link takes its time."""
        stream = self.other_stream()
        if stream is None:
            return super().array(data, dtype, purpose, name)
        array = self.empty(data.shape, dtype if dtype is not None else data.dtype, purpose)
        stream.give(lambda: stream.gpu.fill(array, data, name))
        return array

    def to_host(self, array: Any, name: str = "copy to host") -> np.ndarray:
        """Copy an array to the host; the copy takes its time."""
        stream = self.other_stream()
        if stream is None:
            host = super().to_host(array, name)
            self.log.seat.settle()
            return host
        made: list[np.ndarray] = []
        stream.give(lambda: made.append(stream.gpu.to_host(array, name)))
        assert self.streams is not None
        self.streams.join(self, [stream.number])
        return made[0]

    def fill(self, array: Any, data: Any, name: str) -> None:
        """Copy host data into an array."""
        self._copy_in(array, data, name)

    def launch(self, kernel: Callable[..., Any], *arrays: Any, cost: Cost, name: str | None = None) -> None:
        """Run kernel(*arrays) on the current stream, and let it take its time there."""
        stream = self.other_stream()
        if stream is not None:
            stream.give(lambda: stream.gpu.launch(kernel, *arrays, cost=cost, name=name))
        elif self.compute == "model":
            super().launch(partial(_at_work, kernel), *arrays, cost=cost, name=name or kernel.__name__)
            self.log.seat.worked_until = now()
        elif self.compute == "none":
            _at_work(kernel, *arrays)
        else:
            self._measure(kernel, arrays, name or kernel.__name__)

    def record(self) -> Event:
        """Record an event on the current stream."""
        stream = self.other_stream()
        if stream is None:
            return super().record()
        event = Log.record(self._log)  # its place in the log is here; it happens there
        stream.give(lambda: stream.log.happen(event))
        return Event(event)

    def wait(self, event: Event) -> None:
        """Make the current stream wait for an event."""
        stream = self.other_stream()
        if stream is None:
            super().wait(event)
            return
        self._log.stream = stream.number
        Log.await_event(self._log, event.ordinal)
        stream.give(lambda: stream.log.wait_for(event.ordinal))

    def synchronize(self) -> float:
        """Wait for all streams of all ranks; return this rank's emulated time in s. Collective."""
        self._log.sync()
        assert self.streams is not None
        self.streams.join(self)
        time_s = self.log.seat.time_s
        self.comm.wire.exchange(None)
        return time_s

    def _measure(self, kernel: Callable[..., Any], arrays: tuple, name: str) -> None:
        log = self.log
        log.seat.settle()
        began = log.seat.stamp()
        _at_work(kernel, *arrays)
        self._arrays.ready()
        log.measured(self._label(name), (log.seat.stamp() - began) / self.speedup, began)


def _at_work(kernel: Callable[..., Any], *arrays: Any) -> None:
    with working():
        kernel(*arrays)


__all__ = ["COMPUTE", "WallComm", "WallGpu"]
