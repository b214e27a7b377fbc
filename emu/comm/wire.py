"""The seam below a communicator: what moves bytes between its members, and what is told beside them.

A wire serves one communicator. Ranks here are local to it. Nothing on a wire is recorded; that is Comm's part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from emu.comm.sites import Site, told
from emu.errors import MismatchError
from emu.trace import DTYPES

# What a plain message is made of travels beside it, so that a receiver of another dtype is told. Plain bytes
# have one kind whatever their sign; a pickled object is a kind of its own.
OBJECT, OTHER = 31, 30
_BYTES = DTYPES.index("uint8")
_KIND_NAMES = {_BYTES: "bytes", OBJECT: "a pickled object", OTHER: "records"} | {
    i: name for i, name in enumerate((*DTYPES, "complex64", "longdouble", "clongdouble")) if i != _BYTES
}
_KIND_OF_NAME = {name: kind for kind, name in _KIND_NAMES.items()} | {
    "uint8": _BYTES, "int8": _BYTES, "bytes8": _BYTES, "float128": 17, "complex256": 18,
}  # fmt: skip


class _Kinds(dict):
    """A dtype's kind, looked up once."""

    def __missing__(self, dtype: np.dtype) -> int:
        kind = self[dtype] = _KIND_OF_NAME.get(dtype.name, _BYTES if dtype.itemsize == 1 else OTHER)
        return kind


KINDS: Mapping[np.dtype, int] = _Kinds()


def kind_name(kind: int) -> str:
    """Return what a user calls a kind of message."""
    return _KIND_NAMES.get(kind, "records")


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
    sites: deque[Site]  # where the rank's latest plain messages stand in the program, the newest last

    def isend(
        self, x: Any, to: int, tag: int, collective: int, kind: int | None = None, rendezvous: bool = False
    ) -> Any:
        """Start to send; the buffer must not change until the message is waited for.

        `kind` says what x is made of (None: its dtype); `rendezvous` waits for the receiver, however short x is.
        """

    def irecv(
        self, x: Any, source: int, tag: int, collective: int, kind: int | None = None, exact: bool = True
    ) -> Any:
        """Start to receive into x; source and tag may be ANY. Unless `exact`, the message may be shorter than x."""

    def probe(self, source: int, tag: int, block: bool, take: bool) -> Any:
        """Return the first plain message that a receive would get, None if there is none (`block`: wait for one).

        `take` takes it, for `receive_taken`.
        """

    def receive_taken(self, x: Any, taken: Any, kind: int | None = None, exact: bool = True) -> Any:
        """Start to receive into x the message that a probe has taken."""

    def wait(self, pendings: Sequence[Any]) -> None:
        """Return when all are done."""

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int, collective: int) -> None:
        """Send and receive at the same time."""

    def test(self, pending: Any) -> bool:
        """Tell whether one is done."""

    def empty(self, shape: Any, dtype: Any) -> np.ndarray:
        """Return an uninitialised array of the host, in memory that messages leave fastest."""

    def exchange(self, value: Any, work: Callable[[list[Any]], Any] = list) -> Any:
        """Give one small value, get what `work` makes of every member's, in rank order: control, no emulated traffic.

        Ranks of one process may share what it makes, and must not change it.
        """

    def agree(self, call: Call) -> None:
        """Check that every member makes the same call. Raise MismatchError on every rank if not."""

    def sub(self, part: int | None, members: Sequence[int], context: int) -> Wire | None:
        """Make the wire of one of several sub-communicators, by its number; who is in none gives None. Collective."""

    def free(self) -> None:
        """Give back what the wire holds."""


class FullWire(Wire, Protocol):
    """A wire that also does what mpi4py's face and questions of order need."""

    held: list[Any]  # receives whose message an engine has yet to choose

    def choose(self, receive: Any, source: int, tag: int) -> None:
        """Match a receive that was held back with the next message of this source and tag."""

    def wait_any(self, pendings: Sequence[Any]) -> list[int]:
        """Wait until one is done; return the places of all that are."""

    def alone(self, context: int) -> FullWire:
        """Return a wire of this rank alone."""

    def beside(self) -> FullWire:
        """Return a wire of the same members whose messages meet no others: for calls that run beside the program."""


class Call(NamedTuple):  # one is made at every call: a frozen dataclass takes three times as long
    """A collective call as its ranks must agree on it, and where it stands in the source."""

    what: str  # ring_all_reduce
    terms: Hashable  # what must be equal: op, root, counts, dtypes
    place: Site | str  # file:line, or what that is told from
    ordinal: int  # how many collectives this communicator has begun before
    # the calls begun on every communicator of the rank: context -> (how many, its group, the latest)
    order: Mapping[int, tuple[int, tuple[int, ...], Any]] = MappingProxyType({})

    @property
    def site(self) -> str:
        """Where it stands: file:line."""
        return self.place if isinstance(self.place, str) else told(self.place)

    def __reduce__(self) -> Any:
        return Call, (self.what, self.terms, self.site, self.ordinal)

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
