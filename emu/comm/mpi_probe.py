"""Try on real ranks what emu uses of MPI: threads, large messages, one-sided calls, shared windows.

`run_probe` starts two ranks and returns what each trial said. A trial that fails or hangs costs the later
ones only, since rank 0 reports each as soon as it is done.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from emu.comm.mpi_start import Mpi, mpirun_environment, mpirun_line

TRIALS = ("threads", "large message", "one-sided", "shared window")
_RANK = "from emu.comm.mpi_probe import rank_main; rank_main()"
_LIMIT_S = 40.0


def run_probe(mpi: Mpi, environment: Mapping[str, str], python: str = sys.executable) -> dict[str, str]:
    """Start two ranks and return, by trial, "works" or what went wrong ("threads": the thread level)."""
    line = mpirun_line(mpi, 2, [python, "-c", _RANK])
    settings = mpirun_environment(mpi, environment)
    job = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings)
    try:
        out, err = job.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        job.terminate()
        out, err = job.communicate()
        err = f"no answer within {_LIMIT_S:.0f} s"
    said = dict(_answers(out))
    reason = next((line.strip() for line in err.splitlines() if line.strip(" -")), "no answer")
    return {trial: said.get(trial, f"failed: {reason}") for trial in TRIALS}


def rank_main() -> None:
    """Run every trial on this rank; rank 0 writes one JSON line a trial to its standard output."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    for trial in TRIALS:
        outcome = _attempt(_TRIALS[trial], MPI, comm)
        outcomes = comm.allgather(outcome)
        worst = next((one for one in outcomes if one.startswith("failed")), outcomes[0])
        if comm.rank == 0:
            sys.stdout.write(json.dumps({"trial": trial, "outcome": worst}) + "\n")
            sys.stdout.flush()


def _answers(out: str) -> Iterator[tuple[str, str]]:
    for line in out.splitlines():
        if line.startswith('{"trial"'):
            answer = json.loads(line)
            yield answer["trial"], answer["outcome"]


def _attempt(trial: Callable[[Any, Any], str], mpi: Any, comm: Any) -> str:
    try:
        return trial(mpi, comm)
    except Exception as error:  # whatever the MPI library raises is the answer
        return f"failed: {error}"


def _threads(mpi: Any, comm: Any) -> str:
    levels = ("single", "funneled", "serialized", "multiple")
    constants = (mpi.THREAD_SINGLE, mpi.THREAD_FUNNELED, mpi.THREAD_SERIALIZED, mpi.THREAD_MULTIPLE)
    return levels[constants.index(mpi.Query_thread())]


def _large_message(mpi: Any, comm: Any) -> str:
    """Swap 4 MiB, above every MPI's limit for copying through shared memory in one piece."""
    mine, theirs = bytearray([comm.rank]) * (4 << 20), bytearray(4 << 20)
    other = 1 - comm.rank
    comm.Sendrecv(mine, other, 0, theirs, other, 0)
    return "works" if theirs == bytearray([other]) * len(theirs) else "failed: wrong bytes arrived"


def _one_sided(mpi: Any, comm: Any) -> str:
    """Put a value to the other rank, and let both count up one counter on rank 0."""
    window = mpi.Win.Allocate(16, 8, comm=comm)
    memory = memoryview(window.tomemory()).cast("q")
    memory[0] = memory[1] = 0
    window.Fence()
    window.Put(memoryview(bytearray([comm.rank + 1] + [0] * 7)), 1 - comm.rank, 0)
    window.Fence()
    put = memory[0]
    one, before = bytearray([1] + [0] * 7), bytearray(8)
    window.Lock_all()
    window.Fetch_and_op([one, mpi.INT64_T], [before, mpi.INT64_T], 0, 1)
    window.Flush(0)
    window.Unlock_all()
    comm.Barrier()
    window.Lock(0)
    window.Get([before, mpi.INT64_T], 0, 1)
    window.Unlock(0)
    window.Free()
    works = put == 2 - comm.rank and before[0] == comm.size
    return "works" if works else f"failed: put gave {put}, counter {before[0]}"


def _shared_window(mpi: Any, comm: Any) -> str:
    """Write on one rank and read on the other, in memory that both map."""
    window = mpi.Win.Allocate_shared(8 if comm.rank == 0 else 0, 8, comm=comm)
    memory, _ = window.Shared_query(0)
    window.Lock_all()
    if comm.rank == 0:
        memory[0:1] = b"\x2a"
    window.Sync()
    comm.Barrier()
    window.Sync()
    seen = bytes(memory[0:1])[0]
    window.Unlock_all()
    window.Free()
    return "works" if seen == 42 else f"failed: read {seen}, 42 was written"


_TRIALS: dict[str, Callable[[Any, Any], str]] = {
    "threads": _threads,
    "large message": _large_message,
    "one-sided": _one_sided,
    "shared window": _shared_window,
}
