"""A view of a communicator that sees some of its ranks only.

Phases of an algorithm that run in a part of the ranks (a node, a power of two, one rank a node) are
written for a communicator of their own. This view gives them one without a collective call: peers are
translated, and all messages stay messages of the communicator below.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emu.collectives.protocol import Peers
from emu.comm.at_once import Table


@dataclass(frozen=True)
class Line(Sequence[int]):
    """Ranks that stand in a table, at places of their own: number i is `ranks[starts[i] + offset]`."""

    ranks: Table
    starts: Sequence[int]
    offset: int

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> int:  # type: ignore[override]
        return self.ranks[self.starts[i] + self.offset]


class Among:
    """The ranks `members` of `comm`, numbered from 0 in that order; `comm.rank` must be one of them, number `rank`."""

    def __init__(self, comm: Peers, members: Sequence[int], rank: int | None = None):
        self._comm = comm
        self._members = members if rank is not None else Table(members)
        self.rank = self._members.index(comm.rank) if rank is None else rank
        self.size = len(members)
        self.reduce, self.copy, self.divide = comm.reduce, comm.copy, comm.divide
        self.empty, self.empty_like, self.waitall = comm.empty, comm.empty_like, comm.waitall

    def isend(self, x: Any, to: int, tag: int = 0) -> Any:
        """Start to send `x` to member `to`."""
        return self._comm.isend(x, self._members[to], tag)

    def irecv(self, x: Any, source: int, tag: int = 0) -> Any:
        """Start to receive into `x` from member `source`."""
        return self._comm.irecv(x, self._members[source], tag)

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int = 0) -> None:
        """Send `x` to member `to` while receiving `into` from member `source`."""
        self._comm.sendrecv(x, self._members[to], into, self._members[source], tag)
