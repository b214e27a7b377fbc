"""Exchanges of a plan by mail: a message to one rank and one from another at once, and the sum that follows.

`short_exchange` is for two short messages, `long_exchange` for two of which one is long at least. Where another message
stands in the way, or a box is full, both fall back to `Mail`'s own sends, receives and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from emu.comm.mailbox import HEADER, SLOTS
from emu.comm.memory import Reader
from emu.comm.mpi_mail import TAKEN, Mail
from emu.comm.operations import OPERATIONS
from emu.comm.plan import Exchange, Local

if TYPE_CHECKING:
    from emu.comm.mpi_replay import Bound

Call = Callable[[], Any]


def short_exchange(bound: Bound, step: Exchange, mail: Mail, summed: Local | None) -> Call:
    """Exchange two short messages; `summed`: and make the sum that follows of what has come, where it is."""
    to, source, context, tag = bound.group[step.to], bound.group[step.source], bound.context, step.tag
    out, into = bound.array(step.out), bound.array(step.into)
    early, after = mail.early[source], bound.local(summed) if summed is not None else None
    put, n = mail.outgoing[to].put, mail.block_bytes
    data = out.view(np.uint8)
    blocks = [
        (context, tag, out.nbytes, 0, i, data[i : i + n]) for i in range(0, max(1, out.nbytes), n)
    ]
    takes = _takers(bound, step, mail, summed, into)
    meeting = _Meeting(mail, source, [(context, tag, into.nbytes, 0, i) for i in range(0, max(1, into.nbytes), n)])

    def slowly(sent: Any) -> None:
        expected = mail.receive(into, source, context, tag)
        mail.wait((expected, sent) if sent is not None else (expected,))
        if after is not None:
            after()

    if len(blocks) == len(takes) == 1:
        slots = _slots(bound, step, mail, summed, into)
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


def long_exchange(
    bound: Bound, step: Exchange, mail: Mail, summed: Local | None, staged: np.ndarray | None
) -> Call:
    """Exchange two messages of which one is long at least; `summed`: and make the sum that follows.

    `staged` is memory that the other rank sees: what goes out is copied there and read from there. One copy and a sum
    are faster than to read into a buffer and to add from it, which crosses into the kernel; and what was sent may be
    written while the other rank reads.
    """
    to, source, context, tag = bound.group[step.to], bound.group[step.source], bound.context, step.tag
    out, into = bound.array(step.out), bound.array(step.into)
    after = bound.local(summed) if summed is not None else None
    early, busy, new_number = mail.early[source], mail.busy, mail.new_number
    put, box, answers = mail.outgoing[to].put, mail.incoming[source], mail.incoming[to]
    reader = mail.readers[source]
    whole = not mail.is_short_exchange(out.ctypes.data, out.nbytes)
    address = (out if staged is None else staged).ctypes.data
    expected = (context, tag, into.nbytes)
    take = partial(bound.sum, summed, into) if summed is not None else _copier(into)

    def slowly(sent: Any) -> None:
        message = mail.receive(into, source, context, tag)
        mail.wait((message, sent))
        if after is not None:
            after()

    def exchange() -> None:
        if staged is not None:
            np.copyto(staged, out)
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
    bound: Bound, step: Exchange, mail: Mail, summed: Local | None, into: np.ndarray
) -> list[Callable[[np.ndarray], Any]]:
    """Return what takes each block of a short message from its slot."""
    n, size = mail.block_bytes, into.itemsize
    cuts = [(i, min(i + n, into.nbytes)) for i in range(0, max(1, into.nbytes), n)]
    if summed is None:
        target = into.view(np.uint8)
        return [partial(_copy, target[a:b], b - a) for a, b in cuts]
    assert summed.other is not None
    function, result = OPERATIONS[summed.op], bound.array(summed.into)
    brought_into = summed.into == step.into
    other = bound.array(summed.other) if brought_into else result
    add = _add if brought_into != summed.swapped else _add_to
    return [
        partial(add, function, other[a // size : b // size], result[a // size : b // size], b - a, into.dtype)
        for a, b in cuts
    ]


def _slots(bound: Bound, step: Exchange, mail: Mail, summed: Local | None, into: np.ndarray) -> list[Call]:
    """Return for each slot what takes a message of one block from it."""
    box = mail.incoming[bound.group[step.source]]
    calls: list[Call] = []
    for slot in box.payload:
        got = slot[: into.nbytes].view(into.dtype)
        if summed is None:
            calls.append(partial(np.copyto, into, got))
            continue
        assert summed.other is not None
        result = bound.array(summed.into)
        brought_into = summed.into == step.into
        other = bound.array(summed.other) if brought_into else result
        operands = (got, other) if brought_into != summed.swapped else (other, got)
        calls.append(partial(OPERATIONS[summed.op], *operands, out=result))
    return calls


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
