"""Messages of collectives between processes of one host: short ones by mailbox, long ones straight from memory.

A long message's sender tells where its buffer lies; the receiver copies from there, or adds from there, and tells that
it has. The buffer is lent until then. As with MPI, messages match by communicator, source and tag in the order of
their sends, and what is posted comes in while the rank waits for something else.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from emu.comm import mailbox
from emu.comm.board import MOST_MEMBERS, Boards
from emu.comm.mailbox import SLOTS, Incoming, Outgoing
from emu.comm.memory import Reader, allow_reading, processes
from emu.comm.shared import LEAST_BYTES, Arena, Window
from emu.errors import EmuError, MismatchError

TAKEN = -1  # in the place of an address: the message of this number has been read
MOST_PROCESSES = MOST_MEMBERS  # of a host: each has a box from and to each other
SPINS = 2000  # looks without giving the core away, where every process has one
SUM_BYTES = 524288  # of a long message read at a time: each call into the kernel costs 5 us, and half a cache holds it
STAGED_BYTES = 4 << 20  # the longest message that is copied to where the other rank sees it, to be added from there
PATIENCE = 200  # looks for what a rank waits for, until it reads what it would rather leave for later
_PROGRESS_EVERY = 1024  # looks, one of which lets MPI get on with messages of the program


class Sent:
    """A message on its way: done when its buffer may be used again."""

    __slots__ = ("mail", "x", "done")

    def __init__(self, mail: Mail, x: Any) -> None:
        self.mail, self.x = mail, x
        self.done = False

    def test(self) -> bool:
        """Tell whether it is done; what is under way gets on."""
        if not self.done:
            self.mail.progress(True)
        return self.done


class Expected:
    """A message to come. One that is `late` is taken by `take`, and not as soon as it is told of."""

    __slots__ = (
        "mail", "into", "key", "peer", "address", "number", "told", "done", "late", "exact", "nbytes", "source", "tag"
    )  # fmt: skip

    def __init__(self, mail: Mail, into: Any, key: tuple[int, int], peer: int, late: bool, exact: bool) -> None:
        self.mail, self.into, self.key, self.peer, self.late, self.exact = mail, into, key, peer, late, exact
        self.nbytes, self.source, self.tag = into.nbytes, -1, key[1]  # bytes: when it is done, those that have come
        self.told = self.done = False
        self.address = self.number = 0

    def test(self) -> bool:
        """Tell whether it is done; what is under way gets on."""
        if not self.done:
            self.mail.progress(True)
        return self.done

    def take(self, read: Callable[[Reader, int], None]) -> None:
        """Have read(reader, address) take the message that has been told of."""
        self.done = True
        read(self.mail.readers[self.peer], self.address)
        self.mail.taken(self)

    def take_whole(self) -> None:
        """Copy the message that has been told of to where it was asked for."""
        self.take(self._whole)

    def _whole(self, reader: Reader, address: int) -> None:
        into = self.into
        if isinstance(into, np.ndarray):
            reader.read(into.ctypes.data, address, self.nbytes)
        else:  # on a device
            host = np.empty(self.nbytes, np.uint8)
            reader.read(host.ctypes.data, address, self.nbytes)
            into.reshape(-1).view(np.uint8)[: self.nbytes].set(host)


class Mail:
    """One process's messages with the others of its host, by their world ranks, for all of its communicators."""

    def __init__(
        self, comm: MPI.Comm, readers: dict[int, Reader], incoming: dict[int, Incoming], outgoing: dict[int, Outgoing],
        arena: Arena, slot_bytes: int, alone: bool,
    ) -> None:  # fmt: skip
        self.comm = comm  # only to let MPI get on
        self.readers, self.incoming, self.outgoing = readers, incoming, outgoing
        self.arena, self.boards = arena, Boards(arena)
        self.spins = SPINS if alone else 0
        self.block_bytes = slot_bytes  # of a short message at a time
        self.block = np.empty(SUM_BYTES, np.uint8)  # what is read of a long message to be added
        self.asked: dict[int, list[Expected]] = {peer: [] for peer in readers}
        self.early: dict[int, list[tuple[Any, ...]]] = {peer: [] for peer in readers}  # came before they were asked for
        self.lent: dict[int, dict[int, Sent]] = {peer: {} for peer in readers}
        self.queued: dict[int, deque[tuple[Any, ...]]] = {peer: deque() for peer in readers}
        self.busy: dict[int, int] = {}  # peers that something is expected from -> how many
        self.late: list[Expected] = []  # told of, to be taken later
        self.owed = 0  # answers to long messages that have found no room yet: their senders look out for them
        self._number = 0

    def is_short(self, address: int, nbytes: int) -> bool:
        """Tell whether a message goes by mailbox, in blocks, and is not read where it is."""
        most = SLOTS * self.block_bytes
        return nbytes <= most and (nbytes < LEAST_BYTES or not self.arena.holds(address))

    def is_short_exchange(self, address: int, nbytes: int) -> bool:
        """Tell the same of a message that is exchanged for another.

        Several blocks are slower than one reading, but not where ranks share a core: blocks wait for nobody.
        """
        one = nbytes < LEAST_BYTES or nbytes <= self.block_bytes
        return self.is_short(address, nbytes) and (one or not self.spins)

    def stage(self, x: np.ndarray) -> np.ndarray | None:
        """Return memory that the other ranks see for a message like x; None if they see x, or it does not pay."""
        if not self.spins or not LEAST_BYTES <= x.nbytes <= STAGED_BYTES or self.arena.holds(x.ctypes.data):
            return None
        staged = self.arena.empty(x.shape, x.dtype)
        return staged if self.arena.holds(staged.ctypes.data) else None

    def send(self, x: Any, peer: int, context: int, tag: int, rendezvous: bool = False) -> Sent:
        """Start to send x to world rank `peer`."""
        if not isinstance(x, np.ndarray):
            x = x.get()  # from a device
        if self.is_short(x.ctypes.data, x.nbytes) and not rendezvous:
            return self.send_rest(x, peer, context, tag, 0)
        number = self.new_number()
        self._put(peer, (context, tag, x.nbytes, x.ctypes.data or 1, number), None)
        return self.lend(x, peer, number)

    def new_number(self) -> int:
        """Return a number for a long message."""
        self._number += 1
        return self._number

    def lend(self, x: Any, peer: int, number: int) -> Sent:
        """Note that world rank `peer` has been told of a long message."""
        self.lent[peer][number] = sent = Sent(self, x)
        self.busy[peer] = self.busy.get(peer, 0) + 1
        return sent

    def send_rest(self, x: Any, peer: int, context: int, tag: int, start: int) -> Sent:
        """Start to send a short message from byte `start` on."""
        sent, data, n = Sent(self, x), x.reshape(-1).view(np.uint8), self.block_bytes
        for at in range(start, max(1, x.nbytes), n):
            last = sent if at + n >= x.nbytes else None
            self._put(peer, (context, tag, x.nbytes, 0, at, data[at : at + n]), last)
        return sent

    def receive(
        self, into: Any, peer: int, context: int, tag: int, late: bool = False, exact: bool = True
    ) -> Expected:
        """Start to receive into `into` from world rank `peer`; unless `exact`, the message may be shorter."""
        expected = Expected(self, into, (context, tag), peer, late, exact)
        early = self.early[peer]
        for message in [each for each in early if each[0] == expected.key]:
            early.remove(message)
            if self._deliver(expected, *message[1:]):
                return expected
        self.asked[peer].append(expected)
        self.busy[peer] = self.busy.get(peer, 0) + 1
        return expected

    def wait(
        self, messages: Sequence[Sent | Expected], requests: Sequence[Any] = (), statuses: list[Any] | None = None
    ) -> None:
        """Return when messages and MPI's requests are done; one that is late is only told of by then."""
        looks = 0
        while True:
            for each in messages:
                if not (each.done or (each.__class__ is Expected and each.told)):  # type: ignore[union-attr]
                    break
            else:
                if not self.owed and (not requests or MPI.Request.Testall(requests, statuses)):  # type: ignore[arg-type]
                    return
            looks += 1
            self.progress(looks % PATIENCE == 0)
            self.pause(looks)

    def look_for(self, box: Incoming) -> None:
        """Return when a message is in the box, where nothing else is under way."""
        words, place, number, looks = box.words, box.at, box.next, 0
        while words[place] != number:
            looks += 1
            if looks > self.spins:
                self.pause(looks)

    def pause(self, looks: int) -> None:
        """Give way between two looks."""
        if looks % _PROGRESS_EVERY == 0:
            self.comm.Iprobe()
        if looks > self.spins:
            os.sched_yield()

    def progress(self, all_of: bool = False) -> None:
        """Take in what has come; `all_of`: also what was to be taken later."""
        for peer in tuple(self.busy):
            if self.queued[peer]:
                self._flush(peer)
            if self.incoming[peer].there():
                self._take_in(peer)
        if all_of:
            for expected in tuple(self.late):
                expected.take_whole()

    def taken(self, expected: Expected) -> None:
        """Tell the sender of a long message that it has been read."""
        if expected in self.late:
            self.late.remove(expected)
        self.tell_taken(expected.peer, expected.number)

    def tell_taken(self, peer: int, number: int) -> None:
        """Tell a sender that its long message of this number has been read."""
        self._put(peer, (0, 0, 0, TAKEN, number), None)

    def _take_in(self, peer: int) -> None:
        box = self.incoming[peer]
        while box.there():
            context, tag, nbytes, address, number = box.header()
            if address == TAKEN:
                box.release()
                sent = self.lent[peer].pop(number)
                sent.done, sent.x = True, None
                self._less(peer)
                continue
            data = None if address else box.data()[: min(self.block_bytes, nbytes - number)]
            expected = next((each for each in self.asked[peer] if each.key == (context, tag)), None)
            if expected is None:
                kept = None if data is None else data.copy()
                self.early[peer].append(((context, tag), nbytes, address, number, kept))
            elif self._deliver(expected, nbytes, address, number, data):
                self.asked[peer].remove(expected)
                self._less(peer)
            box.release()

    def _deliver(self, expected: Expected, nbytes: int, address: int, number: int, data: Any) -> bool:
        """Give what has come to whom it is for; tell whether that was all of it."""
        into = expected.into
        if nbytes > into.nbytes or (expected.exact and nbytes < into.nbytes):
            raise MismatchError(
                f"message of a collective: sender and receiver must agree on size, got rank {expected.peer} sending "
                f"{nbytes} bytes and {into.nbytes} expected from it; make both the same"
            )
        expected.nbytes = nbytes
        if address:
            expected.address, expected.number, expected.told = address, number, True
            if expected.late:
                self.late.append(expected)
            else:
                expected.take_whole()
            return True
        target = into.reshape(-1).view(np.uint8)[number : number + len(data)]
        if isinstance(into, np.ndarray):
            target[:] = data
        else:
            target.set(data)
        expected.done = number + len(data) == nbytes
        return expected.done

    def _put(self, peer: int, message: tuple[Any, ...], sent: Sent | None) -> None:
        if not self.queued[peer] and self.outgoing[peer].put(*message):
            if sent is not None:
                sent.done, sent.x = True, None
            return
        self.queued[peer].append((message, sent))
        self.owed += message[3] == TAKEN
        self.busy[peer] = self.busy.get(peer, 0) + 1

    def _flush(self, peer: int) -> None:
        queued, box = self.queued[peer], self.outgoing[peer]
        while queued and box.put(*queued[0][0]):
            message, sent = queued.popleft()
            self.owed -= message[3] == TAKEN
            if sent is not None:
                sent.done, sent.x = True, None
            self._less(peer)

    def _less(self, peer: int) -> None:
        self.busy[peer] -= 1
        if not self.busy[peer]:
            del self.busy[peer]


