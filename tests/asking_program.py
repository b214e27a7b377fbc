"""A program that asks for order and time, for `python tests/asking_program.py local 4` and `mpirun -n 4 ... mpi`.

Its last line is JSON: what each rank was told, and each rank's end, as bits.
"""

import json
import sys

import emu
from emu.trace import ANY


def main(gpu):
    """Serve whoever comes first, meet in parts, poll; collectives before, between and after."""
    comm, told = gpu.comm, []
    x, y = gpu.empty(1000, "float32"), gpu.empty(30_000, "float64")
    x[:], y[:] = gpu.rank, 1
    for _ in range(3):
        emu.all_reduce(comm, x)
    if gpu.rank == 0:
        for _ in range(4 * (gpu.size - 1)):
            request = comm.irecv(x, ANY, ANY)
            request.wait()
            told.append((request.source, request.tag, comm.now_s().hex()))
            comm.send(x, request.source, 99)
    else:
        for step in range(4):
            gpu.launch(lambda: None, cost=emu.Cost(flops=1e8 * ((gpu.rank * 7 + step * 3) % 5 + 1)), name="work")
            comm.send(x, 0, step)
            comm.recv(x, 0, 99)
    part = comm.split(gpu.rank % 2)
    for _ in range(3):
        emu.all_reduce(part, y)
        told.append(comm.now_s().hex())
    request = comm.irecv(x, (gpu.rank - 1) % gpu.size, 5)
    gpu.launch(lambda: None, cost=emu.Cost(flops=1e8 * gpu.rank), name="work")
    sent = comm.isend(x, (gpu.rank + 1) % gpu.size, 5)
    polls = 0
    while not comm.test(request):
        polls += 1
    sent.wait()
    emu.all_reduce(comm, y)
    return [*told, polls]


if __name__ == "__main__":
    way = sys.argv[1]
    run = emu.run(main, "tcp-10g", None if way == "mpi" else int(sys.argv[2]), way=way)
    results, first = run.results, True
    if way == "mpi":
        from mpi4py import MPI

        results = MPI.COMM_WORLD.gather(results[0])
        first = MPI.COMM_WORLD.rank == 0
    if first:
        told = [results, run.trace.header["marks"], [end.hex() for end in run.timeline.raw.rank_end_s.tolist()]]
        print(json.dumps(told), flush=True)
