"""How long a submission takes on a cluster, beside the best algorithm of the table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emu.cluster import Cluster
from emu.collectives.network import reduces_in_switch
from emu.collectives.table import TABLE
from emu.comm import run_dry, run_local
from emu.comm.communicator import Comm
from emu.engine import resolve
from emu.trace import Trace
from emu.verify.contract import contract_of
from emu.verify.faced import faced
from emu.verify.trial import Submission


@dataclass(frozen=True)
class Timed:
    """Emulated time of a submission of n bytes on p ranks, and of the fastest known algorithm."""

    p: int
    nbytes: int
    time_s: float
    best: str
    best_time_s: float


def record(submission: Submission, cluster: Cluster, p: int, nbytes: int) -> Trace:
    """Run the submission once on p ranks of the cluster and `nbytes` in all, as float32; return its trace."""
    contract, n = submission.contract, elements(submission.collective, p, nbytes)

    def main(comm: Comm) -> None:
        comm = faced(comm)
        comm.cluster = cluster
        x = np.ones(contract.input_size(p, n), "float32")
        out = np.zeros(contract.output_size(p, n), "float32")
        contract.call(submission.function, comm, x, out, 0, "sum", submission.options)

    return run_local(main, p)[1]


def time_beside_best(
    collective: str, trace: Trace, cluster: Cluster, nbytes: int, profile: str = "ideal"
) -> Timed:
    """Time a recorded call on the cluster, and every algorithm of the table at the same size."""
    p = trace.world_size
    n, contract = elements(collective, p, nbytes), contract_of(collective)
    known = {}
    for name in TABLE[collective]:
        if name != "in_switch" or reduces_in_switch(cluster, range(p)):
            known[name] = known_time_s(collective, name, cluster, p, n, profile)
    best = min(known, key=lambda name: known[name])
    return Timed(p, contract.total_size(p, n) * 4, _time_s(trace, cluster, profile), best, known[best])


def elements(collective: str, p: int, nbytes: int) -> int:
    """Return how many float32 elements a chunk has for `nbytes` in all."""
    contract = contract_of(collective)
    chunks = p if contract.total_size(p, 1) == p else 1
    return nbytes // 4 // chunks if contract.takes != "nothing" else 0


def known_time_s(collective: str, algorithm: str, cluster: Cluster, p: int, n: int, profile: str) -> float:
    """Return the emulated time of an algorithm of the table, run without bytes; n elements a chunk."""
    contract, function = contract_of(collective), TABLE[collective][algorithm].function

    def main(comm: Comm) -> None:
        comm.cluster = cluster
        x = comm.empty(contract.input_size(p, n), "float32")
        out = comm.empty(contract.output_size(p, n), "float32")
        contract.call(function, comm, x, out, 0, "sum", {})

    return _time_s(run_dry(main, p)[1], cluster, profile)


def _time_s(trace: Trace, cluster: Cluster, profile: str) -> float:
    return float(resolve(trace, cluster, profile=profile, detail="totals").rank_end_s.max())
