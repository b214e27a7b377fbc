"""A deadline for every wait: a thread that looks now and then whether the rank still gets on.

The wire only counts its waits and says what it waits for; that costs no system call. When the count has stood
still for too long, the watch tells it once at a tenth of the deadline, and ends the job at the deadline. Who waits for
rank 0 alone is patient: rank 0 has a watch of its own, and may work for as long as it likes.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

DEADLINE_S = 600.0


class Watch:
    """Watches one process. `count` and `waiting` are written by the wire."""

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self.count = 0
        self.waiting: Any = None
        self.patient = False  # the wait that goes on has no deadline
        self.holds = False  # receives from any source wait for an engine to choose their message
        self.wires: weakref.WeakSet[Any] = weakref.WeakSet()  # of this process
        self.where_sent: Callable[[Any, int, int], str] = lambda wire, source, tag: ""  # asks a sender for its line
        self.meets: dict[Any, int] = {}  # whom -> how often this rank has come to meet them
        self.beside: Any = None  # what runs beside the program, while something does
        self.deadline_s = deadline_s
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def begin(self, waiting: Any, patient: bool = False) -> None:
        """Note that a wait begins, and for what."""
        self.count += 1
        self.waiting, self.patient = waiting, patient

    def meet(self, wire: Any, what: str, patient: bool = False) -> None:
        """Note that a wait begins for all members of a wire to come (None: for all ranks)."""
        key = whom(wire)
        self.meets[key] = self.meets.get(key, 0) + 1
        self.begin((wire, what, None), patient)

    def end(self) -> None:
        """Note that the wait is over."""
        self.waiting, self.patient = None, False

    def start(
        self, warn: Callable[[float], None], expire: Callable[[float], None], look: Callable[[float], None]
    ) -> None:
        """Begin to watch.

        look(seconds) is called now and then with how long the rank has stood still, warn at a tenth of the deadline,
        expire at the deadline.
        """
        self._thread = threading.Thread(target=self._look, args=(warn, expire, look), daemon=True, name="emu-watch")
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _look(
        self, warn: Callable[[float], None], expire: Callable[[float], None], look: Callable[[float], None]
    ) -> None:
        seen, since, warned = -1, time.monotonic(), False
        while not self._stopped.wait(min(0.5, self.deadline_s / 20)):
            now = time.monotonic()
            if self.waiting is None or self.count != seen:
                seen, since, warned = self.count, now, False
                look(0.0)
                continue
            waited = now - since
            look(waited)
            if self.patient:
                continue
            if waited >= self.deadline_s:
                expire(waited)
                return
            if waited >= self.deadline_s / 10 and not warned:
                warned = True
                warn(waited)


def whom(wire: Any) -> Any:
    """Return what names the members of a wire on every rank, and None all ranks."""
    return "all" if wire is None else (wire.context, wire.group)
