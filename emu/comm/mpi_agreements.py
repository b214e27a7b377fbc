"""Which calls the members of a communicator make: told in a word, or while they go on."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

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


@lru_cache(maxsize=4096)
def hash_of(what: str, terms: Hashable) -> int:
    """Return 63 bits that are equal on every process for equal calls."""
    text = repr((what, terms)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
