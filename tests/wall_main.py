"""A program for `emu agree`: overlapped all-reduces, a pipeline of messages, copies."""

import numpy as np

import emu
from emu.collectives import find


def update(x):
    x *= 0.5


def main(gpu):
    comm = gpu.comm
    x = gpu.full(200_000, gpu.rank + 1, purpose="gradients")
    for step in range(3):
        with gpu.step(step):
            y = gpu.array(np.ones(1000, np.float32))
            ready = gpu.record()
            with gpu.stream("comm"):
                gpu.wait(ready)
                find("all_reduce", "ring")(comm, x)
                done = gpu.record()
            gpu.launch(update, y, cost=emu.Cost(bytes=200_000_000))
            gpu.wait(done)
            gpu.launch(update, x, cost=emu.Cost(bytes=8 * x.size))
            if gpu.rank == 0:
                comm.send(x, 1)
            elif gpu.rank == 1:
                comm.recv(x, 0)
            find("broadcast", "binomial")(comm, x, root=0)
