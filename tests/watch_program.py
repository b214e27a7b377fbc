"""Ranks whose waits are longer than the deadline, rightly. `watch_program.py CASE`, under mpirun."""

import sys
import time

from emu.cluster import link_cluster
from emu.collectives.barrier import dissemination_barrier
from emu.comm.mpi_world import MpiWorld
from emu.comm.watch import Watch
from emu.program import end_job, mpi_gpu, mpi_trace, wall_gpu, watch
from emu.wall.run import Pace

DEADLINE_S = 2.0


def rank_0_reports(world, cluster):
    gpu = mpi_gpu(world, cluster)
    watch(world, gpu.comm.log)
    if mpi_trace(world, gpu, cluster) is not None:
        time.sleep(2 * DEADLINE_S)
    world.tell(None)


def a_long_emulated_second(world, cluster):
    wall = wall_gpu(world, cluster, Pace(4 * DEADLINE_S))
    watch(world, wall.gpu.comm.log)
    dissemination_barrier(wall.gpu.comm)
    wall.end()


if __name__ == "__main__":
    world = MpiWorld(Watch(DEADLINE_S))
    try:
        globals()[sys.argv[1]](world, link_cluster("latency=300 ms, bandwidth=1 Gb/s", world.size))
        print("ended", flush=True)
    except BaseException as error:
        end_job(world, error)
        raise
    finally:
        world.watch.stop()
