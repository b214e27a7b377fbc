"""What does recording cost an operation, and a recorded message over a plain one of mpi4py?

`recording_us_per_operation`: rows of a log, written as a training step writes them (kernels, exchanges, spans), the
median of several samples. `ratio_to_mpi4py`: a recorded 4 KB sendrecv of two ranks over `MPI.Comm.Sendrecv` of the
same buffers, sample by sample in turn, in one job that this benchmark starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from statistics import median
from typing import Any

import numpy as np

from bench.runner import Option, compare, measure, run
from emu.comm.recording import Log

MESSAGE_BYTES = 4096
ROWS_A_ROUND = 8


def rows_of_a_round(log: Log) -> None:
    """Record eight operations: a span around two kernels, a copy and an exchange with its wait."""
    log.begin(0)
    log.compute(1, 1, 4096, 1e6)
    log.compute(1, 1, 4096, 1e6)
    log.exchange(1, 4096, 1, 4096, 0, 0)  # three rows
    log.copy(0, 1, 4096)
    log.end()


def recording_us(operations: int) -> float:
    """Return microseconds a recorded operation."""

    def record() -> None:
        log = Log(0)
        for _ in range(operations // ROWS_A_ROUND):
            rows_of_a_round(log)

    return measure(record, repeats=7).median_s / operations * 1e6


def measure_messages(samples: int, calls: int) -> None:
    """On each of two ranks: time plain and recorded exchanges in turn; rank 0 prints the medians."""
    from mpi4py import MPI

    from emu.comm.communicator import Comm
    from emu.comm.mpi_world import MpiWorld

    world = MpiWorld()
    comm = Comm(world.wire, Log(world.rank), range(world.size))
    x, y, other = np.ones(MESSAGE_BYTES, np.uint8), np.empty(MESSAGE_BYTES, np.uint8), 1 - world.rank
    plain = MPI.COMM_WORLD
    timings = compare(
        {
            "mpi4py": lambda: plain.Sendrecv(x, other, 0, y, other, 0),
            "recorded": lambda: comm.sendrecv(x, other, y, other),
        },
        repeats=samples,
        calls=calls,
    )
    if world.rank == 0:
        told = {name: timing.samples_s for name, timing in timings.items()}
        sys.stdout.write(json.dumps(told) + "\n")


def messages(samples: int, calls: int) -> dict[str, Any]:
    """Start two ranks that run `measure_messages`; return the medians and their ratio."""
    from emu.comm.mpi_start import find_mpi, mpirun_environment, mpirun_line

    mpi = find_mpi(program="bench.recording")
    code = f"from bench.recording import measure_messages; measure_messages({samples}, {calls})"
    line = mpirun_line(mpi, 2, [sys.executable, "-c", code])
    told = subprocess.run(
        line, capture_output=True, text=True, timeout=300, env=mpirun_environment(mpi, os.environ), check=True
    )
    found = json.loads(told.stdout.splitlines()[-1])
    ratios = [recorded / plain for recorded, plain in zip(found["recorded"], found["mpi4py"], strict=True)]
    return {
        "mpi": f"{mpi.name} {mpi.version}",
        "mpi4py_us": median(found["mpi4py"]) * 1e6,
        "recorded_us": median(found["recorded"]) * 1e6,
        "ratio_to_mpi4py": median(ratios),
    }


def measure_recording(operations: int, samples: int, calls: int) -> dict[str, Any]:
    """Measure both."""
    return {
        "operations": operations,
        "recording_us_per_operation": recording_us(operations),
        "message_bytes": MESSAGE_BYTES,
        **messages(samples, calls),
    }


if __name__ == "__main__":
    run(
        "What does recording cost?",
        measure_recording,
        operations=Option(100_000, "operations to record"),
        samples=Option(41, "samples of each kind of message, in turn"),
        calls=Option(500, "messages a sample"),
    )
