"""Programs that tests of the wall clock run under mpirun: `python wall_program.py CASE DILATION LINK`.

Each measures with the host's ordinary timer, and rank 0 prints one JSON object: the case's own figures, what the
engine says (`asked_s`), and how late the run was.
"""

import json
import os
import resource
import sys
import time

import numpy as np

from emu.cluster import link_cluster, load_cluster
from emu.collectives import find
from emu.comm.communicator import Request
from emu.comm.mpi_world import MpiWorld
from emu.gpu import Cost
from emu.program import end_job
from emu.wall.run import Pace, begin

timer = time.perf_counter  # one clock for all processes of this host


def one_message(gpu, nbytes):
    """Rank 0 sends the time; rank 1 sees how long that took."""
    comm, took = gpu.comm, []
    x = np.zeros(nbytes // 8, np.float64)
    for _ in range(3):
        meet(comm)
        if comm.rank == 0:
            x[0] = timer()
            comm.send(x, 1)
        elif comm.rank == 1:
            comm.recv(x, 0)
            took.append(timer() - x[0])
    return {"took_s": gather(comm, took)[1], "asked_s": closed(gpu).time_s(nbytes)}


def fan_in(gpu, nbytes):
    """All others send to rank 0 at the same time, through its port."""
    comm, took = gpu.comm, []
    x = np.zeros((comm.size, nbytes // 8), np.float64)
    meet(comm)
    began = timer()
    if comm.rank == 0:
        requests = [comm.irecv(x[r], r) for r in range(1, comm.size)]
        for request in requests:
            comm.waitall((request,))
            took.append(timer() - began)
    else:
        comm.send(x[0], 0)
    starts = gather(comm, began)
    after = [t - (max(starts) - began) for t in took]  # since the last of them had come so far
    form, senders = closed(gpu), comm.size - 1
    return {
        "took_s": after,
        "bytes": [nbytes * (k + 1) for k in range(senders)],
        "asked_s": form.alpha_s + senders * nbytes / form.bandwidth_bytes_per_s,
        "bandwidth_bytes_per_s": form.bandwidth_bytes_per_s,
    }


def ring(gpu, nbytes):
    """Ring all-reduces, one after the other."""
    comm, took = gpu.comm, []
    for _ in range(3):
        x = np.full(nbytes // 4, comm.rank + 1, np.float32)
        meet(comm)
        began = timer()
        find("all_reduce", "ring")(comm, x)
        took.append(timer() - began)
    p, form = comm.size, closed(gpu)
    right = bool((x == p * (p + 1) / 2).all())
    return {"took_s": took, "asked_s": 2 * (p - 1) * form.time_s(nbytes / p), "right": right}


def overlap(gpu, nbytes):
    """An all-reduce on its own stream while the default one computes as long."""
    comm, x = gpu.comm, np.ones(nbytes // 4, np.float32)
    p, form = comm.size, closed(gpu)
    alone_s = 2 * (p - 1) * form.time_s(nbytes / p)
    spec = gpu_of(gpu)
    busy = Cost(bytes=int(alone_s * spec.memory_bytes_per_s * spec.memory_efficiency / 4))
    meet(comm)
    began = timer()
    with gpu.stream("comm"):
        find("all_reduce", "ring")(comm, x)
        done = gpu.record()
    gave = timer() - began
    for _ in range(4):
        gpu.launch(lambda: None, cost=busy, name="busy")
    computed = timer() - began
    gpu.wait(done)
    return {
        "gave_s": gave, "computed_s": computed, "took_s": [timer() - began], "asked_s": alone_s,
        "right": bool((x == p).all()),
    }  # fmt: skip


def short_send(gpu, nbytes):
    """Rank 0 waits for a long message; rank 2's short one, which it also receives, is gone long before."""
    comm, x, took = gpu.comm, np.zeros((3, nbytes)), 0.0
    meet(comm)
    began = timer()
    if comm.rank == 0:
        requests = [comm.irecv(x[1], 1), comm.irecv(x[2][: nbytes // 20], 2)]
        comm.waitall(requests[:1])
        comm.waitall(requests[1:])
        took = timer() - began
    elif comm.rank == 1:
        comm.send(x[1], 0)
    else:
        comm.send(x[2][: nbytes // 20], 0)
        took = timer() - began
    return {"took_s": gather(comm, took)}


def any_source(gpu, nbytes):
    """Rank 0 receives from whoever comes first; the higher a rank, the shorter it computes before it sends."""
    comm, spec = gpu.comm, gpu_of(gpu)
    x, order = np.zeros(1), []
    meet(comm)
    if comm.rank == 0:
        for _ in range(1, comm.size):
            comm.recv(x)
            order.append(int(x[0]))
    else:
        bytes_a_s = spec.memory_bytes_per_s * spec.memory_efficiency
        gpu.launch(lambda: None, cost=Cost(bytes=int(1e-3 * (comm.size - comm.rank) * bytes_a_s)), name="busy")
        x[0] = comm.rank
        comm.send(x, 0)
    return {"order": order}


def questions(gpu, nbytes):
    """Rank 0 asks when rank 1's and rank 2's messages are there; rank 2's is the first."""
    comm, wire = gpu.comm, gpu.comm.wire
    x, order, tests, probed = np.zeros((3, nbytes // 8)), [], 0, []
    find("barrier", "dissemination")(comm)
    began = wire.now_s()
    if comm.rank == 0:
        requests = [comm.irecv(x[1], 1, 7), comm.irecv(x[2], 2, 8)]
        order = wire.wait_any([r.pending for r in requests])
        while not wire.test(requests[0].pending):
            tests += 1
            time.sleep(0.002)
        took = wire.now_s() - began
        found = wire.probe(-1, -1, True, True)
        probed = [found.source, found.tag, found.nbytes]
        comm.waitall([Request(comm, wire.receive_taken(x[1], found), 0, 0)])
    else:
        spec = gpu_of(gpu)
        bytes_a_s = spec.memory_bytes_per_s * spec.memory_efficiency
        gpu.launch(lambda: None, cost=Cost(bytes=int(2e-3 * (3 - comm.rank) * bytes_a_s)), name="busy")
        comm.send(x[0], 0, 6 + comm.rank)
        took = 0.0
        if comm.rank == 1:
            comm.send(x[0], 0, 9)
    asked_s = 4e-3 + closed(gpu).time_s(nbytes)
    return {"order": order, "tests": tests, "probed": probed, "took_s": [took], "asked_s": asked_s}


def idle(gpu, nbytes):
    """All wait for a message that takes long."""
    comm, x = gpu.comm, np.zeros(nbytes // 4, np.float32)
    meet(comm)
    began, used = timer(), cpu_s()
    comm.sendrecv(x, (comm.rank + 1) % comm.size, x.copy(), (comm.rank - 1) % comm.size)
    took = timer() - began
    return {"cpu_s": sum(gather(comm, cpu_s() - used)), "took_s": [took]}


def disagree(gpu, nbytes):
    """Rank 1 reduces more than the others."""
    x = np.zeros(nbytes // 4 + (gpu.rank == 1), np.float32)
    find("all_reduce", "ring")(gpu.comm, x)
    return {}


def deadlock(gpu, nbytes):
    """Rank 0 waits for a message that nobody sends."""
    if gpu.rank == 0:
        gpu.comm.recv(np.zeros(1), 1)
    return {}


def killed(gpu, nbytes):
    """Rank 1 is killed while the others wait for it."""
    if gpu.rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), 9)
    gpu.comm.recv(np.zeros(1), 1)
    return {}


def endless(gpu, nbytes):
    """All-reduces until something ends them."""
    while True:
        find("all_reduce", "ring")(gpu.comm, np.zeros(nbytes // 4, np.float32))


def late_host(gpu, nbytes):
    """Rank 0's program dawdles before it sends; the message still takes its time."""
    comm, x = gpu.comm, np.zeros(nbytes // 8)
    took = 0.0
    find("barrier", "dissemination")(comm)  # emulated time has begun
    if comm.rank == 0:
        time.sleep(0.3)
        x[0] = timer()
        comm.send(x, 1)
    elif comm.rank == 1:
        comm.recv(x, 0)
        took = timer() - x[0]
    return {"took_s": [gather(comm, took)[1]], "asked_s": closed(gpu).time_s(nbytes)}


def meet(comm):
    """All ranks go on together."""
    comm.wire.exchange(None)


def gather(comm, value):
    return comm.wire.exchange(value)


def closed(gpu):
    return CLUSTER.closed_form(0, 1)


def gpu_of(gpu):
    return CLUSTER.gpu(gpu.rank)


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    case, dilation, link, size = sys.argv[1], float(sys.argv[2]), sys.argv[3], int(float(sys.argv[4]))
    faults = dict(word.split("=", 1) for word in sys.argv[5:])
    world = MpiWorld()
    try:
        made = link_cluster if "=" in link else lambda name, gpus, more: load_cluster(name, more, gpus)
        CLUSTER = made(link, world.size, faults)
        wall = begin(world, CLUSTER, Pace(dilation), failed=lambda error: end_job(world, error))
        found = globals()[case](wall.gpu, size)
        told = wall.end()
        if world.rank == 0:
            print("FOUND " + json.dumps(found | {"lateness": told.json()}), flush=True)
    except BaseException as error:
        end_job(world, error)
        raise
    finally:
        world.watch.stop()
