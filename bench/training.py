"""How long does a real training step take beside PyTorch's DDP?

A GPT of about 10 M parameters on 2 ranks, each a process with one thread: emu over MPI, PyTorch over gloo, on the same
shapes and machine. Both jobs live through the whole run and take turns of a few steps, so that a change of the host's
load meets both. `ratio` is the median over the rounds of emu's step over PyTorch's in the same round; PyTorch runs with
its default Adam and, as a third job, with its fused one. torch is in the extra `bench`; without it emu's figure stands
alone.

    python -m bench.training --json
"""

import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from bench.runner import Option, Result, run
from bench.turns import Job

SHAPE = {"vocabulary": 128, "length": 64, "depth": 5, "width": 384, "heads": 6}
"""8.9 M parameters; the embedding is tied to the head."""
RANKS = 2
WARM = 1  # steps at the beginning of a turn that do not count: the other job has had the caches


class Asked(NamedTuple):
    """What a program is asked for: steps a turn, sequences a rank; for PyTorch, 1 for its fused Adam."""

    steps: int
    batch: int
    fused: int = 0


def measure_training(rounds: int, steps: int, batch: int) -> Result:
    """Let every job take `rounds` turns; return the medians of their steps and the ratios."""
    asked = Asked(WARM + steps, batch)
    with tempfile.TemporaryDirectory() as folder:
        jobs = {"emu": Job(Path(folder) / "emu", RANKS, *_mpi(asked))}
        if find_spec("torch") is not None:
            jobs["torch"] = Job(Path(folder) / "torch", RANKS, *_torch(asked))
            jobs["torch_fused"] = Job(Path(folder) / "torch_fused", RANKS, *_torch(asked._replace(fused=1)))
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
    """Return the other jobs' steps and the ratios: medians, and the quarters of `ratio`."""
    if "torch" not in steps_of:
        return {"torch": "not installed; pip install 'emu[bench]'"}
    ratios = {
        name: [ours / theirs for ours, theirs in zip(steps_of["emu"], steps_of[name], strict=True)]
        for name in ("torch", "torch_fused")
    }
    low, middle, high = quantiles(ratios["torch"], n=4) if len(ratios["torch"]) > 1 else ratios["torch"] * 3
    return {
        "torch_step_wall_s": median(steps_of["torch"]), "ratio": middle, "ratio_quartiles": f"{low:.2f} to {high:.2f}",
        "torch_fused_step_wall_s": median(steps_of["torch_fused"]), "ratio_fused": median(ratios["torch_fused"]),
        "explained": EXPLAINED,
    }  # fmt: skip


EXPLAINED = (
    "three quarters of either step are matrix products, at the same speed of BLAS. emu's arrays take over memory that "
    "is there and its Adam goes over flat buffers in blocks that stay in cache, which PyTorch's default Adam does not; "
    "PyTorch's fused Adam, layer norms and attention are single kernels where emu's are several of numpy's, and its "
    "buckets travel in a thread while backward goes on, where emu's under the virtual clock go where the program stands"
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
    )
