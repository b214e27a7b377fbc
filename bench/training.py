"""How long does a real training step take beside PyTorch's DDP?

The GPT of about 10 M parameters on 2 ranks, each a process with one thread: emu over MPI, PyTorch over gloo, on the
same shapes and machine in the same run, in turn. `ratio` is emu's step over PyTorch's. torch is in the extra `bench`;
without it emu's figure stands alone.

    python -m bench.training --json
"""

import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from bench.runner import Option, Result, run

SHAPE = {"vocabulary": 128, "length": 64, "depth": 5, "width": 384, "heads": 6}
"""9.0 M parameters; the embedding is tied to the head."""

EMU = """
import json, sys, time
shape, steps, batch, out = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
import numpy as np
from emu.cluster import load_cluster
from emu.collectives import find
from emu.comm.mpi import MpiWorld
from emu.nn import models
from emu.nn.loss import SoftmaxCrossEntropy
from emu.nn.optim import Adam
from emu.parallel.data_parallel import DataParallel
from emu.program import mpi_gpu
world = MpiWorld()
gpu = mpi_gpu(world, load_cluster("pcie4", {}, 2))
sizes = {name: shape[name] for name in ("depth", "width", "heads")}
model = models.gpt(shape["vocabulary"], shape["length"], **sizes)
strategy = DataParallel(gpu, model, Adam(1e-4), find("all_reduce", "ring"), find("broadcast", "binomial"))
loss, rng, times = SoftmaxCrossEntropy(), np.random.default_rng(gpu.rank), []
for step in range(steps + 2):
    x = rng.integers(0, shape["vocabulary"], (batch, shape["length"]), dtype=np.int32)
    gpu.comm.wire.exchange(None)
    began = time.perf_counter()
    with gpu.step(step):
        strategy.begin()
        logits, saved = model.forward(gpu, gpu.array(x))
        stats, kept = loss.forward(gpu, logits, gpu.array(x), total=2 * x.size)
        model.backward(gpu, saved, loss.backward(gpu, kept), ready=strategy.ready)
        strategy.finish()
    times.append(time.perf_counter() - began)
if gpu.rank == 0:
    json.dump({"times": times[2:], "parameters": model.size}, open(out, "w"))
world.tell(None)
world.watch.stop()
"""

TORCH = """
import json, os, sys, time
shape, steps, batch, out = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
torch.set_num_threads(1)
dist.init_process_group("gloo")
width, heads = shape["width"], shape["heads"]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, width)
        x = x + self.project(y)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(shape["vocabulary"], width), nn.Embedding(shape["length"], width)
        self.blocks = nn.ModuleList(Block() for _ in range(shape["depth"]))
        self.norm = nn.LayerNorm(width)
    def forward(self, x):
        y = self.token(x) + self.position(torch.arange(x.shape[1]))
        for block in self.blocks:
            y = block(y)
        return F.linear(self.norm(y), self.token.weight)
model = nn.parallel.DistributedDataParallel(GPT(), gradient_as_bucket_view=True)
optimizer, times = torch.optim.Adam(model.parameters(), 1e-4), []
for step in range(steps + 2):
    x = torch.randint(0, shape["vocabulary"], (batch, shape["length"]))
    dist.barrier()
    began = time.perf_counter()
    F.cross_entropy(model(x).reshape(-1, shape["vocabulary"]), x.reshape(-1)).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    times.append(time.perf_counter() - began)
if dist.get_rank() == 0:
    json.dump({"times": times[2:], "parameters": sum(p.numel() for p in model.parameters())}, open(out, "w"))
dist.destroy_process_group()
"""


def measure_training(rounds: int, steps: int, batch: int) -> Result:
    """Run both in turn `rounds` times; return the medians of their steps and the ratio."""
    ours: list[float] = []
    theirs: list[float] = []
    parameters = 0
    with_torch = find_spec("torch") is not None
    for _ in range(rounds):
        found = _run(_mpi_command, EMU, steps, batch)
        parameters = found["parameters"]
        ours += found["times"]
        if with_torch:
            theirs += _run(_torch_command, TORCH, steps, batch)["times"]
    result: Result = {"parameters": parameters, "batch_per_rank": batch, "ranks": 2, "step_wall_s": median(ours)}
    if not with_torch:
        return result | {"torch": "not installed; pip install 'emu[bench]'"}
    result |= {"torch_step_wall_s": median(theirs), "ratio": median(ours) / median(theirs)}
    return result | {"explained": (
        "three quarters of emu's computation is matrix products at the speed of BLAS, as PyTorch's is; but under the "
        "virtual clock buckets are sent where the program stands, so that nothing overlaps in real time, the sums "
        "of a ring are numpy's, and MPI polls while it waits, which costs most where other work shares the cores"
    )}  # fmt: skip


def _run(command: Any, code: str, steps: int, batch: int) -> dict[str, Any]:
    """Run a program on 2 ranks; return what rank 0 wrote."""
    with tempfile.TemporaryDirectory() as folder:
        program, out = Path(folder) / "program.py", Path(folder) / "out.json"
        program.write_text(code)
        words = [str(program), json.dumps(SHAPE), str(steps), str(batch), str(out)]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        here = str(Path(__file__).resolve().parent.parent)
        path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
        line, environment = command(words, dict(os.environ) | threads | {"PYTHONPATH": path})
        subprocess.run(line, check=True, env=environment, stdout=subprocess.DEVNULL, timeout=900)
        return dict(json.loads(out.read_text()))


def _mpi_command(words: list[str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    from emu.comm.mpi_start import find_mpi, mpirun_environment, mpirun_line

    mpi = find_mpi()
    return mpirun_line(mpi, 2, [sys.executable, *words]), mpirun_environment(mpi, environment)


def _torch_command(words: list[str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    return line, environment


if __name__ == "__main__":
    run(
        "How long does a real training step take beside PyTorch's DDP?",
        measure_training,
        rounds=Option(3, "times that both are started in turn"),
        steps=Option(8, "steps each time, after two that do not count"),
        batch=Option(8, "sequences a rank"),
    )