def open_mail(world: MPI.Comm) -> Mail | None:
    """Make this process's mail; None if the processes of a host can't read each other's memory. Collective."""
    word = np.array([int.from_bytes(os.urandom(7), "little")], np.int64)
    name = processes() if mailbox.available() else ""
    if name:
        allow_reading()
    told = world.allgather((name, os.getpid(), word.ctypes.data, int(word[0])))
    here = [r for r, each in enumerate(told) if each[0] == name] if name else [world.rank]
    readers = {r: Reader(told[r][1]) for r in here if r != world.rank}
    works = len(here) <= MOST_PROCESSES and all(_reads(readers[r], *told[r][2:]) for r in readers)
    several = world.allreduce(len(here), op=MPI.MAX) > 1
    if not world.allreduce(works, op=MPI.LAND) or not several:
        return None
    room, arena = _open_room(world, here, told), _try(Arena)
    if not world.allreduce(room is not None and arena is not None, op=MPI.LAND):
        return None
    arenas = world.allgather((arena.file, arena.start, arena.nbytes))
    for r, reader in readers.items():
        reader.window = Window(reader.pid, *arenas[r])
    mine, place = world.rank, {r: i for i, r in enumerate(here)}
    incoming = {r: Incoming(mailbox.box(room, len(here), place[r], place[mine])) for r in readers}
    outgoing = {r: Outgoing(mailbox.box(room, len(here), place[mine], place[r])) for r in readers}
    alone = len(here) <= len(os.sched_getaffinity(0))
    return Mail(world.Dup(), readers, incoming, outgoing, arena, mailbox.slot_bytes(len(here)), alone)


def _open_room(world: MPI.Comm, here: list[int], told: list[Any]) -> Any:
    """Map the memory that the lowest rank of each host makes; None if that fails."""
    room, file = None, -1
    if world.rank == here[0]:
        file, room = _try(mailbox.make_room, len(here)) or (-1, None)
    files = world.allgather(file)
    if room is None and files[here[0]] >= 0:
        room = _try(mailbox.open_room, told[here[0]][1], files[here[0]], len(here))
    world.Barrier()
    if file >= 0:
        os.close(file)
    return room


def _try(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (OSError, ValueError):
        return None


def _reads(reader: Reader, address: int, expected: int) -> bool:
    got = np.zeros(1, np.int64)
    try:
        reader.read(got.ctypes.data, address, 8)
    except EmuError:
        return False
    return bool(got[0] == expected)
