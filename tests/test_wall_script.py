"""An mpi4py script, live."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

SCRIPT = str(Path(__file__).with_name("wall_script.py"))


def test_an_mpi4py_script_runs_live(run_job, tmp_path):
    line = ["python", "-m", "emu", "run", "--clock", "wall", "--dilation", "100", "--cluster", "tcp-10g"]
    job = run_job([*line, "--output", str(tmp_path / "run"), SCRIPT], ranks=3, limit_s=100)
    assert job.returncode == 0, job.output
    took_s, host_s = (float(word) for word in re.search(r"took ([\d.]+) host ([\d.]+)", job.stdout).groups())
    assert host_s >= 0.99 * 100 * took_s > 0
    assert "dilation 100" in job.stdout
