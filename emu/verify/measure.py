"""Measuring a collective at one size: its emulated time on a cluster, its time on this host, its wrong elements."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emu.cluster import Cluster
from emu.collectives import find
from emu.comm import run_dry, run_local
from emu.comm.communicator import Comm
from emu.engine import resolve
from emu.engine.profiles import find_profile
from emu.verify.bandwidth import Measured, Row, bus_factor
from emu.verify.contract import Contract, contract_of

PERIOD = 1009  # of the pattern in the inputs: a prime, so that chunks do not look alike


@dataclass(frozen=True)
class Job:
    """What to measure, whatever the size."""

    collective: str
    algorithm: str
    cluster: Cluster
    p: int
    profile: str = "ideal"
    iterations: int = 20
    warm_up: int = 1
    calls: int = 1
    check: bool = True
    dry: bool = False
    average: int = 1  # of ranks' measured times: 0 rank 0's, 1 mean, 2 least, 3 most
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def contract(self) -> Contract:
        """What the collective owes."""
        return contract_of(self.collective)

    @property
    def chunks(self) -> int:
        """Into how many chunks the whole is cut."""
        return self.p if self.p > 1 and self.contract.total_size(self.p, 1) == self.p else 1


class Inputs(Sequence[np.ndarray]):
    """Every rank's input, made when it is looked at: small integers, exact in every dtype and sum."""

    def __init__(self, p: int, size: int, dtype: np.dtype) -> None:
        self.p, self.size, self.dtype = p, size, dtype

    def __len__(self) -> int:
        return self.p

    def __getitem__(self, rank: Any) -> Any:
        if not 0 <= rank < self.p:
            raise IndexError(rank)
        pattern = 1 + (np.arange(PERIOD) * (rank + 3) // 7 + rank) % 2
        return np.resize(pattern.astype(self.dtype), self.size)


@dataclass(frozen=True)
class Measurement:
    """What was measured at one size, out of place and in place: wrong elements and seconds a call of each."""

    calls: tuple[_Call, ...]
    told: tuple[tuple[int | None, float | None], ...]

    def row(self) -> Row:
        """Add the emulated times."""
        first = self.calls[0]
        job, n, contract = first.job, first.n, first.job.contract
        size = n * first.dtype.itemsize * job.chunks
        ways = []
        for call, (wrong, wall_s) in zip(self.calls, self.told, strict=True):
            time_s = call.emulated_s()
            algbw = size / time_s if time_s else 0.0
            ways.append(Measured(time_s, algbw, algbw * bus_factor(job.collective, job.p), wrong, wall_s))
        op, root = first.op if contract.reduces else "none", first.root if contract.rooted else -1
        return Row(size, n, first.dtype.name, op, root, ways[0], ways[1] if len(ways) > 1 else None)


def measure_size(
    job: Job, size_bytes: int, dtype: np.dtype, op: str, root: int, comm: Comm | None = None
) -> Measurement:
    """Measure one size; `comm` is this rank's under MPI, else the ranks run in this process. Collective."""
    n = size_bytes // dtype.itemsize // job.chunks
    placements = (False,) if job.collective == "all_to_all" else (False, True)
    calls = tuple(_Call(job, n, dtype, op, root, in_place) for in_place in placements)
    return Measurement(calls, tuple(_told(job, call, comm) for call in calls))


def _told(job: Job, call: _Call, comm: Comm | None) -> tuple[int | None, float | None]:
    if job.dry:
        return None, None
    return call.on(comm) if comm is not None else run_local(call.on, job.p)[0][0]


@dataclass(frozen=True)
class _Call:
    job: Job
    n: int
    dtype: np.dtype
    op: str
    root: int
    in_place: bool

    def emulated_s(self) -> float:
        """Return the emulated time of one call on the job's cluster, run without bytes."""
        job = self.job

        def main(comm: Comm) -> None:
            comm.cluster, comm.profile = job.cluster, job.profile
            x, out = self.buffers(comm, lambda size: comm.empty(size, self.dtype))
            # A library whose sums are fused with its transfers reads x as it first sends: no copy goes before.
            self.once(comm, out if job.contract.gives == "in place" and find_profile(job.profile).tuned else x, out)

        trace = run_dry(main, job.p)[1]
        return float(resolve(trace, job.cluster, profile=job.profile, detail="totals").rank_end_s.max())

    def on(self, comm: Comm) -> tuple[int | None, float]:
        """Measure on this rank; return the wrong elements of all ranks, and the seconds a call. Collective."""
        job = self.job
        comm.cluster, comm.profile = job.cluster, job.profile
        x, out = self.buffers(comm, lambda size: np.empty(size, self.dtype))
        inputs = Inputs(job.p, job.contract.input_size(job.p, self.n), self.dtype)
        wrong = None
        if job.check:
            x[...] = inputs[comm.rank]
            self.once(comm, x, out)
            wrong = sum(comm.wire.exchange(self.wrong(comm.rank, inputs, x, out)))
        mark = 0.0
        for i in range(-job.warm_up, job.iterations):
            if i == 0:
                comm.wire.exchange(None)
                mark = time.perf_counter()
            for _ in range(job.calls):
                self.once(comm, x, out)
        seconds = comm.wire.exchange((time.perf_counter() - mark) / max(1, job.iterations * job.calls))
        return wrong, [seconds[0], sum(seconds) / len(seconds), min(seconds), max(seconds)][job.average]

    def buffers(self, comm: Comm, empty: Callable[[int], Any]) -> tuple[Any, Any]:
        """Make x and out; in place, the smaller lies in the larger, at this rank's place."""
        p, n, contract = self.job.p, self.n, self.job.contract
        here = slice(comm.rank * n, (comm.rank + 1) * n)
        if contract.gives == "in place":
            x = empty(n)
            return x, x if self.in_place else empty(n)
        if not self.in_place or contract.takes == contract.gives:
            return empty(contract.input_size(p, n)), empty(contract.output_size(p, n))
        if contract.gives == "whole":
            out = empty(p * n)
            return out[here], out
        x = empty(p * n)
        return x, x[here]

    def once(self, comm: Comm, x: Any, out: Any) -> None:
        """Call the collective once; where it works in place, out of place means a copy first."""
        contract, function = self.job.contract, find(self.job.collective, self.job.algorithm)
        if contract.gives == "in place" and out is not x:
            comm.copy(out, x)
            x = out
        contract.call(function, comm, x, out, self.root, self.op, self.job.options)

    def wrong(self, rank: int, inputs: Inputs, x: np.ndarray, out: np.ndarray) -> int:
        """Count the elements that differ from what they must be."""
        if self.n == 0:
            return 0
        expected = self.job.contract.expected(inputs, rank, self.root, self.op)
        held = x if self.job.contract.gives == "in place" and self.in_place else out
        return 0 if expected is None else int((held != expected).sum())
