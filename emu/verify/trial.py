"""One trial: a submission, as one collective, on p ranks and n elements, with inputs of our choice."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from emu.comm.communicator import Comm
from emu.verify.contract import Contract, contract_of
from emu.verify.watch import UNSET, Watched, watch

SEED = 20


@dataclass(frozen=True)
class Submission:
    """A function to be checked as `collective`; `options` are further arguments for it."""

    collective: str
    function: Callable[..., Any]
    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def contract(self) -> Contract:
        """What it owes."""
        return contract_of(self.collective)

    def takes(self, argument: str) -> bool:
        """Tell whether the function has such a parameter."""
        parameters = inspect.signature(self.function).parameters
        return argument in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


    def needs_op(self) -> bool:
        """Tell whether the function must be given the reduction even where it is the sum."""
        op = inspect.signature(self.function).parameters.get("op")
        return self.contract.reduces and op is not None and op.default is op.empty


@dataclass(frozen=True)
class Case:
    """p ranks, n elements (a chunk's, where the collective has chunks), the root, the reduction, the dtype."""

    p: int
    n: int
    root: int = 0
    op: str = "sum"
    dtype: str = "float64"

    def __str__(self) -> str:
        terms = [f"p={self.p}", f"n={self.n}"]
        terms += [f"root={self.root}"] if self.root else []
        terms += [f"op={self.op}"] if self.op != "sum" else []
        terms += [self.dtype] if self.dtype != Case.dtype else []
        return ", ".join(terms)


def run_trial(submission: Submission, case: Case, inputs: Sequence[np.ndarray]) -> Watched:
    """Run the submission on these inputs, watched."""
    contract, function = submission.contract, submission.function
    options = dict(submission.options)
    if "nodes" not in options and submission.takes("nodes") and submission.function.__module__.startswith("emu."):
        options["nodes"] = tuple(r * 2 // case.p for r in range(case.p))
    plain = getattr(function, "collective", None)
    function = plain.function if plain is not None else function  # its own messages, not one call
    if contract.rooted and not submission.takes("root"):
        function = _without_root(function)

    if submission.needs_op():
        function = partial(function, op=case.op)
    returned: list[Any] = [None] * case.p

    def program(comm: Comm, mark: Callable[[np.ndarray], None]) -> np.ndarray:
        x = inputs[comm.rank].copy()
        out = np.full(contract.output_size(case.p, case.n), UNSET).astype(x.dtype)
        result = x if contract.gives == "in place" else out
        mark(result)
        op = "sum" if submission.needs_op() else case.op
        returned[comm.rank] = contract.call(function, comm, x, out, case.root, op, options)
        return result

    seen = watch(program, case.p)
    seen.returned = returned
    return seen


def _without_root(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(comm: Comm, *buffers: Any, root: int = 0, **terms: Any) -> None:
        function(comm, *buffers, **terms)

    return call


def distinct_inputs(submission: Submission, case: Case) -> list[np.ndarray]:
    """Make inputs of integers that differ by rank and element, small enough for exact sums."""
    size = submission.contract.input_size(case.p, case.n)
    high = {"sum": 1 << 12, "avg": 1 << 12, "prod": 3}.get(case.op, 1 << 12)
    return [
        np.random.default_rng([SEED, case.p, case.n, r]).integers(1, high, size).astype(case.dtype)
        for r in range(case.p)
    ]


def impulse_inputs(submission: Submission, case: Case, rank: int | None, places: bool = False) -> list[np.ndarray]:
    """Make inputs that are zero but for one rank's: ones there, or each element's place, counting from 1."""
    size = submission.contract.input_size(case.p, case.n)
    inputs = [np.zeros(size, case.dtype) for _ in range(case.p)]
    if rank is not None:
        inputs[rank][:] = np.arange(1, size + 1) if places else 1
    return inputs


def expected_results(submission: Submission, case: Case, inputs: Sequence[np.ndarray]) -> list[np.ndarray | None]:
    """Return what each rank must hold, None where that is undefined."""
    return [submission.contract.expected(inputs, r, case.root, case.op) for r in range(case.p)]


__all__ = [
    "Case",
    "Submission",
    "distinct_inputs",
    "expected_results",
    "impulse_inputs",
    "run_trial",
]
