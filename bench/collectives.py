"""How fast are the collectives on real bytes, beside the MPI library's own call in the same run?

One job for each number of ranks. All calls work in place on the same buffer and take turns, round by round, since a
machine changes its state within minutes. A call's time is that of its slowest rank, from a barrier on; told is the
median.

  memory           whose the buffer is: "gpu" as emulated GPUs get their arrays, in memory that all ranks of the host
                   see; "numpy" an array of numpy's own, as programs written for mpi4py bring it
  wall_s           emu's algorithm, recording and checks off
  recorded_wall_s  the same as programs run it: recorded, with the ranks' calls compared
  native_wall_s    MPI.Allreduce of the same buffers; its large temporaries are kept by the allocator, or most of
                   its time would be page faults
  ratio            wall_s / native_wall_s
  limit_wall_s     the least memory work that any algorithm must do on this machine, at the same time on all ranks:
                   p-1 sums of a chunk and p-1 copies of a chunk, all from local memory
  of_limit         limit_wall_s / wall_s: 1 would be the speed of memory
  gloo_ratio       wall_s over torch.distributed with gloo, where torch is installed
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from bench.runner import Option, Result, run
from emu.errors import ConfigError, EmuError

MEMORIES = ("gpu", "numpy")
RATIO_LIMITS = {4096: 3.0, 1_000_000: 1.0, 25_000_000: 1.0, 100_000_000: 1.0}
GLOO_LIMITS = {25_000_000: 0.3}
KEPT_MEMORY = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=2000000000:"
    "glibc.malloc.trim_threshold=4000000000:glibc.malloc.top_pad=268435456"
)


def measure_ranks(sizes: list[int], algorithms: list[str], memories: list[str], rounds: int, gloo_file: str) -> None:
    """On each rank of a job: measure all sizes; rank 0 writes one JSON line."""
    from mpi4py import MPI

    from emu.comm.communicator import Comm
    from emu.comm.mpi_world import MpiWorld
    from emu.comm.recording import Log

    world = MpiWorld()
    comm = Comm(world.wire, Log(world.rank), range(world.size))
    gloo = _gloo(world.rank, world.size, gloo_file)
    rows = []
    for nbytes, memory in itertools.product(sizes, memories):
        x = comm.empty(nbytes // 4, "float32") if memory == "gpu" else np.empty(nbytes // 4, "float32")
        x[:] = 0.0
        calls: dict[str, Callable[[], Any]] = {"native": partial(MPI.COMM_WORLD.Allreduce, MPI.IN_PLACE, x)}
        calls["limit"] = _least_work(x, world.size)
        for name in algorithms:
            calls[name] = _bare(comm, name, x)
            calls[f"recorded {name}"] = _recorded(comm, name, x)
        if gloo is not None:
            calls["gloo"] = partial(gloo, x)
        repeats = max(1, min(200, 2_000_000 // nbytes))
        wall_s = _take_turns(calls, rounds, repeats, MPI.COMM_WORLD)
        rows.append({"bytes": nbytes, "memory": memory, "wall_s": wall_s})
    if world.rank == 0:
        sys.stdout.write(json.dumps(rows) + "\n")


def _take_turns(calls: dict[str, Callable[[], Any]], rounds: int, repeats: int, comm: Any) -> dict[str, float]:
    """Return the median over rounds of each call's seconds on its slowest rank."""
    from mpi4py import MPI

    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-1, rounds):
        for name, call in calls.items():
            comm.Barrier()
            started = time.perf_counter()
            for _ in range(repeats):
                call()
            slowest = comm.allreduce((time.perf_counter() - started) / repeats, op=MPI.MAX)
            if turn >= 0:
                samples[name].append(slowest)
    return {name: statistics.median(seconds) for name, seconds in samples.items()}


def _bare(comm: Any, algorithm: str, x: np.ndarray) -> Callable[[], None]:
    """Return a call that is neither recorded nor checked."""
    from emu.collectives import TABLE

    function, log = TABLE["all_reduce"][algorithm].function, comm.log

    def call() -> None:
        comm.checks, log.muted = False, True
        function(comm, x)
        comm.checks, log.muted = True, False

    return call


def _recorded(comm: Any, algorithm: str, x: np.ndarray) -> Callable[[], None]:
    from emu.collectives import TABLE

    function = TABLE["all_reduce"][algorithm].function
    return lambda: function(comm, x)


def _least_work(x: np.ndarray, p: int) -> Callable[[], None]:
    other = np.zeros_like(x) + 0.0
    n = len(x) // p
    chunks = [slice(q * n, (q + 1) * n) for q in range(p)]

    def work() -> None:
        for chunk in chunks[1:]:
            np.add(x[chunks[0]], other[chunk], out=x[chunks[0]])
        for chunk in chunks[1:]:
            x[chunk] = other[chunk]

    return work


