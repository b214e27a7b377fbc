"""`emu run` as its user starts it: under mpirun of both families, by -n, and in one process."""

import json
import signal
import textwrap
import time

import pytest

PI = """
from mpi4py import MPI
import numpy
comm = MPI.COMM_WORLD
n = comm.bcast(1000 if comm.rank == 0 else None, root=0)
h = 1.0 / n
s = sum(4.0 / (1.0 + (h * (i + 0.5)) ** 2) for i in range(comm.rank, n, comm.size))
part, pi = numpy.array(s * h), numpy.array(0.0)
began = MPI.Wtime()
comm.Reduce(part, pi, op=MPI.SUM, root=0)
comm.Barrier()
if comm.rank == 0:
    print(f"pi {float(pi):.6f} after {MPI.Wtime() - began:.9f}", flush=True)
"""

JACOBI = """
from mpi4py import MPI
import numpy as np
comm = MPI.COMM_WORLD
grid = comm.Create_cart(MPI.Compute_dims(comm.size, 1), periods=[False])
up, down = grid.Shift(0, 1)
u = np.zeros((12, 10)); u[:, 0] = 1.0
for step in range(20):
    requests = [grid.Irecv(u[0], up, 0), grid.Irecv(u[-1], down, 1)]
    requests += [grid.Isend(u[1], up, 1), grid.Isend(u[-2], down, 0)]
    MPI.Request.Waitall(requests)
    new = u.copy()
    new[1:-1, 1:-1] = (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4
    change = grid.allreduce(float(abs(new - u).max()), op=MPI.MAX)
    u = new
total = comm.reduce(float(u[1:-1].sum()))
if comm.rank == 0:
    print(f"sum {total:.9f}", flush=True)
"""

WORKERS = """
from mpi4py import MPI
comm = MPI.COMM_WORLD
WORK, STOP = 1, 2
if comm.rank == 0:
    status, results, left = MPI.Status(), [], list(range(10))
    for worker in range(1, comm.size):
        comm.send(left.pop(0), worker, WORK)
    for _ in range(10):
        comm.Probe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
        results.append(comm.recv(source=status.Get_source(), tag=status.Get_tag()))
        comm.send(left.pop(0) if left else None, status.Get_source(), WORK if left or len(results) < 1 else STOP)
    print(sorted(results), flush=True)
else:
    status = MPI.Status()
    while True:
        task = comm.recv(source=0, tag=MPI.ANY_TAG, status=status)
        if task is None:
            break
        comm.send(task * task, 0, 3)
"""
WORKERS = WORKERS.replace("WORK if left or len(results) < 1 else STOP", "WORK")

PROGRAMS = {"pi": PI, "jacobi": JACOBI, "workers": WORKERS}


@pytest.fixture
def script(tmp_path):
    def write(text, name="script.py"):
        (tmp_path / name).write_text(textwrap.dedent(text))
        return tmp_path

    return write


def last_json(output):
    return json.loads(output[output.index("{") :])


@pytest.mark.timeout(400)  # a first run compiles the engine, for each family
@pytest.mark.parametrize("name", PROGRAMS)
def test_tutorial_programs_run_the_same_everywhere(run_job, script, name):
    folder = script(PROGRAMS[name])
    line = ["emu", "run", "--cluster", "tcp-10g", "--json", "--output", "out", "script.py"]
    told = []
    for mpi, extra, ranks in (("openmpi", ["--local", "3"], None), ("openmpi", [], 3), ("mpich", [], 3)):
        ended = run_job([*line[:2], *extra, *line[2:]], ranks=ranks, mpi=mpi, cwd=folder, limit_s=110)
        assert ended.returncode == 0, ended.output
        told.append((last_json(ended.stdout), [x for x in ended.stderr.splitlines() if x[:3] in ("pi ", "sum", "[0,")]))
    assert len({tuple(lines) for _, lines in told}) == 1 and told[0][1]
    assert len({json.dumps(found["rank_end_s"]) for found, _ in told}) == 1
    assert len({found["messages"] for found, _ in told}) == 1


def test_n_starts_mpirun_and_passes_the_script_its_arguments(run_job, script):
    folder = script("""
        import sys
        from mpi4py import MPI
        if MPI.COMM_WORLD.rank == 0: print(MPI.COMM_WORLD.size, sys.argv)
    """)
    ended = run_job(["emu", "run", "-n", "2", "--no-summary", "script.py", "-n", "7", "--local"], cwd=folder)
    assert ended.returncode == 0, ended.output
    assert "2 ['script.py', '-n', '7', '--local']" in ended.stdout


def test_the_summary_tells_calls_and_that_computation_is_uncosted(run_job, script):
    ended = run_job(["emu", "run", "--local", "2", "script.py"], cwd=script(PI), limit_s=110)
    assert ended.returncode == 0, ended.output
    assert "computation: uncosted" in ended.stdout and "--compute measured --speedup K" in ended.stdout
    assert "reduce" in ended.stdout and "order: the script asked for time" in ended.stdout


