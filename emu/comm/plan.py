"""Plans: what a collective call does on one rank, found once, repeated without running its function again.

What a call does depends only on the algorithm, the group's size, the rank and the arguments' sizes (the rule that
templates rest on). So its function runs once on a `Sketch`, which has a communicator's methods and moves nothing: it
notes each step, with every buffer as a part of an argument or of scratch. A wire may then carry the steps out as it
knows best, such as adding what a neighbour sends straight from where it lies, without a copy (`taken_late`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emu.errors import ConfigError


@dataclass(frozen=True)
class Part:
    """`size` elements of a base: argument `base`, or scratch from the number of arguments on."""

    base: int
    start: int  # bytes
    size: int
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """The part's length."""
        return self.size * self.dtype.itemsize

    def meets(self, other: Part) -> bool:
        """Tell whether two parts have a byte in common."""
        return (
            self.base == other.base
            and self.start < other.start + other.nbytes
            and other.start < self.start + self.nbytes
        )


@dataclass(frozen=True)
class Post:
    """Start to send or receive; request `number`."""

    number: int
    sends: bool
    part: Part
    peer: int
    tag: int


@dataclass(frozen=True)
class Wait:
    """Wait for requests."""

    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Exchange:
    """Send and receive at once; requests `number` (the receive) and `number` + 1."""

    number: int
    out: Part
    to: int
    into: Part
    source: int
    tag: int


@dataclass(frozen=True)
class Local:
    """Work on this rank: writes `into`, reads it too unless it is a copy, and reads `other`."""

    kind: str  # reduce, scale, divide or copy
    into: Part
    other: Part | None = None
    op: str = ""
    swapped: bool = False
    factor: float = 0.0

    def reads(self, part: Part) -> bool:
        """Tell whether the step reads bytes of `part`."""
        return (self.other is not None and self.other.meets(part)) or (self.kind != "copy" and self.into.meets(part))


Step = Post | Wait | Exchange | Local


@dataclass(frozen=True)
class Plan:
    """Steps of one call on one rank; `scratch` tells the bytes of each scratch buffer, `requests` how many it makes."""

    arguments: int
    scratch: tuple[int, ...]
    steps: tuple[Step, ...]
    requests: int


class _Traced(np.ndarray):
    """An array with an address and no values: an algorithm may cut it, and must leave the rest to its communicator."""

    def __setitem__(self, index: Any, value: Any) -> None:
        raise _NotPlannable

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        raise _NotPlannable

    def __array_function__(self, *args: Any, **kwargs: Any) -> Any:
        raise _NotPlannable


class _NotPlannable(Exception):
    """The function does what a plan can't hold."""


class Sketch:
    """A communicator's face, for finding a plan."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank, self.size, self.group = comm.rank, comm.size, comm.group
        self.cluster, self.profile = comm.cluster, comm.profile
        self.dry = False
        self.steps: list[Step] = []
        self.bases: list[tuple[int, int]] = []  # address and bytes
        self._kept: list[Any] = []  # so that no address is given twice
        self.requests = 0

    def base(self, size: int, dtype: Any) -> Any:
        """Return an array that stands for an argument or for scratch."""
        made = np.empty(max(1, size), dtype)[:size].view(_Traced)
        self._kept.append(made)
        self.bases.append((made.ctypes.data, made.nbytes))
        return made

    def isend(self, x: Any, to: int, tag: int = 0) -> int:
        """Note the start of a send."""
        return self._post(True, x, to, tag)

    def irecv(self, x: Any, source: int, tag: int = 0) -> int:
        """Note the start of a receive."""
        return self._post(False, x, source, tag)

    def _post(self, sends: bool, x: Any, peer: int, tag: int) -> int:
        if not 0 <= peer < self.size:
            raise _NotPlannable
        self.steps.append(Post(self.requests, sends, self.part(x), peer, tag))
        self.requests += 1
        return self.requests - 1

    def waitall(self, requests: Sequence[int]) -> None:
        """Note a wait."""
        if requests:
            self.steps.append(Wait(tuple(requests)))

    def sendrecv(self, x: Any, to: int, into: Any, source: int, tag: int = 0) -> None:
        """Note an exchange."""
        if not (0 <= to < self.size and 0 <= source < self.size):
            raise _NotPlannable
        self.steps.append(Exchange(self.requests, self.part(x), to, self.part(into), source, tag))
        self.requests += 2

    def reduce(self, op: str, into: Any, received: Any, received_first: bool = False) -> None:
        """Note a local sum."""
        self._local(Local("reduce", self.part(into), self.part(received), op, received_first))

    def scale(self, x: Any, factor: float) -> None:
        """Note a product."""
        self._local(Local("scale", self.part(x), factor=factor))

    def divide(self, x: Any, by: int) -> None:
        """Note a division."""
        self._local(Local("divide", self.part(x), factor=by))

    def copy(self, into: Any, x: Any) -> None:
        """Note a copy."""
        self._local(Local("copy", self.part(into), self.part(x)))

    def _local(self, step: Local) -> None:
        if step.into.nbytes:
            self.steps.append(step)

    def empty(self, size: int, dtype: Any, like: Any = None) -> Any:
        """Return scratch."""
        return self.base(int(size), dtype)

    def empty_like(self, x: Any) -> Any:
        """Return scratch of x's size and dtype."""
        return self.base(x.size, x.dtype)

    def part(self, x: Any) -> Part:
        """Tell which part of which base an array is."""
        if not isinstance(x, _Traced) or not x.flags.c_contiguous:
            raise _NotPlannable
        if x.size == 0:
            return Part(0, 0, 0, x.dtype)
        at = x.ctypes.data
        for number, (start, nbytes) in enumerate(self.bases):
            if start <= at < start + nbytes:
                return Part(number, at - start, x.size, x.dtype)
        raise _NotPlannable


