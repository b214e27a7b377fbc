"""The check of a submission: all ranks and lengths asked for, faults explained, the cost beside the bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from emu.errors import MismatchError
from emu.verify.bounds import bounds_of
from emu.verify.contract import CONTRACTS
from emu.verify.explain import changed_in_flight, explain, explain_barrier, explain_deadlock
from emu.verify.traffic import sent_by_rank
from emu.verify.trial import Case, Submission, distinct_inputs, expected_results, run_trial
from emu.verify.watch import Watched

PRIMES = (2, 7, 31, 101)
OPS = ("prod", "max", "min", "avg")


@dataclass(frozen=True)
class Row:
    """What a correct run on p ranks used: beside it the least that any algorithm needs."""

    p: int
    n: int
    messages: int
    steps: int
    least_steps: int
    bytes_busiest_rank: int
    least_bytes: float


@dataclass(frozen=True)
class Fault:
    """A case that failed and why."""

    case: Case
    why: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"case": asdict(self.case), "why": list(self.why)}


def cases_for(submission: Submission, p: int, lengths: Sequence[int] | None = None) -> Iterator[Case]:
    """List the cases of p ranks: lengths around p and primes, every reduction and two roots where they apply."""
    contract = submission.contract
    if contract.takes == "nothing":
        yield Case(p, 0)
        return
    near = (0, 1, p - 1, p, p + 1, 2 * p, *PRIMES) if contract.gives == "in place" else (0, 1, *PRIMES[:2], p + 1)
    for n in sorted(set(lengths if lengths is not None else near)):
        yield Case(p, n)
    n = (lengths or (p + 1,))[-1]
    yield Case(p, n, dtype="float32")  # what allocates a dtype of its own choice fails here
    if contract.rooted and submission.takes("root") and p > 1:
        yield Case(p, n, root=p - 1)
    if contract.reduces and submission.takes("op"):
        for op in OPS:
            yield Case(p, n, op=op)


def check_case(submission: Submission, case: Case) -> tuple[Fault | None, Watched]:
    """Run one case; return what is wrong with it, and what was seen."""
    inputs = distinct_inputs(submission, case)
    seen = run_trial(submission, case, inputs)
    if seen.waiting:
        return Fault(case, (explain_deadlock(seen),)), seen
    if seen.error:
        return Fault(case, (seen.error,)), seen
    why = changed_in_flight(seen.deliveries)
    wanted = expected_results(submission, case, inputs)
    if not why and any(_differ(held, expected) for held, expected in zip(seen.results, wanted, strict=True)):
        why = _reasons(submission, case, seen, wanted)
    if not why and submission.collective == "barrier":
        why = explain_barrier(seen)
    why = why or seen.left_over[:4]
    return (Fault(case, tuple(why)) if why else None), seen


def check(
    submission: Submission,
    ranks: Sequence[int],
    lengths: Sequence[int] | None = None,
    begin: Callable[[Case], None] = lambda case: None,
) -> tuple[list[Row], list[Fault]]:
    """Check all cases; of each number of ranks at most one fault is told, that of the shortest length.

    `begin(case)` is called before each case, so that whoever watches knows which one does not end.
    """
    rows, faults = [], []
    for p in ranks:
        row = None
        for case in cases_for(submission, p, lengths):
            begin(case)
            fault, seen = check_case(submission, case)
            if fault is not None:
                faults.append(_clearest(submission, fault))
                row = None
                break
            if case.op == "sum" and case.root == 0 and case.dtype == Case.dtype:
                row = _row(submission, case, seen)
        if row is not None:
            rows.append(row)
    return rows, faults


def _clearest(submission: Submission, fault: Fault) -> Fault:
    """Prefer one element a rank, where that fails too: its faults show which rank's turn went wrong."""
    p = fault.case.p
    if fault.case.n < p and submission.contract.gives == "in place":
        other, _ = check_case(submission, replace(fault.case, n=p))
        return other or fault
    return fault


def _row(submission: Submission, case: Case, seen: Watched) -> Row:
    assert seen.trace is not None
    sent = sent_by_rank(seen.trace)
    got = [0] * case.p
    for delivery in seen.deliveries:
        got[delivery.to] += delivery.payload.nbytes
    itemsize = np.dtype(case.dtype).itemsize
    least = bounds_of(
        submission.collective, case.p, CONTRACTS[submission.collective].total_size(case.p, case.n) * itemsize
    )
    busiest = max(max(s.nbytes for s in sent), max(got))
    return Row(case.p, case.n, sum(s.messages for s in sent), seen.steps, least.steps, busiest, least.nbytes)


def _reasons(submission: Submission, case: Case, seen: Watched, wanted: Sequence[np.ndarray | None]) -> list[str]:
    if not any(_differ(_array(got), expected) for got, expected in zip(seen.returned, wanted, strict=True)):
        name = "x" if submission.contract.gives == "in place" else "out"
        return [f"the right result is returned, but {name} is not changed; write it there: {name}[:] = result"]
    try:
        found = explain(submission, case) if case.op == "sum" else []
    except (MismatchError, IndexError, ValueError) as error:
        found = [f"the submission behaves differently on other values: {error}"]
    if found:
        return found
    for rank, (held, expected) in enumerate(zip(seen.results, wanted, strict=True)):
        if not _differ(held, expected):
            continue
        assert held is not None and expected is not None
        i = int(np.flatnonzero(held != expected)[0])
        return [f"rank {rank}, element {i}: {expected[i]:g} is expected, got {held[i]:g}"]
    return []


def _array(value: object) -> np.ndarray | None:
    return value if isinstance(value, np.ndarray) else None


def _differ(held: np.ndarray | None, expected: np.ndarray | None) -> bool:
    return expected is not None and (held is None or not np.array_equal(held, expected))
