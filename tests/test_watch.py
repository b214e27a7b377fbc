"""The deadline of a rank's waits."""

import threading
from pathlib import Path

import pytest

from emu.comm.watch import Watch

PROGRAM = str(Path(__file__).with_name("watch_program.py"))


@pytest.fixture
def watched():
    """Return a watch with a short deadline, what it told, and an event for when it has looked a while."""
    watch, told, looked = Watch(deadline_s=0.2), [], threading.Event()

    def look(waited_s):
        if waited_s > 0.5:
            looked.set()

    watch.start(lambda s: told.append("warned"), lambda s: (told.append("expired"), looked.set()), look)
    yield watch, told, looked
    watch.stop()


def test_a_wait_is_told_and_then_ends_the_job(watched):
    watch, told, looked = watched
    watch.begin((None, "messages", None))
    assert looked.wait(30)
    assert told[-1] == "expired"


def test_a_patient_wait_is_looked_at_but_has_no_deadline(watched):
    watch, told, looked = watched
    watch.begin((None, "the end", None), patient=True)
    assert looked.wait(30)
    assert told == []


def test_patience_ends_with_its_wait(watched):
    watch, told, looked = watched
    watch.begin((None, "the end", None), patient=True)
    watch.end()
    assert watch.waiting is None and not watch.patient
    watch.begin((None, "messages", None))
    assert looked.wait(30)
    assert told[-1] == "expired"


@pytest.mark.parametrize("case", ["rank_0_reports", "a_long_emulated_second"])
def test_waits_without_a_deadline_are_not_warned_of(run_job, case):
    job = run_job(["python", PROGRAM, case], ranks=3, limit_s=100)
    assert job.returncode == 0, job.output
    assert job.stdout.count("ended") == 3
    assert "has waited" not in job.stderr and "Traceback" not in job.stderr
