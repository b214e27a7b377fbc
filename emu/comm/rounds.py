"""What the ranks of one process tell each other that is no message: values that all need, and calls that must agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import greenlet

from emu.comm.wire import Call, compare
from emu.errors import MismatchError

if TYPE_CHECKING:
    from emu.comm.local import LocalWire
    from emu.comm.world import World


class Round:
    """One control exchange of a communicator: values given so far, and who waits for the rest."""

    def __init__(self, key: tuple, group: Sequence[int]) -> None:
        self.key = key
        self.group = group
        self.size = len(group)
        self.values: dict[int, Any] = {}
        self.waiters: list[greenlet.greenlet] = []
        self.calls = 0  # collective calls among the values
        self.made: Any = None

    def absent(self) -> list[int]:
        """Return the world ranks that have not come."""
        return [self.group[r] for r in range(self.size) if r not in self.values]

    def meet(self, wire: LocalWire, value: Any, work: Callable[[list[Any]], Any]) -> Any:
        """Give a value, wait for all others'; return what the first to have them all makes of them."""
        if self.calls:
            rank, call = next((rank, call) for rank, call in self.values.items() if isinstance(call, Call))
            raise _mixed(self.group[rank], call, self.group[wire.rank])
        self.values[wire.rank] = value
        if len(self.values) == self.size:
            self.made = work([self.values[rank] for rank in range(self.size)])
            wire.world.ready.extend(self.waiters)
            wire.world.rounds.pop(self.key, None)
        while len(self.values) < self.size:
            self.waiters.append(greenlet.getcurrent())
            wire.world.block(lambda: "ranks " + ", ".join(map(str, self.absent()[:8])) + " to make the same call")
        return self.made

    def compare(self, rank: int, call: Call, world: World) -> None:
        """Compare a call with the first one that was made; raise MismatchError that names both."""
        self.values[rank] = call
        self.calls += 1
        first = min(self.values)
        known = self.values[first]
        if not isinstance(known, Call):
            raise _mixed(self.group[rank], call, self.group[first])
        if (known.what, known.terms) != (call.what, call.terms):
            compare({self.group[first]: known, self.group[rank]: call})
        if known.order:
            _compare_order(self.group[first], known, self.group[rank], call)
        if len(self.values) == self.size:
            world.rounds.pop(self.key, None)


def _mixed(rank: int, call: Call, splitting: int) -> MismatchError:
    return MismatchError(
        f"collective {call.ordinal}: every rank must make the same call, got rank {rank}: {call}; and rank "
        f"{splitting} making a communicator (split, dup, create); use one order on all ranks"
    )


def _compare_order(first_rank: int, first: Call, rank: int, call: Call) -> None:
    """Raise MismatchError if two ranks use two communicators, both members of both, in opposite order."""
    for context, (count, group, last) in first.order.items():
        other = call.order.get(context)
        if other is None or other[0] == count or first_rank not in other[1] or rank not in group:
            continue
        ahead, behind, done = (first_rank, rank, last) if count > other[0] else (rank, first_rank, other[2])
        raise MismatchError(
            f"communicators: every rank must use them in one order, got rank {ahead} calling {done} on one, then "
            f"{first if ahead == first_rank else call} on another, and rank {behind} calling "
            f"{call if ahead == first_rank else first} before the other; use one order on all ranks"
        )