def sketch(comm: Any, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Plan | None:
    """Find the plan of function(comm, *args, **kwargs); None if it is not one that a plan can hold.

    Raise what the function raises for arguments that are wrong.
    """
    on = Sketch(comm)
    args = [on.base(value.size, value.dtype) if isinstance(value, np.ndarray) else value for value in args]
    kwargs = {
        name: on.base(value.size, value.dtype) if isinstance(value, np.ndarray) else value
        for name, value in kwargs.items()
    }
    arguments = len(on.bases)
    try:
        function(on, *args, **kwargs)
    except ConfigError:
        raise
    except (_NotPlannable, AttributeError):  # values were read, or more of a communicator is needed
        return None
    scratch = tuple(nbytes for _, nbytes in on.bases[arguments:])
    return Plan(arguments, scratch, tuple(on.steps), on.requests)


def waits_by_kind(plan: Plan, keep: Callable[[Exchange], bool]) -> Plan:
    """Return the plan with waits for receives before those for sends, and exchanges, but those to keep, as these."""
    steps: list[Step] = []
    sends: set[int] = set()
    for step in plan.steps:
        if isinstance(step, Exchange) and not keep(step):
            n = step.number
            steps += (Post(n, False, step.into, step.source, step.tag), Post(n + 1, True, step.out, step.to, step.tag))
            sends.add(n + 1)
            steps += (Wait((n,)), Wait((n + 1,)))
        elif isinstance(step, Wait):
            split = [tuple(n for n in step.numbers if (n in sends) == kind) for kind in (False, True)]
            steps += [Wait(numbers) for numbers in split if numbers]
        else:
            if isinstance(step, Post) and step.sends:
                sends.add(step.number)
            steps.append(step)
    return Plan(plan.arguments, plan.scratch, tuple(steps), plan.requests)


def sends_waited_late(plan: Plan) -> Plan:
    """Return a plan of `waits_by_kind` in which a wait for sends stands behind the local work that follows it.

    The work must not write what is being sent. Others wait for nothing longer by it than for that work.
    """
    steps = list(plan.steps)
    parts = {step.number: step.part for step in steps if isinstance(step, Post) and step.sends}
    for at in range(len(steps) - 1, -1, -1):
        step = steps[at]
        if not isinstance(step, Wait) or not all(n in parts for n in step.numbers):
            continue
        place = at
        while place + 1 < len(steps):
            following = steps[place + 1]
            if not isinstance(following, Local) or any(following.into.meets(parts[n]) for n in step.numbers):
                break
            steps[place] = following
            place += 1
        steps[place] = step
    return Plan(plan.arguments, plan.scratch, tuple(steps), plan.requests)


def taken_late(plan: Plan) -> dict[int, int]:
    """Return the receives that need no buffer: request -> the step that reduces what it brings.

    That step must come before the rank waits again, and be the only one that reads what was received: the sum
    is then made straight from the sender's memory, and the sender goes on when it is made.
    """
    found: dict[int, int] = {}
    posts = {step.number: step for step in plan.steps if isinstance(step, Post) and not step.sends}
    for at, step in enumerate(plan.steps):
        if isinstance(step, Wait):
            for number in step.numbers:
                if number in posts:
                    reduces = reducer(plan, at, posts[number].part)
                    if reduces is not None:
                        found[number] = reduces
    return found


def reducer(plan: Plan, waited: int, part: Part) -> int | None:
    """Return the step after `waited` that alone needs what was received into `part`."""
    for at in range(waited + 1, len(plan.steps)):
        step = plan.steps[at]
        if not isinstance(step, Local):
            return None
        if step.into.meets(part) or step.reads(part):
            if step.kind != "reduce" or step.other is None:
                return None
            if step.into == part and not step.other.meets(part):
                return at
            dead = part.base >= plan.arguments and not _read_after(plan, at, part)
            return at if step.other == part and not step.into.meets(part) and dead else None
    return None


def _read_after(plan: Plan, at: int, part: Part) -> bool:
    """Tell whether a step after `at` reads of `part` before a receive or a copy has written all of it."""
    for step in plan.steps[at + 1 :]:
        if isinstance(step, Local):
            if step.reads(part):
                return True
            if step.kind == "copy" and _holds(step.into, part):
                return False
        elif isinstance(step, Post):
            if step.sends and step.part.meets(part):
                return True
            if not step.sends and _holds(step.part, part):
                return False
        elif isinstance(step, Exchange):
            if step.out.meets(part):
                return True
            if _holds(step.into, part):
                return False
    return False


def _holds(whole: Part, part: Part) -> bool:
    return (
        whole.base == part.base
        and whole.start <= part.start
        and part.start + part.nbytes <= whole.start + whole.nbytes
    )
