"""The wall clock, measured with an ordinary timer: never early; late only loosely, for tests share their host."""

import json
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

PROGRAM = str(Path(__file__).with_name("wall_program.py"))
LINK = "latency=10 us, bandwidth=10 Gb/s"
SLACK_S = 3.0  # what a busy host may add


@pytest.fixture
def found(run_job):
    """Return a function that runs a case and returns what it found."""

    def run(case, ranks, dilation, size, link=LINK, mpi="openmpi", faults=()):
        line = ["python", PROGRAM, case, str(dilation), link, str(size), *faults]
        job = run_job(line, ranks=ranks, mpi=mpi, limit_s=100)
        assert job.returncode == 0, job.output
        line = next(line for line in job.stdout.splitlines() if line.startswith("FOUND "))
        result = json.loads(line.removeprefix("FOUND "))
        assert result["lateness"]["early"] == 0
        return result

    return run


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
@pytest.mark.parametrize(("size", "dilation"), [(8, 5000), (1e6, 100)])
def test_a_message_is_never_early(found, mpi, size, dilation):
    result = found("one_message", 2, dilation, size, mpi=mpi)
    for took_s in result["took_s"]:
        assert dilation * result["asked_s"] <= took_s <= dilation * result["asked_s"] + SLACK_S


@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_messages_share_the_port_they_go_through(found, ranks):
    dilation = 100
    result = found("fan_in", ranks, dilation, 4e5)
    for took_s, nbytes in zip(sorted(result["took_s"]), result["bytes"], strict=True):
        assert took_s >= dilation * nbytes / result["bandwidth_bytes_per_s"]
    assert max(result["took_s"]) >= dilation * result["asked_s"] * (1 - 1e-9)
    assert max(result["took_s"]) <= dilation * result["asked_s"] + SLACK_S


@pytest.mark.parametrize("ranks", [2, 4])
def test_an_all_reduce_takes_its_closed_form(found, ranks):
    result = found("ring", ranks, 50, 4e6)
    assert result["right"]
    for took_s in result["took_s"]:
        assert 50 * result["asked_s"] * (1 - 1e-9) <= took_s <= 50 * result["asked_s"] + SLACK_S


def test_a_stream_communicates_while_another_computes(found):
    result = found("overlap", 2, 300, 4e6)
    alone_s = 300 * result["asked_s"]
    assert result["right"]
    assert result["gave_s"] < alone_s / 2
    assert result["computed_s"] >= 3 / 4 * alone_s  # the last of four kernels goes on when its launch returns
    assert alone_s * (1 - 1e-6) <= result["took_s"][0] < 2 * alone_s


def test_a_send_ends_although_its_receiver_waits_for_another_message(found):
    took_s = found("short_send", 3, 500, 4e5)["took_s"]
    assert took_s[2] < took_s[0] / 2


def test_any_source_meets_the_first_to_come(found):
    assert found("any_source", 4, 100, 8)["order"] == [3, 2, 1]


def test_a_pause_holds_up_live_ranks(found):
    result = found("ring", 2, 50, 4e6, faults=["pause=1@1 ms+20 ms"])
    assert result["right"]
    assert max(result["took_s"]) >= 50 * 0.019


def test_a_degraded_link_carries_less(found):
    result = found("one_message", 2, 100, 1e6, link="tcp-10g", faults=["degrade=*:0.5@1 us..1 s"])
    assert all(took_s >= 1.9 * 100 * result["asked_s"] for took_s in result["took_s"])


def test_a_declared_death_ends_all_and_is_named(run_job):
    job = run_job(["python", PROGRAM, "endless", "50", LINK, "4e5", "death=1@3 ms"], ranks=3, limit_s=60)
    assert job.returncode != 0
    assert "rank 1 died, as the cluster's faults declare" in job.output, job.output


def test_questions_are_answered_when_their_moment_has_come(found):
    result = found("questions", 3, 50, 8000)
    assert result["order"] == [1]
    assert result["tests"] > 3
    assert result["took_s"][0] >= result["asked_s"] * (1 - 1e-9)
    assert result["probed"] == [1, 9, 8000]


def test_who_waits_leaves_the_cores_to_others(found):
    result = found("idle", 8, 1000, 4e6)
    assert result["cpu_s"] < 0.2 * result["took_s"][0]


def test_a_message_of_a_late_program_takes_its_time_all_the_same(found):
    result = found("late_host", 2, 100, 1e6)
    assert result["took_s"][0] >= 100 * result["asked_s"]
    assert result["lateness"]["stood_still_wall_s"] >= 0.25


@pytest.mark.parametrize(
    ("case", "mpi", "says"),
    [
        ("disagree", "openmpi", ["ring_all_reduce", "rank 0", "rank 1"]),
        ("deadlock", "openmpi", ["deadlock", "rank 0"]),
        ("killed", "openmpi", ["rank 1", "died"]),
        ("killed", "mpich", ["rank 1", "died"]),
    ],
)
def test_a_run_that_cannot_go_on_says_why_and_ends(run_job, case, mpi, says):
    began = time.monotonic()
    job = run_job(["python", PROGRAM, case, "10", LINK, "4000"], ranks=3, mpi=mpi, limit_s=60)
    assert job.returncode != 0
    assert all(word in job.output for word in says), job.output
    assert time.monotonic() - began < 60


@pytest.mark.gpu
def test_training_on_a_gpu_keeps_its_time(run_job, tmp_path):
    line = ["emu", "train", "--clock", "wall", "--dilation", "500", "--steps", "2", "--output", str(tmp_path)]
    job = run_job([*line, "--device", "cupy"], ranks=2, limit_s=200)
    assert job.returncode == 0, job.output
    assert "EARLY" not in job.output
    assert "equal bit for bit" in job.output
