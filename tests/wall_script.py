"""An mpi4py script that knows nothing of emu: run it with `emu run --clock wall`."""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
x = np.full(125_000, rank, np.float64)
total = np.empty_like(x)
comm.Barrier()
began, host = MPI.Wtime(), time.perf_counter()
comm.Allreduce(x, total)
took, host_took = MPI.Wtime() - began, time.perf_counter() - host
assert (total == size * (size - 1) / 2).all()
if rank == 0:
    status = MPI.Status()
    for _ in range(size - 1):
        comm.recv(source=MPI.ANY_SOURCE, tag=3, status=status)
    request = comm.irecv(source=1, tag=4)
    while not request.test()[0]:
        time.sleep(0.001)
    print(f"took {took:.6f} host {host_took:.6f}")
else:
    comm.send({"rank": rank}, dest=0, tag=3)
    if rank == 1:
        comm.send("last", dest=0, tag=4)
