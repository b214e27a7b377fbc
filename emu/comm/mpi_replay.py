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

from emu.comm.mailbox import HEADER, SLOTS
from emu.comm.memory import Reader, at
from emu.comm.mpi_mail import SUM_BYTES, TAKEN, Expected, Mail
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
                local = self._local(step)
                bound.append(partial(self._take, sums[place], step, local) if place in sums else local)
            elif isinstance(step, Exchange) and self.mail is not None:
                short = self.mail.is_short(self._address(step.out), max(step.out.nbytes, step.into.nbytes))
                summed = self._summed(place, step, short)
                done = place + 1 if summed is not None else done
                exchange = self._quick if short else self._long
                bound.append(exchange(step, self.mail, summed))
            elif isinstance(step, Exchange):
                out, into = self._spec(step.out), self._spec(step.into)
                bound.append(partial(self.comm.Sendrecv, out, step.to, step.tag, into, step.source, step.tag))
            elif isinstance(step, Post):
                bound.append(self._post(step))
            else:
                bound.append(self._wait(step))
        return bound

    def _summed(self, place: int, step: Exchange, short: bool) -> Local | None:
        """Return the sum that follows an exchange, if it can be made from what the other rank sends."""
        if reducer(self.plan, place, step.into) != place + 1 or (self.overlap and not short):
            return None
        summed = self.plan.steps[place + 1]
        assert isinstance(summed, Local)
        return summed if short or not summed.into.meets(step.out) else None

    def _address(self, part: Part) -> int:
        return self.starts[part.base] + part.start if part.size else 0

    def _array(self, part: Part) -> np.ndarray:
        return at(self._address(part), part.size, part.dtype)

    def _spec(self, part: Part) -> tuple[np.ndarray, int, Any]:
        data = self._array(part)
        return data.view(np.uint8), part.nbytes, _BYTE

    def _has_mail(self, peer: int) -> bool:
        return self.mail is not None and self.group[peer] in self.mail.readers

    def _post(self, step: Post) -> Call:
        number, under_way = step.number, self.under_way
        if self.mail is not None and self._has_mail(step.peer):
            self.by_mail.add(number)
            start: Any = self.mail.send if step.sends else self.mail.receive
            terms: tuple[Any, ...] = (self._array(step.part), self.group[step.peer], self.context, step.tag)
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

    def _local(self, step: Local) -> Call:
        into = self._array(step.into)
        if step.kind == "copy":
            assert step.other is not None
            return partial(np.copyto, into, self._array(step.other), "unsafe")
        if step.kind == "divide":
            whole = into.dtype.kind in "iu"
            by = int(step.factor) if whole else into.dtype.type(step.factor)
            return partial(np.floor_divide if whole else np.true_divide, into, by, out=into)
        if step.kind == "scale":
            return partial(np.multiply, into, into.dtype.type(step.factor), out=into)
        assert step.other is not None
        other, function = self._array(step.other), OPERATIONS[step.op]
        operands = (other, into) if step.swapped else (into, other)
        return partial(function, *operands, out=into)

    def _quick(self, step: Exchange, mail: Mail, summed: Local | None) -> Call:
        """Exchange two short messages; `summed`: and make the sum that follows of what has come, where it is."""
        to, source, context, tag = self.group[step.to], self.group[step.source], self.context, step.tag
        out, into = self._array(step.out), self._array(step.into)
        early, after = mail.early[source], self._local(summed) if summed is not None else None
        put, n = mail.outgoing[to].put, mail.block_bytes
        data = out.view(np.uint8)
        blocks = [
            (context, tag, out.nbytes, 0, i, data[i : i + n]) for i in range(0, max(1, out.nbytes), n)
        ]
        takes = self._takers(step, mail, summed, into)
        meeting = _Meeting(mail, source, [(context, tag, into.nbytes, 0, i) for i in range(0, max(1, into.nbytes), n)])

        def slowly(sent: Any) -> None:
            expected = mail.receive(into, source, context, tag)
            mail.wait((expected, sent) if sent is not None else (expected,))
            if after is not None:
                after()

        if len(blocks) == len(takes) == 1:
            slots = self._slots(step, mail, summed, into)
            return _exchange_at_once(mail, (to, source), (context, tag), (out, into), slots, slowly)

        def exchange() -> None:
            if mail.busy or early:
                slowly(mail.send(out, to, context, tag))
                return
            for block in blocks:
                if not put(*block):
                    slowly(mail.send_rest(out, to, context, tag, block[4]))
                    return
            if not meeting.take(takes):
                slowly(None)

        return exchange

    def _long(self, step: Exchange, mail: Mail, summed: Local | None) -> Call:
        """Exchange two messages of which one is long at least; `summed`: and make the sum that follows."""
        to, source, context, tag = self.group[step.to], self.group[step.source], self.context, step.tag
        out, into = self._array(step.out), self._array(step.into)
        after = self._local(summed) if summed is not None else None
        early, busy, new_number = mail.early[source], mail.busy, mail.new_number
        put, box, answers = mail.outgoing[to].put, mail.incoming[source], mail.incoming[to]
        reader = mail.readers[source]
        whole, address = not mail.is_short(out.ctypes.data, out.nbytes), out.ctypes.data
        expected = (context, tag, into.nbytes)
        take = partial(self._sum, summed, into) if summed is not None else _copier(into)

        def slowly(sent: Any) -> None:
            message = mail.receive(into, source, context, tag)
            mail.wait((message, sent))
            if after is not None:
                after()

        def exchange() -> None:
            number = new_number()
            if busy or early or not whole or not put(context, tag, out.nbytes, address, number):
                slowly(mail.send(out, to, context, tag))
                return
            mail.look_for(box)
            *key, start, theirs = box.header()
            if tuple(key) != expected or start <= 0:
                slowly(mail.lend(out, to, number))
                return
            box.release()
            take(reader, start)
            mail.tell_taken(source, theirs)
            if not busy:
                mail.look_for(answers)
            if busy or answers.header()[3:] != (TAKEN, number):
                mail.wait((mail.lend(out, to, number),))
            else:
                answers.release()

        return exchange

    def _takers(
        self, step: Exchange, mail: Mail, summed: Local | None, into: np.ndarray
    ) -> list[Callable[[np.ndarray], Any]]:
        """Return what takes each block of a short message from its slot."""
        n, size = mail.block_bytes, into.itemsize
        cuts = [(i, min(i + n, into.nbytes)) for i in range(0, max(1, into.nbytes), n)]
        if summed is None:
            target = into.view(np.uint8)
            return [partial(_copy, target[a:b], b - a) for a, b in cuts]
        assert summed.other is not None
        function, result = OPERATIONS[summed.op], self._array(summed.into)
        brought_into = summed.into == step.into
        other = self._array(summed.other) if brought_into else result
        add = _add if brought_into != summed.swapped else _add_to
        return [
            partial(add, function, other[a // size : b // size], result[a // size : b // size], b - a, into.dtype)
            for a, b in cuts
        ]

    def _slots(self, step: Exchange, mail: Mail, summed: Local | None, into: np.ndarray) -> list[Call]:
        """Return for each slot what takes a message of one block from it."""
        box = mail.incoming[self.group[step.source]]
        calls: list[Call] = []
        for slot in box.payload:
            got = slot[: into.nbytes].view(into.dtype)
            if summed is None:
                calls.append(partial(np.copyto, into, got))
                continue
            assert summed.other is not None
            result = self._array(summed.into)
            brought_into = summed.into == step.into
            other = self._array(summed.other) if brought_into else result
            operands = (got, other) if brought_into != summed.swapped else (other, got)
            calls.append(partial(OPERATIONS[summed.op], *operands, out=result))
        return calls

    def _take(self, number: int, step: Local, plain: Call) -> None:
        """Sum what has been received, from the sender's memory if it is still there."""
        message: Expected = self.under_way[number]
        if message.done:
            plain()
            return
        message.take(partial(self._sum, step, message.into))

    def _sum(self, step: Local, received: np.ndarray, reader: Reader, address: int) -> None:
        assert step.other is not None
        into, function = self._array(step.into), OPERATIONS[step.op]
        brought_into = self._address(step.into) == received.ctypes.data
        other = self._array(step.other) if brought_into else into
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


def _exchange_at_once(
    mail: Mail, peers: tuple[int, int], key: tuple[int, int], arrays: tuple[np.ndarray, np.ndarray],
    takes: Sequence[Call], slowly: Callable[[Any], None],
) -> Call:  # fmt: skip
    """Return the exchange of two messages of one block: what `Outgoing.put` and `Incoming` do, without a call more."""
    (to, source), (context, tag), (out, into) = peers, key, arrays
    box_out, box_in, early, busy = mail.outgoing[to], mail.incoming[source], mail.early[source], mail.busy
    words_out, words_in, data = box_out.words, box_in.words, out.view(np.uint8)
    spaces = [slot[: out.nbytes] for slot in box_out.payload]
    header_out, header_in = (context, tag, out.nbytes, 0, 0), (context, tag, into.nbytes, 0, 0)
    starts, places = box_out.starts, [start >> 3 for start in box_in.starts]
    pack, unpack, pause, spins, copy = HEADER.pack_into, HEADER.unpack_from, mail.pause, mail.spins, np.copyto

    def exchange() -> None:
        k = box_out.sent + 1
        if busy or early or k - words_out[0] > SLOTS:
            slowly(mail.send(out, to, context, tag))
            return
        slot = k % SLOTS
        copy(spaces[slot], data)
        start = starts[slot]
        pack(box_out.memory, start + 8, *header_out)
        words_out[start >> 3] = box_out.sent = k
        k = box_in.next
        slot = k % SLOTS
        place = places[slot]
        looks = 0
        while words_in[place] != k:
            looks += 1
            if looks > spins:
                pause(looks)
        if unpack(box_in.memory, (place << 3) + 8) != header_in:
            slowly(None)
            return
        takes[slot]()
        words_in[0] = k
        box_in.next = k + 1
        box_in.at = places[(k + 1) % SLOTS]

    return exchange


class _Meeting:
    """A short message that a rank waits for, by its blocks' headers."""

    def __init__(self, mail: Mail, source: int, headers: Sequence[tuple[int, ...]]) -> None:
        self.box, self.headers, self.spins, self.pause = mail.incoming[source], headers, mail.spins, mail.pause

    def take(self, takes: Sequence[Callable[[np.ndarray], Any]]) -> bool:
        """Take all blocks as they come; False, with none taken, if another message comes first."""
        box, spins = self.box, self.spins
        for header, take in zip(self.headers, takes, strict=True):
            looks = 0
            while not box.there():
                looks += 1
                if looks > spins:
                    self.pause(looks)
            if box.header() != header:
                return False
            take(box.data())
            box.release()
        return True


def _copier(into: np.ndarray) -> Callable[[Reader, int], None]:
    address, nbytes = into.ctypes.data, into.nbytes
    return lambda reader, start: reader.read(address, start, nbytes)


def _copy(target: np.ndarray, n: int, slot: np.ndarray) -> None:
    target[:] = slot[:n]


def _add(function: Any, other: np.ndarray, result: np.ndarray, n: int, dtype: np.dtype, slot: np.ndarray) -> None:
    function(slot[:n].view(dtype), other, out=result)


def _add_to(function: Any, other: np.ndarray, result: np.ndarray, n: int, dtype: np.dtype, slot: np.ndarray) -> None:
    function(other, slot[:n].view(dtype), out=result)
