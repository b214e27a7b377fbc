"""Which calls the members of a communicator make: compared before they begin, or while they go on."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

from emu.comm.board import BYTES, Board
from emu.comm.memory import at
from emu.comm.mpi_mail import Mail
from emu.comm.wire import Call
from emu.errors import MismatchError


class Agreements:
    """What the members of a communicator call, told while they go on and looked at when it has come."""

    WIDTH = 256

    def __init__(self, comm: MPI.Comm, group: Sequence[int]) -> None:
        self.comm, self.group = comm, group
        self.pending: deque[tuple[Any, Any, Any]] = deque()

    def add(self, call: Call) -> None:
        """Tell a call; raise MismatchError if an earlier one turns out to have been different elsewhere."""
        text = f"{call.what}\0{call.terms}\0{call}".encode()[: self.WIDTH]
        mine = np.zeros(self.WIDTH, np.uint8)
        mine[: len(text)] = np.frombuffer(text, np.uint8)
        told = np.empty((len(self.group), self.WIDTH), np.uint8)
        self.pending.append((mine, told, self.comm.Iallgather(mine, told)))
        self.look(wait=len(self.pending) > 1000)

    def look(self, wait: bool = False) -> None:
        """Compare what has come; `wait` for all."""
        while self.pending and (wait or self.pending[0][2].Test()):
            _, told, request = self.pending.popleft()
            request.Wait()
            texts = [bytes(row).rstrip(b"\0").decode(errors="replace").split("\0") for row in told]
            for rank, text in zip(self.group, texts, strict=True):
                if text[:2] != texts[0][:2]:
                    raise MismatchError(
                        f"collectives: every rank must make the same call, got rank {self.group[0]}: {texts[0][-1]}; "
                        f"rank {rank}: {text[-1]}; make all ranks call the same collectives in the same order"
                    )


class Hashes:
    """Whether the members of a communicator make the same call: by their host's board, or by MPI between hosts."""

    def __init__(self, comm: MPI.Comm, group: Sequence[int], mail: Mail | None) -> None:
        self.comm, self.mail = comm, mail
        self.board = None if mail is None else _open_board(comm, group, mail)
        self._mine, self._all = np.empty(1, np.int64), np.empty(len(group), np.int64)

    def same(self, call_hash: int, turns: Any) -> bool:
        """Wait for the hash of every member's call; tell whether all are mine. `turns`: what runs meanwhile."""
        board = self.board
        if board is not None:
            if turns is None:
                return board.meet(call_hash, self.mail.pause)  # type: ignore[union-attr]
            board.tell(call_hash)
            turns.until(board.complete, lambda: "the same call elsewhere")
            return board.same()
        self._mine[0] = call_hash
        if turns is None:
            self.comm.Allgather(self._mine, self._all)
        else:
            turns.until(self.comm.Iallgather(self._mine, self._all).Test, lambda: "the same call elsewhere")
        return bool((self._all == call_hash).all())

    def free(self) -> None:
        """Give the board back."""
        if self.board is not None:
            self.board.leave()
            if self.board.rank == 0:
                self.mail.boards.give_back(self.board)  # type: ignore[union-attr]


def _open_board(comm: MPI.Comm, group: Sequence[int], mail: Mail) -> Board | None:
    """Return the board of a communicator whose members are all on one host; None if they are not. Collective."""
    others = [rank for place, rank in enumerate(group) if place != comm.rank]
    if not others or any(rank not in mail.readers for rank in others):
        return None
    memory = mail.boards.memory() if comm.rank == 0 else None
    start = 0 if memory is None or not mail.arena.holds(memory.ctypes.data) else memory.ctypes.data
    start = comm.bcast(start)
    if memory is None and start:
        window = mail.readers[group[0]].window
        assert window is not None
        memory = at(window.address(start), BYTES, np.dtype(np.uint8))
    return Board(memory, comm.rank, comm.size) if memory is not None and start else None


@lru_cache(maxsize=4096)
def hash_of(what: str, terms: Hashable) -> int:
    """Return 63 bits that are equal on every process for equal calls."""
    text = repr((what, terms)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
