"""`emu agree`: one program under both clocks, operation by operation."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

PROGRAM = str(Path(__file__).with_name("wall_main.py"))


@pytest.mark.parametrize("ranks", [2, 4])
def test_both_clocks_agree_operation_by_operation(run_job, tmp_path, ranks):
    plot = tmp_path / "ends.png"
    line = ["python", "-m", "emu", "agree", PROGRAM, "--cluster", "tcp-10g", "--dilation", "200", "--json"]
    job = run_job([*line, "--plot", str(plot)], ranks=ranks, limit_s=100)
    assert job.returncode == 0, job.output
    found = json.loads(job.stdout[job.stdout.index("{") :])
    assert found["early"] == 0
    assert 0 <= found["error_pct"] < 50  # of a host that tests share
    assert not found["amplifies"]
    counts = {line["operation"]: line["count"] for line in found["lines"]}
    assert counts["ring_all_reduce"] == 3 * ranks
    assert counts["update"] == 6 * ranks
    assert plot.stat().st_size > 1000


def test_a_program_without_main_is_refused(run_job, tmp_path):
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    job = run_job(["python", "-m", "emu", "agree", str(path), "-n", "2"])
    assert job.returncode == 2
    assert "must define main(gpu)" in job.stderr
