"""The start scripts and host files, on two hosts made of network namespaces."""

import os
import time

import jobs
import pytest
from jobs import ROOT

WHO = """
import socket
from mpi4py import MPI
world = MPI.COMM_WORLD
same_host = world.Split_type(MPI.COMM_TYPE_SHARED).size
for line in world.gather(f"rank {world.rank} on {socket.gethostname()} {same_host}") or []:
    print(line)
"""


def placed(output: str) -> list[list[str]]:
    """Return [rank, host, ranks on that host] of every rank, in order of ranks."""
    lines = [line.split() for line in output.splitlines() if line.startswith("rank ")]
    return [[rank, host, count] for _, rank, _, host, count in lines]


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_a_host_file_spreads_the_ranks_over_the_hosts(hosts, mpi):
    two = hosts(2)
    ended = two.run(["python", "-c", WHO], ranks=4, mpi=mpi)
    assert ended.returncode == 0, ended
    first, second = two.names
    assert placed(ended.stdout) == [["0", first, "2"], ["1", first, "2"], ["2", second, "2"], ["3", second, "2"]]


def test_more_ranks_than_slots_take_turns_on_every_host(hosts):
    two = hosts(2)
    ended = two.run(["python", "-c", WHO], ranks=6)
    assert [host for _, host, _ in placed(ended.stdout)] == [two.names[0]] * 3 + [two.names[1]] * 3


KILLED = """
import os, time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
print("all here", flush=True)
if world.rank == 3:
    time.sleep(1)
    os.kill(os.getpid(), 9)
world.Barrier()
"""


def test_a_rank_killed_on_another_host_ends_all_ranks(hosts):
    """Of mpirun itself only the ranks are asked for: Open MPI 5's may linger after them (openpmix/prrte#1839)."""
    job = hosts(2).start(["python", "-c", KILLED], ranks=4)
    until = time.monotonic() + jobs.LIMIT_S
    while "all here" not in job.output() or job.rank_pids():
        assert time.monotonic() < until, job.output()
        time.sleep(0.1)
    assert job.wait(10).returncode != 0


# What Slurm's own srun does for mpirun: run a command once on each host of a list.
STUB_SRUN = """#!/bin/bash
[ "$1" = --version ] && { echo "slurm 23.02.6"; exit; }
echo "srun $*" >> "$STUB_LOG"
while :; do case $1 in --nodelist=*) hosts=${1#*=}; shift ;; -*) shift ;; *) break ;; esac; done
export SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
for host in ${hosts//,/ }; do
    "$STUB_AGENT" "$host" "exec $(printf '%q ' "$@")" &
    SLURM_NODEID=$((SLURM_NODEID + 1))
done
wait
"""


def test_the_slurm_script_starts_a_rank_a_task_on_the_nodes_of_the_job(hosts, tmp_path):
    two = hosts(2)
    executable(tmp_path / "srun", STUB_SRUN)
    python = jobs.python_with("openmpi")
    nodes = {
        "SLURM_JOBID": "7",
        "SLURM_JOB_ID": "7",
        "SLURM_NODELIST": node_list(two.names),
        "SLURM_JOB_NODELIST": node_list(two.names),
        "SLURM_TASKS_PER_NODE": "2(x2)",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NTASKS": "4",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "STUB_LOG": str(tmp_path / "log"),
        "STUB_AGENT": str(two.agent),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    line = two.line_on(0, [str(ROOT / "launch" / "slurm"), "--", "python", "-c", WHO])
    ended = jobs.run_job(line, env={**script_environment(python), **nodes})
    assert [host for _, host, _ in placed(ended.stdout)] == [two.names[0]] * 2 + [two.names[1]] * 2, ended
    assert f"--nodelist={two.names[1]}" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_the_pbs_script_starts_a_rank_a_line_of_the_node_file(hosts, tmp_path, mpi):
    two = hosts(2)
    (tmp_path / "nodes").write_text("".join(f"{name}\n{name}\n" for name in two.names))
    (tmp_path / "who.py").write_text(WHO)
    executable(tmp_path / "pbs_tmrsh", f'#!/bin/sh\nexec "{two.agent}" "$@"\n')
    python = jobs.python_with(mpi)
    nodes = {
        "PBS_JOBID": "7.server",
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_NODEFILE": str(tmp_path / "nodes"),
        "PBS_O_WORKDIR": str(ROOT),
        "EMU_COMMAND": f"python {tmp_path / 'who.py'}",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    line = two.line_on(0, [str(ROOT / "launch" / "pbs")])
    ended = jobs.run_job(line, env={**script_environment(python), **nodes})
    assert [host for _, host, _ in placed(ended.stdout)] == [two.names[0]] * 2 + [two.names[1]] * 2, ended


def script_environment(python):
    """Return what a start script is told: the virtual environment, and that root may start ranks."""
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {"EMU_VENV": str(python.parent.parent), **allowed}


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)


def node_list(names):
    """Return names that differ in their last digit as Slurm writes them: `node[0-1]`."""
    return f"{names[0][:-1]}[{names[0][-1]}-{names[-1][-1]}]"


def test_the_example_of_a_host_file_works_with_ones_own_names(hosts, tmp_path):
    two = hosts(2)
    text = (ROOT / "hostfile.example").read_text().replace("node01", two.names[0]).replace("node02", two.names[1])
    (tmp_path / "hostfile").write_text(text)
    python = jobs.python_with("openmpi")
    line = [jobs.installed_mpi(python).mpirun, "--hostfile", str(tmp_path / "hostfile"), "-n", "6"]
    environment = {**script_environment(python), **two.environment()}
    ended = jobs.run_job(two.line_on(0, [*line, str(python), "-c", WHO]), env=environment)
    assert [host for _, host, _ in placed(ended.stdout)] == [two.names[0]] * 4 + [two.names[1]] * 2
