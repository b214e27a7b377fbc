"""How long does a real training step take beside PyTorch's DDP?

A GPT of about 10 M parameters on 2 ranks, each a process with one thread: emu over MPI, PyTorch over gloo, on the same
shapes and machine. Both jobs live through the whole run and take turns of a few steps, so that a change of the host's
load meets both. `ratio` is the median over the rounds of emu's step over PyTorch's in the same round. torch is in the
extra `bench`; without it emu's figure stands alone.

    python -m bench.training --json
"""

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from bench.runner import Option, Result, run
from bench.turns import Job

SHAPE = {"vocabulary": 128, "length": 64, "depth": 5, "width": 384, "heads": 6}
"""8.9 M parameters; the embedding is tied to the head."""
RANKS = 2
WARM = 1  # steps at the beginning of a turn that do not count: the other job has had the caches


class Asked(NamedTuple):
    """What both programs are asked for: steps a turn, sequences a rank, PyTorch's fused Adam or its default."""

    steps: int
    batch: int
    fused: int


def measure_training(rounds: int, steps: int, batch: int, fused: int) -> Result:
    """Let both jobs take `rounds` turns each; return the medians of their steps and the ratio."""
    asked = Asked(WARM + steps, batch, fused)
    with tempfile.TemporaryDirectory() as folder:
        jobs = {"emu": Job(Path(folder) / "emu", RANKS, *_mpi(asked))}
        if find_spec("torch") is not None:
            jobs["torch"] = Job(Path(folder) / "torch", RANKS, *_torch(asked))
        steps_of: dict[str, list[float]] = {name: [] for name in jobs}
        for turn in range(-1, rounds):
            for name, job in jobs.items():
                told = median(job.turn()[WARM:])
                if turn >= 0:
                    steps_of[name].append(told)
        for job in jobs.values():
            job.end()
    return {"batch_per_rank": batch, "ranks": RANKS, "step_wall_s": median(steps_of["emu"])} | _beside(steps_of)


def _beside(steps_of: dict[str, list[float]]) -> Result:
    if "torch" not in steps_of:
        return {"torch": "not installed; pip install 'emu[bench]'"}
    ratios = [ours / theirs for ours, theirs in zip(steps_of["emu"], steps_of["torch"], strict=True)]
    low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "torch_step_wall_s": median(steps_of["torch"]), "ratio": middle, "ratio_low": low, "ratio_high": high,
        "explained": EXPLAINED,
    }  # fmt: skip


EXPLAINED = (
    "quarters of the rounds lie below ratio_low and above ratio_high; "
)


def _mpi(asked: Asked) -> tuple[list[str], dict[str, str]]:
    from emu.comm.mpi_start import find_mpi, mpirun_environment, mpirun_line

    mpi = find_mpi()
    line = mpirun_line(mpi, RANKS, [sys.executable, "-m", "bench.training_emu", *map(str, asked)])
    return line, mpirun_environment(mpi, _environment())


def _torch(asked: Asked) -> tuple[list[str], dict[str, str]]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    return [*start, "-m", "bench.training_torch", *map(str, asked)], _environment()


def _environment() -> dict[str, str]:
    """Return the environment of a rank with one thread, from which `bench` can be imported."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    here = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    return dict(os.environ) | threads | {"PYTHONPATH": path}


if __name__ == "__main__":
    run(
        "How long does a real training step take beside PyTorch's DDP?",
        measure_training,
        rounds=Option(12, "turns of each job that count, after one that does not"),
        steps=Option(3, "steps of a turn that count, after one that does not"),
        batch=Option(8, "sequences a rank"),
        fused=Option(0, "1: PyTorch's fused Adam, 0: its default"),
    )
