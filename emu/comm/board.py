"""Boards: where ranks of one host see what each of them calls, in memory that all of them have mapped.

A rank writes one word for each call, its number and a hash, and looks until every member's word for that call is
there. There are two rows of words, used in turn: who writes its next but one call has seen everybody's next one, so
nobody looks at that row any more. A word is written and read whole, so nothing depends on the order of stores.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from emu.comm.shared import LEAST_BYTES, Arena

NUMBER_BITS = 16  # of a word: which call it is of; the others are the call's hash
_NUMBERS = (1 << NUMBER_BITS) - 1
_HASHES = (1 << (63 - NUMBER_BITS)) - 1
MOST_MEMBERS = 64
BYTES = 3 * 8 * MOST_MEMBERS
_LOOKS = 64  # so often without finding all words equal, then those that are there are compared
_pack = struct.Struct("<q").pack


class Board:
    """One communicator's board, as its member `rank` of `size` sees it. `memory` must be zero when it is made."""

    __slots__ = ("memory", "size", "rank", "words", "rows", "count", "mine")

    def __init__(self, memory: np.ndarray, rank: int, size: int) -> None:
        self.memory, self.rank, self.size = memory, rank, size
        view = memory.data
        self.words = view.cast("q")  # two rows, then who has left
        self.rows = view[: 8 * size], view[8 * size : 16 * size]
        self.count, self.mine = 0, b""

    def meet(self, call_hash: int, give_way: Callable[[int], None]) -> bool:
        """Tell a call, wait for everybody's; tell whether all are the same. give_way(looks) is called between looks."""
        self.tell(call_hash)
        equal, seen = self.mine * self.size, self.rows[self.count & 1].tobytes
        looks = 0
        while seen() != equal:
            looks += 1
            if looks % _LOOKS == 0 and self.complete():
                return self.same()
            give_way(looks)
        return True

    def tell(self, call_hash: int) -> None:
        """Tell the others of a call."""
        self.count += 1
        word = (call_hash & _HASHES) << NUMBER_BITS | self.count & _NUMBERS
        self.mine = _pack(word)
        self.words[(self.count & 1) * self.size + self.rank] = word

    def complete(self) -> bool:
        """Tell whether all members have told theirs."""
        start, number = (self.count & 1) * self.size, self.count & _NUMBERS
        return all(word & _NUMBERS == number for word in self.words[start : start + self.size])

    def same(self) -> bool:
        """Tell whether all that have been told are the same."""
        return self.rows[self.count & 1].tobytes() == self.mine * self.size

    def leave(self) -> None:
        """Note that this member looks at the board no more."""
        self.words[2 * self.size + self.rank] = 1

    def left(self) -> bool:
        """Tell whether no member looks at it any more."""
        return all(self.words[2 * self.size : 3 * self.size])


class Boards:
    """The memory of the boards whose first member is this process. A board's is used again when all have left it."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._given_back: list[Board] = []

    def memory(self) -> np.ndarray:
        """Return zeroed memory for a board."""
        free = next((board for board in self._given_back if board.left()), None)
        if free is not None:
            self._given_back.remove(free)
        memory = self._arena.empty(LEAST_BYTES, np.uint8) if free is None else free.memory
        memory[:BYTES] = 0
        return memory

    def give_back(self, board: Board) -> None:
        """Take back a board that its first member has left."""
        self._given_back.append(board)
