"""What one rank's MPI calls share: its communicator, who answers its questions, and the work beside its program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from emu.comm.background import Background
from emu.comm.communicator import Comm
from emu.errors import ConfigError


class Unsupported(ConfigError, AttributeError):
    """A name of mpi4py's that emu does not have."""


class JobAborted(Exception):
    """The program has called Abort; the job ends with its status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"MPI.Abort({status})")
        self.status = status


class Answers(Protocol):
    """Answers what a program asks about time and order."""

    def now_s(self) -> float:
        """Return the emulated time at which the rank's program stands."""

    def wait(self, comm: Comm, requests: Sequence[Any]) -> None:
        """Return when all requests are done; who comes first decides any-source receives."""

    def test(self, comm: Comm, requests: Sequence[Any]) -> list[bool]:
        """Tell which of these requests are done by now."""

    def first(self, comm: Comm, requests: Sequence[Any]) -> list[int]:
        """Wait until one is done; return the places of all that are done then."""

    def probe(self, comm: Comm, source: int, tag: int, block: bool, take: bool) -> Any:
        """Return the message that a receive would get now (`block`: first)."""


@dataclass
class Session:
    """One rank's MPI."""

    core: Comm
    answers: Answers
    background: Background
    host: str = "emu"
    enter: Callable[[], bool] | None = None  # told when the program calls MPI; returns whether from its own code
    leave: Callable[[], None] | None = None  # and when it goes on by itself
    finalized: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)


class HostAnswers:
    """Answers by what has happened in this run, where no engine stands beside the program."""

    def now_s(self) -> float:
        """Raise ConfigError: without an engine there is no time yet."""
        raise ConfigError("MPI.Wtime: an engine beside the program is expected, got a run without a cluster")

    def wait(self, comm: Comm, requests: Sequence[Any]) -> None:
        """Return when all are done."""
        comm.wire.wait([request.pending for request in requests])

    def test(self, comm: Comm, requests: Sequence[Any]) -> list[bool]:
        """Tell which are done."""
        return [comm.wire.test(request.pending) for request in requests]

    def first(self, comm: Comm, requests: Sequence[Any]) -> list[int]:
        """Wait until one is done."""
        return comm.wire.wait_any([request.pending for request in requests])

    def probe(self, comm: Comm, source: int, tag: int, block: bool, take: bool) -> Any:
        """Look at what has been sent."""
        return comm.wire.probe(source, tag, block, take)
