"""Carry a plan out over MPI: every step is bound once to memory, as a call without arguments.

Between processes of one host messages go by mail. Where a sum follows a message, it is made from the sender's memory,
block by block, or from the mailbox: what was received is never stored. All else goes through MPI as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from emu.comm.memory import Reader, at
from emu.comm.mpi_exchange import long_exchange, short_exchange
from emu.comm.mpi_mail import SUM_BYTES, Expected, Mail
from emu.comm.operations import OPERATIONS
from emu.comm.plan import (
    Exchange,
    Local,
    Part,
    Plan,
    Post,
    Wait,
    reducer,
    sends_waited_late,
    taken_late,
    waits_by_kind,
)

_BYTE = MPI.BYTE

Call = Callable[[], Any]


def bind(
    plan: Plan, comm: MPI.Comm, mail: Mail | None, group: Sequence[int], context: int, addresses: Sequence[int],
    sizes: Sequence[int],
) -> Bound:  # fmt: skip
    """Return the calls that carry `plan` out, with arguments of these addresses and bytes."""
    length = sum(plan.scratch) + 64 * len(plan.scratch)
    memory = np.empty(length, np.uint8) if mail is None else mail.arena.empty(length, np.uint8)
    starts, place = list(addresses), memory.ctypes.data
    for nbytes in plan.scratch:
        starts.append(place)
        place += -(-nbytes // 64) * 64
    late: dict[int, int] = {}
    overlap = _overlap(addresses, sizes)
    if mail is not None:
        readers = mail.readers
        plan = waits_by_kind(plan, lambda step: group[step.to] in readers and group[step.source] in readers)
        if not overlap:
            plan = sends_waited_late(plan)
            late = taken_late(plan)
    return Bound(plan, comm, mail, group, context, starts, memory, late, overlap)


def _overlap(addresses: Sequence[int], sizes: Sequence[int]) -> bool:
    spans = sorted(zip(addresses, sizes, strict=True))
    return any(a + n > b for (a, n), (b, _) in zip(spans, spans[1:], strict=False))


class Bound:
    """A plan's calls, in order, and the scratch they work in."""

    def __init__(
        self, plan: Plan, comm: MPI.Comm, mail: Mail | None, group: Sequence[int], context: int,
        starts: Sequence[int], memory: np.ndarray, late: dict[int, int], overlap: bool,
    ) -> None:  # fmt: skip
        self.plan, self.comm, self.mail, self.group, self.context = plan, comm, mail, group, context
        self.starts, self.memory, self.late = starts, memory, late  # the scratch lives as long as this
        self.overlap = overlap  # some arguments share memory
        self.under_way: list[Any] = [None] * plan.requests
        self.by_mail: set[int] = set()
        self.calls = self._bind()

    def _bind(self) -> list[Call]:
        long = {step.number for step in self.plan.steps if isinstance(step, Post) and self._has_mail(step.peer)}
        sums = {step: number for number, step in self.late.items() if number in long}
        bound: list[Call] = []
        done = -1
        for place, step in enumerate(self.plan.steps):
            if place == done:
                continue
            if isinstance(step, Local):
                local = self.local(step)
                bound.append(partial(self._take, sums[place], step, local) if place in sums else local)
            elif isinstance(step, Exchange) and self.mail is not None:
                call, summed = self._exchange(place, step, self.mail)
                done = place + 1 if summed is not None else done
                bound.append(call)
            elif isinstance(step, Exchange):
                out, into = self._spec(step.out), self._spec(step.into)
                bound.append(partial(self.comm.Sendrecv, out, step.to, step.tag, into, step.source, step.tag))
            elif isinstance(step, Post):
                bound.append(self._post(step))
            else:
                bound.append(self._wait(step))
        return bound

    def _exchange(self, place: int, step: Exchange, mail: Mail) -> tuple[Call, Local | None]:
        """Return an exchange by mail, and the sum after it if it makes that too, of what the other rank sends."""
        follows = reducer(self.plan, place, step.into) == place + 1
        summed = self.plan.steps[place + 1] if follows else None
        assert summed is None or isinstance(summed, Local)
        if mail.is_short_exchange(self._address(step.out), max(step.out.nbytes, step.into.nbytes)):
            return short_exchange(self, step, mail, summed), summed
        if self.overlap:
            summed = None
        staged = mail.stage(self.array(step.out)) if summed is not None else None
        if summed is not None and staged is None and summed.into.meets(step.out):  # the other rank may still read it
            summed = None
        return long_exchange(self, step, mail, summed, staged), summed

    def _address(self, part: Part) -> int:
        return self.starts[part.base] + part.start if part.size else 0

    def array(self, part: Part) -> np.ndarray:
        return at(self._address(part), part.size, part.dtype)

    def _spec(self, part: Part) -> tuple[np.ndarray, int, Any]:
        data = self.array(part)
        return data.view(np.uint8), part.nbytes, _BYTE

    def _has_mail(self, peer: int) -> bool:
        return self.mail is not None and self.group[peer] in self.mail.readers

    def _post(self, step: Post) -> Call:
        number, under_way = step.number, self.under_way
        if self.mail is not None and self._has_mail(step.peer):
            self.by_mail.add(number)
            start: Any = self.mail.send if step.sends else self.mail.receive
            terms: tuple[Any, ...] = (self.array(step.part), self.group[step.peer], self.context, step.tag)
            if number in self.late:
                terms = (*terms, True)
        else:
            start = self.comm.Isend if step.sends else self.comm.Irecv
            terms = (self._spec(step.part), step.peer, step.tag)

        def post() -> None:
            under_way[number] = start(*terms)

        return post

    def _wait(self, step: Wait) -> Call:
        under_way, mail = self.under_way, self.mail
        messages = [n for n in step.numbers if n in self.by_mail]
        requests = [n for n in step.numbers if n not in self.by_mail]
        if mail is None:
            return lambda: MPI.Request.Waitall([under_way[n] for n in requests])
        return lambda: mail.wait([under_way[n] for n in messages], [under_way[n] for n in requests])

    def local(self, step: Local) -> Call:
        into = self.array(step.into)
        if step.kind == "copy":
            assert step.other is not None
            return partial(np.copyto, into, self.array(step.other), "unsafe")
        if step.kind == "divide":
            whole = into.dtype.kind in "iu"
            by = int(step.factor) if whole else into.dtype.type(step.factor)
            return partial(np.floor_divide if whole else np.true_divide, into, by, out=into)
        if step.kind == "scale":
            return partial(np.multiply, into, into.dtype.type(step.factor), out=into)
        assert step.other is not None
        other, function = self.array(step.other), OPERATIONS[step.op]
        operands = (other, into) if step.swapped else (into, other)
        return partial(function, *operands, out=into)

    def _take(self, number: int, step: Local, plain: Call) -> None:
        """Sum what has been received, from the sender's memory if it is still there."""
        message: Expected = self.under_way[number]
        if message.done:
            plain()
            return
        message.take(partial(self.sum, step, message.into))

    def sum(self, step: Local, received: np.ndarray, reader: Reader, address: int) -> None:
        assert step.other is not None
        into, function = self.array(step.into), OPERATIONS[step.op]
        brought_into = self._address(step.into) == received.ctypes.data
        other = self.array(step.other) if brought_into else into
        first = brought_into != step.swapped  # the message is the first operand
        seen = reader.seen(address, received.size, received.dtype)
        if seen is not None:
            function(*((seen, other) if first else (other, seen)), out=into)
            return
        length = SUM_BYTES // received.itemsize
        block = self.mail.block.view(received.dtype)  # type: ignore[union-attr]
        for i in range(0, into.size, length):
            result, mine = into[i : i + length], other[i : i + length]
            got = block[: result.size]
            reader.read(block.ctypes.data, address + i * received.itemsize, got.nbytes)
            if first:
                function(got, mine, out=result)
            else:
                function(mine, got, out=result)
