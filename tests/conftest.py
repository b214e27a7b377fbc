"""What every test may use.

`world` is a communicator of a test's own, under mpirun; `run_job` and `start_job` start programs under mpirun
from a serial test; `hosts` makes several hosts on this machine.
"""

import jobs
import pytest

pytest_plugins = ("mpi_verdicts", "hosts")


@pytest.fixture
def run_job():
    return jobs.run_job


@pytest.fixture
def start_job():
    """Like `jobs.start_job`; whatever still runs at the end of the test is killed."""
    started = []

    def start(*args, **kwargs):
        started.append(jobs.start_job(*args, **kwargs))
        return started[-1]

    yield start
    for job in started:
        job.kill()


@pytest.fixture
def emu(run_job, tmp_path):
    """Run `emu` with some words, in an empty directory: on ranks, or without mpirun."""

    def run(*words, ranks=None, mpi="openmpi", env=None):
        return run_job(["emu", *map(str, words)], ranks, mpi, env=env, cwd=tmp_path)

    return run


def pytest_collection_modifyitems(items):
    """Skip tests for a real GPU where cupy sees none, and say so."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _cupy_sees_a_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a real GPU that cupy sees"))


def _cupy_sees_a_gpu():
    try:
        import cupy

        return cupy.cuda.runtime.getDeviceCount() > 0
    except Exception:
        return False
