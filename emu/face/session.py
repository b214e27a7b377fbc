"""What one rank's MPI calls share: its communicator, who answers its questions, and the work beside its program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from emu.comm.answers import Answers
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
