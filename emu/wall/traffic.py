"""The bytes of one process that MPI still has to move. They move only while somebody looks after them."""

from __future__ import annotations

import threading
from typing import Any, Protocol


class Mover(Protocol):
    """A wire, as far as it is needed here."""

    def test(self, pending: Any) -> bool:
        """Let MPI work; tell whether one message is done."""


class Traffic:
    """Messages under way of all streams. Every call into MPI happens under `lock`, and none blocks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._open: list[tuple[Mover, Any]] = []

    def add(self, wire: Mover, posted: Any) -> None:
        """Look after a message from now on; the lock must be held."""
        self._open.append((wire, posted))

    def work(self) -> bool:
        """Let MPI move bytes; return whether none are left. `moved` of each message tells that it is done."""
        with self.lock:
            still = []
            for wire, posted in self._open:
                if wire.test(posted.inner):
                    posted.moved = True
                else:
                    still.append((wire, posted))
            self._open = still
            return not still
