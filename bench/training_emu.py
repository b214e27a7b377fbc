"""One rank of emu's side of `bench.training`: steps of a GPT, data parallel over MPI."""

import sys
import time
from pathlib import Path

import numpy as np

from bench.training import SHAPE, Asked
from bench.turns import turns
from emu.cluster import load_cluster
from emu.collectives import find
from emu.comm.mpi_world import MpiWorld
from emu.nn import models
from emu.nn.loss import SoftmaxCrossEntropy
from emu.nn.optim import Adam
from emu.parallel.data_parallel import DataParallel
from emu.program import mpi_gpu


def main(asked: Asked, folder: Path) -> None:
    """Train whenever it is this job's turn; tell each step's seconds."""
    world = MpiWorld()
    gpu = mpi_gpu(world, load_cluster("pcie4", {}, 2))
    sizes = {name: SHAPE[name] for name in ("depth", "width", "heads")}
    model = models.gpt(SHAPE["vocabulary"], SHAPE["length"], **sizes)
    strategy = DataParallel(gpu, model, Adam(1e-4), find("all_reduce", "ring"), find("broadcast", "binomial"))
    loss, rng, step = SoftmaxCrossEntropy(), np.random.default_rng(gpu.rank), 0
    for told in turns(folder, gpu.rank):
        for _ in range(asked.steps):
            x = rng.integers(0, SHAPE["vocabulary"], (asked.batch, SHAPE["length"]), dtype=np.int32)
            gpu.comm.wire.exchange(None)
            began = time.perf_counter()
            with gpu.step(step):
                strategy.begin()
                logits, saved = model.forward(gpu, gpu.array(x))
                _, kept = loss.forward(gpu, logits, gpu.array(x), total=2 * x.size)
                model.backward(gpu, saved, loss.backward(gpu, kept), ready=strategy.ready)
                strategy.finish()
            told.append(time.perf_counter() - began)
            step += 1
    world.tell(None)
    world.watch.stop()


if __name__ == "__main__":
    main(Asked(*map(int, sys.argv[1:-1])), Path(sys.argv[-1]))
