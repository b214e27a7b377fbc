"""The ranks of `bench.wall`: `python -m bench.wall_ranks CASES`, under mpirun; rank 0 prints a JSON line a case.

A case is [name, cluster or link, dilation or "auto", program, argument].
"""

import json
import resource
import statistics
import sys
import time

import numpy as np

from emu.cluster import link_cluster, load_cluster
from emu.collectives import find
from emu.comm.mpi_world import MpiWorld
from emu.gpu import Cost
from emu.program import end_job, mpi_trace, wall_gpu
from emu.wall.agreement import compare
from emu.wall.run import read_pace

timer = time.perf_counter
SETTLE_S = 3.0  # of the host's clock, at most, until the dilation is found
STEADY = 250  # messages at one dilation settle it
MEASURED = 150  # messages, at most
BEGINNING = 0.01  # of a run: what ends in it is next to nothing, and off by any percentage
WIDTHS = (512, 1024, 1024, 512)  # of the model that is trained


def message(gpu, nbytes):
    """Messages between ranks 0 and 1, back and forth; at first the dilation settles.

    One is timed from when both sides had come to it until its receiver goes on.
    """
    took, steady, last, turn = [], 0, 0.0, 0
    comm, x = gpu.comm, np.zeros(max(1, nbytes), np.uint8)
    began = timer()
    while True:
        wall_s, dilation, since = _one(comm, x, turn, began)
        steady = steady + 1 if dilation == last else 0
        last = dilation
        if steady >= STEADY or since > SETTLE_S:
            took.append(wall_s / dilation)
        if len(took) == MEASURED or took and since > 2 * SETTLE_S:
            return {"took_s": took}
        turn = 1 - turn


def thrice(gpu, nbytes):
    """A message, three times."""
    x = np.zeros(nbytes, np.uint8)
    return {"took_s": [wall_s / dilation for wall_s, dilation, _ in (_one(gpu.comm, x, 0, 0.0) for _ in range(3))]}


def _one(comm, x, turn, began):
    """Send once; return what that took on the wall, the dilation, and the time since `began`, as rank 0 sees them."""
    posted = timer()
    if comm.rank == turn:
        comm.send(x, 1 - turn)
    else:
        comm.recv(x, turn)
    ended = timer()
    told = comm.wire.exchange((posted, ended, comm.wire.seat.dilation, ended - began))
    return told[1 - turn][1] - max(t[0] for t in told), told[0][2], told[0][3]


def flows(gpu, pattern):
    """Messages all at once, or staggered by `after` emulated seconds: [from, to, bytes, after]."""
    comm, waited = gpu.comm, []
    spec = CLUSTER.gpu(gpu.rank)
    rate = spec.memory_bytes_per_s * spec.memory_efficiency
    comm.wire.exchange(None)
    now_s = 0.0
    for tag, (source, to, nbytes, after) in enumerate(pattern):
        if gpu.rank == source and after > now_s:
            gpu.launch(_nothing, cost=Cost(bytes=int((after - now_s) * rate)), name="pause")
            now_s = after
        x = np.zeros(nbytes, np.uint8)
        if gpu.rank == to:
            waited.append((comm.irecv(x, source, tag), x))
        elif gpu.rank == source:
            waited.append((comm.isend(x, to, tag), x))
    for request, _ in waited:
        comm.waitall((request,))
    return {}


def collective(gpu, asked):
    """Two of one collective, the second on the heels of the first."""
    operation, algorithm, nbytes = asked
    x = np.ones(nbytes // 4, np.float32)
    gpu.comm.wire.exchange(None)
    for _ in range(2):
        find(operation, algorithm)(gpu.comm, x)
    return {}


def zero3(gpu, batch):
    """A training step with parameters, gradients and optimizer state in parts."""
    from emu.collectives import find
    from emu.nn import models
    from emu.nn.optim import SGD
    from emu.parallel.sharded import Stage3
    from emu.parallel.zero import Zero

    model = models.mlp(WIDTHS)
    scatter, gather = find("reduce_scatter", "ring"), find("all_gather", "ring")
    settings = Stage3(param_persistence_threshold=0)
    strategy = Zero(gpu, model, SGD(0.1), scatter, gather, 3, settings=settings)
    gpu.comm.wire.exchange(None)
    strategy.begin()
    y, saved = model.forward(gpu, gpu.zeros((batch, WIDTHS[0])))
    model.backward(gpu, saved, y, ready=strategy.ready)
    strategy.finish()
    return {}


def virtual_s(cluster, ranks, program, argument):
    """Return what a program takes under the virtual clock."""
    from emu.engine import resolve
    from emu.program import run_here

    made = load_cluster(cluster, {}, ranks)
    _, trace, _ = run_here(lambda gpu: globals()[program](gpu, argument), made, ranks, dry=True)
    return resolve(trace, made).end_s


def idle(gpu, nbytes):
    """All wait for one long message."""
    comm, x = gpu.comm, np.zeros(nbytes, np.uint8)
    comm.wire.exchange(None)
    began, used = timer(), _cpu_s()
    comm.sendrecv(x, (comm.rank + 1) % comm.size, x.copy(), (comm.rank - 1) % comm.size)
    took = timer() - began
    return {"cores": sum(comm.wire.exchange(_cpu_s() - used)) / took}


def run(world, case):
    """Run one case; return its row on rank 0."""
    global CLUSTER
    name, cluster, dilation, program, argument = case
    linked = cluster.startswith("latency=")
    CLUSTER = link_cluster(cluster, world.size) if linked else load_cluster(cluster, {}, world.size)
    wall = wall_gpu(world, CLUSTER, read_pace(dilation))
    found = globals()[program](wall.gpu, argument)
    lateness = wall.end()
    trace, ended = mpi_trace(world, wall.gpu, CLUSTER), world.gather(wall.ended())
    row = None
    if trace is not None:
        row = _row(name, lateness, found, compare(trace, CLUSTER, "ideal", ended), argument)
    world.tell(None)
    return row


def _row(name, lateness, found, agreement, argument):
    row = {"case": name, "dilation": lateness.dilation}
    if "cores" in found:
        return row | {"asked": 0.2, "obtained": found["cores"], "error_pct": None, "early": 0}
    if "took_s" in found:
        asked = CLUSTER.closed_form(0, 1).time_s(argument)
        errors = [100 * (took - asked) / asked for took in found["took_s"]]
        return row | {
            "asked": asked, "obtained": statistics.median(found["took_s"]), "error_pct": statistics.median(errors),
            "p99_pct": sorted(errors)[-1 - len(errors) // 100], "early": sum(e < -1e-6 for e in errors),
        }  # fmt: skip
    ends = [end for end in agreement.ends if end[0] > BEGINNING * agreement.virtual_s]
    worst = max(ends, key=lambda end: abs(end[1] - end[0]) / end[0])
    return row | {
        "asked": agreement.virtual_s, "obtained": agreement.wall_s, "error_pct": agreement.error_pct,
        "worst_pct": 100 * (worst[1] - worst[0]) / worst[0], "early": agreement.early,
    }  # fmt: skip


def _nothing():
    """A kernel that only takes time."""


def _cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    world = MpiWorld()
    try:
        for case in json.loads(sys.argv[1]):
            row = run(world, case)
            if row is not None:
                print("ROW " + json.dumps(row), flush=True)
    except BaseException as error:
        end_job(world, error)
        raise
    finally:
        world.watch.stop()