def _gloo(rank: int, size: int, path: str) -> Callable[[np.ndarray], Any] | None:
    try:
        import torch
        import torch.distributed as distributed
    except ImportError:
        return None
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    return lambda x: distributed.all_reduce(torch.from_numpy(x))


def job(p: int, sizes: list[int], algorithms: list[str], memories: list[str], rounds: int) -> list[Result]:
    """Start p ranks that measure; return a row for each size, memory and algorithm."""
    from emu.comm.mpi_start import find_mpi, mpirun_environment, mpirun_line

    mpi = find_mpi(program="bench.collectives")
    with tempfile.TemporaryDirectory() as folder:
        terms = (sizes, algorithms, memories, rounds, os.path.join(folder, "gloo"))
        code = f"from bench.collectives import measure_ranks; measure_ranks{terms!r}"
        environment = {**os.environ, "GLIBC_TUNABLES": KEPT_MEMORY, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        told = subprocess.run(
            mpirun_line(mpi, p, [sys.executable, "-c", code]),
            capture_output=True, text=True, timeout=900, env=mpirun_environment(mpi, environment),
        )  # fmt: skip
    if told.returncode:
        raise EmuError(f"bench.collectives: {p} ranks must end well, got exit status {told.returncode}; they told:\n"
                       f"{told.stderr[-4000:]}")  # fmt: skip
    return [
        _row(p, algorithm, each)
        for each in json.loads(told.stdout.splitlines()[-1])
        for algorithm in algorithms
    ]


def _row(p: int, algorithm: str, measured: Result) -> Result:
    wall_s = measured["wall_s"]
    mine, gloo = wall_s[algorithm], wall_s.get("gloo")
    return {
        "collective": "all_reduce",
        "algorithm": algorithm,
        "p": p,
        "bytes": measured["bytes"],
        "memory": measured["memory"],
        "wall_s": mine,
        "recorded_wall_s": wall_s[f"recorded {algorithm}"],
        "native_wall_s": wall_s["native"],
        "ratio": mine / wall_s["native"],
        "limit_wall_s": wall_s["limit"],
        "of_limit": wall_s["limit"] / mine,
        "gloo_ratio": mine / gloo if gloo else None,
    }


def measure_collectives(ranks: str, sizes: str, algorithms: str, memory: str, rounds: int) -> Result:
    """Measure every number of ranks; check the best algorithm of each size and memory against its bounds."""
    counts, lengths = ([int(word) for word in words.split(",")] for words in (ranks, sizes))
    memories = memory.split(",")
    unknown = [each for each in memories if each not in MEMORIES]
    if unknown:
        raise ConfigError(f"bench.collectives memory: {' or '.join(MEMORIES)} is expected, got {unknown[0]!r}")
    rows = [row for p in counts for row in job(p, lengths, algorithms.split(","), memories, rounds)]
    checks: dict[str, bool] = {}
    for case in itertools.product(counts, lengths, memories):
        alike = [row for row in rows if (row["p"], row["bytes"], row["memory"]) == case]
        checks |= _checks(min(alike, key=lambda row: row["wall_s"]))
    return {"rows": rows, "checks": checks}


def _checks(best: Result) -> dict[str, bool]:
    """Return what the best row of a size must hold, and whether it does."""
    checks, nbytes = {}, best["bytes"]
    case = f"p={best['p']}, {nbytes} bytes of {best['memory']} memory"
    if nbytes in RATIO_LIMITS:
        most = RATIO_LIMITS[nbytes]
        told = f"{case}: ratio at most {most} ({best['algorithm']}: {best['ratio']:.2f})"
        checks[told] = best["ratio"] <= most
    if nbytes in GLOO_LIMITS and best["gloo_ratio"] is not None:
        most = GLOO_LIMITS[nbytes]
        checks[f"{case}: gloo ratio at most {most} ({best['gloo_ratio']:.2f})"] = best["gloo_ratio"] <= most
    return checks


if __name__ == "__main__":
    run(
        "How fast are the collectives beside the MPI library's own?",
        measure_collectives,
        ranks=Option("2,4,8", "numbers of ranks"),
        sizes=Option("4096,1000000,25000000,100000000", "bytes of a buffer"),
        algorithms=Option("ring,rabenseifner,recursive_doubling,direct", "algorithms, the best of which counts"),
        memory=Option("gpu", f"whose memory the buffers are, of {', '.join(MEMORIES)}"),
        rounds=Option(7, "rounds of all calls"),
    )