FAILURES = {
    "raises": ("if comm.rank == 1: raise ValueError('mine')\ncomm.recv(source=1)", 1, ["ValueError: mine"]),
    "exits": ("import sys\nif comm.rank == 1: sys.exit(7)", 7, []),
    "aborts": ("if comm.rank == 1: comm.Abort(5)\ncomm.Barrier()", 5, []),
    "disagrees": (
        "comm.Allreduce(MPI.IN_PLACE, np.zeros(4 + comm.rank))", 2,
        ["rank 0: ", "rank 1: ", "x=4 float64) at script.py:4", "x=5 float64) at script.py:4"],
    ),
    "other dtype": (
        "x = np.zeros(2, 'f8' if comm.rank else 'f4')\n"
        "comm.Send(x, 1, tag=3) if comm.rank == 0 else comm.Recv(x, 0, tag=3)", 2,
        ["rank 0 sending 8 bytes of float32 at script.py:5", "rank 1 receiving 16 bytes of float64",
         "waited for at script.py:5"],
    ),
    "opposite order": (
        "a, b = comm.Dup(), comm.Dup()\nx = np.zeros(3)\n"
        "for c in ((a, b) if comm.rank else (b, a)): c.Allreduce(MPI.IN_PLACE, x)", 2,
        ["deadlock", "rank 0 waits for", "rank 1 waits for", "script.py:6"],
    ),
    "p2p against a collective": (
        "comm.Barrier() if comm.rank == 0 else comm.Recv(np.zeros(1), 0, tag=9)", 2,
        ["rank 0 waits for dissemination_barrier", "rank 1 waits for messages from rank 0", "script.py:4"],
    ),
    "ended": ("if comm.rank == 0: comm.Recv(np.zeros(1), 1)", 2, ["rank 0 waits for messages from rank 1", "its end"]),
}  # fmt: skip


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
@pytest.mark.parametrize("what", FAILURES)
def test_failures_end_the_job_and_are_told_once(run_job, script, what, mpi):
    text, status, words = FAILURES[what]
    folder = script("from mpi4py import MPI\nimport numpy as np\ncomm = MPI.COMM_WORLD\n" + text)
    ended = run_job(["emu", "run", "script.py"], ranks=2, mpi=mpi, cwd=folder, limit_s=60)
    assert ended.returncode == status or mpi == "mpich" and ended.returncode != 0, ended.output
    for word in words:
        assert word in ended.stderr, ended.output
    if what == "raises":
        assert ended.stderr.count("ValueError: mine") == 1


def test_a_wait_past_its_deadline_is_told_and_ends_the_job(run_job, script):
    folder = script("""
        from mpi4py import MPI
        import time
        comm = MPI.COMM_WORLD
        if comm.rank == 1: time.sleep(100)
        comm.Barrier()
    """)
    ended = run_job(["emu", "run", "--deadline", "8 s", "script.py"], ranks=2, cwd=folder, limit_s=50)
    assert ended.returncode == 3, ended.output
    assert "for dissemination_barrier() at script.py:6 with rank 0, 1; missing: rank 1; it gives" in ended.stderr
    assert "its last operations: " in ended.stderr and "the deadline has passed" in ended.stderr


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_a_killed_rank_ends_the_job(start_job, script, mpi):
    import os

    folder = script("""
        from mpi4py import MPI
        import time
        print("ready", flush=True)
        if MPI.COMM_WORLD.rank == 1: time.sleep(150)
        MPI.COMM_WORLD.Barrier()
    """)
    job = start_job(["emu", "run", "script.py"], ranks=2, mpi=mpi, cwd=folder)
    began = time.monotonic()
    while job.output().count("ready") < 2 and time.monotonic() - began < 80:
        time.sleep(0.2)
    os.kill(job.rank_pids()[1], signal.SIGKILL)
    ended = job.wait(time.monotonic() - job.started_s + 30)
    assert not ended.timed_out and ended.returncode != 0


@pytest.mark.parametrize(
    "line, words",
    [
        (["--local", "2", "none.py"], "none.py: a Python script is expected, got: No such file"),
        (["--local", "2", "broken.py"], "broken.py: a Python script is expected, got: "),
        (["--local", "2", "-n", "2", "script.py"], "one of -n and --local"),
        (["--local", "2", "--cluster", "tcp-10x", "script.py"], "tcp-10g"),
        (["--local", "99999", "--cluster", "dgx-a100:1", "script.py"], "GPUs"),
    ],
)
def test_bad_command_lines_are_one_line_and_status_2(run_job, script, line, words):
    script("x = (", "broken.py")
    ended = run_job(["emu", "run", *line], cwd=script("pass"))
    assert ended.returncode == 2
    assert words in ended.stderr and "Traceback" not in ended.stderr
