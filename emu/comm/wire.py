"""The seam below a communicator: what moves bytes between its members, and what is told beside them.

A wire serves one communicator. Ranks here are local to it. Nothing on a wire is recorded; that is Comm's part.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from emu.errors import MismatchError


class Pending(Protocol):
    """A message under way. `source`, `tag` and `nbytes` tell of a receive that is done."""

    source: int
    tag: int
    nbytes: int


class Wire(Protocol):
    """Moves contiguous buffers between the members of one communicator."""

    dry: bool  # no bytes: buffers have shapes only
    rank: int
    size: int

    def isend(self, x: Any, to: int, tag: int, collective: int) -> Any:
        """Start to send; the buffer must not change until the message is waited for."""

    def irecv(self, x: Any, source: int, tag: int, collective: int) -> Any:
        """Start to receive into x; source and tag may be ANY."""

    def wait(self, pendings: Sequence[Any]) -> None:
        """Return when all are done."""

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int, collective: int) -> None:
        """Send and receive at the same time."""

    def test(self, pending: Any) -> bool:
        """Tell whether one is done."""

    def exchange(self, value: Any) -> list[Any]:
        """Give one small value, get every member's, in rank order. Control, not emulated traffic."""

    def agree(self, call: Call) -> None:
        """Check that every member makes the same call. Raise MismatchError on every rank if not."""

    def sub(self, members: Sequence[int] | None, context: int) -> Wire | None:
        """Make the wire of a sub-communicator; every member of this one calls, outsiders with None."""

    def free(self) -> None:
        """Give back what the wire holds."""


@dataclass(frozen=True)
class Call:
    """A collective call as its ranks must agree on it, and where it stands in the source."""

    what: str  # ring_all_reduce
    terms: Hashable  # what must be equal: op, root, counts, dtypes
    site: str  # file:line
    ordinal: int  # how many collectives this communicator has begun before

    def __str__(self) -> str:
        terms = ", ".join(f"{name}={value}" for name, value in self.terms)  # type: ignore[attr-defined]
        return f"{self.what}({terms}) at {self.site}"


def compare(calls: Mapping[int, Call]) -> None:
    """Raise MismatchError that names the first two calls, by world rank, that are not the same."""
    first_rank, first = min(calls.items(), key=lambda item: item[0])
    for rank, call in sorted(calls.items()):
        if (call.what, call.terms) != (first.what, first.terms):
            raise MismatchError(
                f"collective {first.ordinal}: every rank must make the same call, got rank {first_rank}: {first}; "
                f"rank {rank}: {call}; make all ranks call the same collective with equal arguments, in the same order"
            )
