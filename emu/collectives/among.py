"""A view of a communicator that sees some of its ranks only.

Phases of an algorithm that run in a part of the ranks (a node, a power of two, one rank a node) are
written for a communicator of their own. This view gives them one without a collective call: peers are
translated, and all messages stay messages of the communicator below.
"""

from collections.abc import Sequence
from typing import Any

from emu.collectives.protocol import Peers


class Among:
    """The ranks `members` of `comm`, numbered from 0 in that order; `comm.rank` must be one of them."""

    def __init__(self, comm: Peers, members: Sequence[int]):
        self._comm = comm
        self._members = members
        self.rank = members.index(comm.rank)
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
