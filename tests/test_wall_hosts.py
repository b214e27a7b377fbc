"""The wall clock over several hosts: one referee, reached by TCP, and clocks compared by round trips."""

import json
import sys
from pathlib import Path

import pytest

from emu.wall.hosts import compare_clocks

pytestmark = pytest.mark.alone

pytest_plugins = ("hosts",)
PROGRAM = str(Path(__file__).with_name("wall_program.py"))
LINK = "latency=10 us, bandwidth=10 Gb/s"


@pytest.mark.parametrize("n", [2, 3])
def test_a_message_between_hosts_is_never_early(hosts, n):
    made = hosts(n)
    job = made.run([sys.executable, PROGRAM, "one_message", "200", LINK, "1e6"], ranks=n, slots=1, limit_s=100)
    assert job.returncode == 0, job.output
    found = json.loads(next(line for line in job.stdout.splitlines() if line.startswith("FOUND "))[6:])
    off_s = found["lateness"]["clocks_off_wall_s"]
    assert 0 < off_s < 0.1
    assert all(took_s >= 200 * found["asked_s"] - off_s for took_s in found["took_s"])


@pytest.mark.parametrize(
    ("mpi", "says"),
    [
        ("openmpi", "rank 1: every rank must reach its end, got one whose process has died"),
        ("mpich", "BAD TERMINATION"),  # its launcher tells the process and its host, and ends the others itself
    ],
)
def test_a_rank_that_dies_on_another_host_ends_all_and_is_named(hosts, mpi, says):
    job = hosts(2).run(["python", PROGRAM, "killed", "10", LINK, "4000"], ranks=2, mpi=mpi, slots=1, limit_s=60)
    assert job.returncode != 0
    assert says in job.output, job.output


def test_clocks_are_compared_by_the_shortest_round_trip():
    here, trips = [100.0], iter([(0.5, 0.1), (0.001, 0.001), (0.2, 0.4)] * 8)

    def ask():
        there, back = next(trips)
        here[0] += there
        other = here[0] + 1000.0
        here[0] += back
        return other

    clock = compare_clocks(lambda: here[0], ask)
    assert clock.ahead_s == pytest.approx(1000.0)
    assert clock.error_s == pytest.approx(0.001)
