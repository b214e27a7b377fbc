"""The harness itself: pytest under mpirun, on small test files that pass, fail, hang or disagree."""

import textwrap

import pytest
from jobs import ROOT


@pytest.fixture
def run_pytest(run_job, tmp_path):
    """Run a test file on 3 ranks under the harness."""

    def run(body: str, mpi: str = "openmpi", limit_s: float = 60.0):
        header = "import pytest\npytestmark = pytest.mark.mpi\n"
        (tmp_path / "test_inner.py").write_text(header + textwrap.dedent(body))
        line = ["python", "-m", "pytest", "--with-mpi", "-p", "mpi_verdicts", "-q", "-rN", "--color=no"]
        line.append("test_inner.py")
        path = f"{ROOT}:{ROOT / 'tests'}"
        return run_job(line, ranks=3, mpi=mpi, limit_s=limit_s, env={"PYTHONPATH": path}, cwd=tmp_path)

    return run


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_a_failure_on_one_rank_fails_the_test_with_its_traceback_shown_once(run_pytest, mpi):
    ended = run_pytest("def test_it(world):\n    assert world.rank + 100 != 101", mpi)
    assert ended.returncode != 0
    assert ended.output.count("assert (1 + 100) != 101") == 1
    assert "failed on rank 1 of 3" in ended.output
    assert "1 failed" in ended.stdout


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_a_failure_does_not_leave_the_others_waiting_in_mpi(run_pytest, mpi):
    ended = run_pytest(
        """
        def test_it(world):
            assert world.rank != 2, "the sender fails"
            world.recv(source=2)
        """,
        mpi,
    )
    assert ended.returncode != 0
    assert ended.output.count("the sender fails\n") == 1
    assert "rank 0, 1 had not ended it" in ended.output


def test_a_hanging_test_prints_the_stack_of_every_rank(run_pytest):
    ended = run_pytest(
        """
        @pytest.mark.timeout(5)
        def test_it(world):
            world.recv(source=(world.rank + 1) % world.size)
        """
    )
    assert ended.returncode != 0
    for rank in range(3):
        assert f"rank {rank} still runs after 5 s" in ended.output
    assert "in test_it" in ended.output


def test_a_test_skipped_on_one_rank_only_fails(run_pytest):
    ended = run_pytest("def test_it(world):\n    if world.rank: pytest.skip('me')")
    assert "the ranks differ: passed, skipped, skipped" in ended.output
    assert ended.returncode != 0


def test_messages_of_one_test_do_not_reach_the_next(run_pytest):
    ended = run_pytest(
        """
        def test_leaves_a_message(world):
            if world.rank == 0: world.isend("stale", 1)

        def test_gets_its_own(world):
            if world.rank == 0: world.send("fresh", 1)
            if world.rank == 1: assert world.recv(source=0) == "fresh"
        """
    )
    assert ended.returncode == 0, ended.output
    assert "2 passed" in ended.stdout


def test_tests_without_the_mark_do_not_run_under_mpirun(run_pytest):
    ended = run_pytest("pytestmark = []\ndef test_it(): pass\n@pytest.mark.mpi\ndef test_mpi(world): pass")
    assert "1 passed, 1 deselected" in ended.stdout


@pytest.mark.mpi
def test_every_rank_is_there(world):
    assert world.allgather(world.rank) == list(range(world.size))
