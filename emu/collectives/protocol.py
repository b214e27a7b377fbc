"""What an algorithm may use: the part of a communicator that fits on a page.

Buffers are one-dimensional contiguous arrays of the device. A slice of one is a view. Algorithms neither
read values nor call numpy on them, so that they run on any device, and without bytes.
"""

from collections.abc import Sequence
from typing import Any, Protocol


class Peers(Protocol):
    """`size` ranks, of which this is `rank`, and what it can do with the others."""

    rank: int
    size: int

    def isend(self, x: Any, to: int, tag: int = 0) -> Any:
        """Start to send x; it must not change before the request is waited for."""

    def irecv(self, x: Any, source: int, tag: int = 0) -> Any:
        """Start to receive into x."""

    def waitall(self, requests: Sequence[Any]) -> None:
        """Return when all requests are done."""

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int = 0) -> None:
        """Send x and receive into `into` at the same time."""

    def reduce(self, op: str, into: Any, received: Any, received_first: bool = False) -> None:
        """Set into = op(into, received), or op(received, into)."""

    def divide(self, x: Any, by: int) -> None:
        """Divide x in place."""

    def copy(self, into: Any, x: Any) -> None:
        """Copy x into `into` on this rank."""

    def empty(self, size: int, dtype: Any, like: Any = None) -> Any:
        """Return scratch of `size` elements on the device of `like`."""

    def empty_like(self, x: Any) -> Any:
        """Return scratch of x's size and dtype on x's device."""
