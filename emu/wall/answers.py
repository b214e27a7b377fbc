"""Questions of time and order under the wall clock: answered when their moment has come, by the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from emu.comm.communicator import Comm


class WallAnswers:
    """One rank's questions; see `emu.comm.answers.Answers`."""

    def now_s(self, comm: Comm) -> float:
        """Return the emulated time at which the rank's program stands."""
        return comm.wire.now_s()  # type: ignore[attr-defined]

    def wait(self, comm: Comm, requests: Sequence[Any]) -> None:
        """Return when all requests are done."""
        comm.wire.wait([request.pending for request in requests])

    def test(self, comm: Comm, requests: Sequence[Any]) -> list[bool]:
        """Tell which of these requests are done by now."""
        return [comm.wire.test(request.pending) for request in requests]

    def first(self, comm: Comm, requests: Sequence[Any]) -> list[int]:
        """Wait until one is done; return the places of all that are done then."""
        return comm.wire.wait_any([request.pending for request in requests])

    def probe(self, comm: Comm, source: int, tag: int, block: bool, take: bool) -> Any:
        """Return the message that a receive would get now (`block`: first)."""
        return comm.wire.probe(source, tag, block, take)

    def meet(self, comm: Comm, value: Any, work: Callable[[list[Any]], Any] = list) -> Any:
        """Give every member a value, get what `work` makes of all; nobody goes on before the last has come."""
        return comm.wire.exchange(value, work)
