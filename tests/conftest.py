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
