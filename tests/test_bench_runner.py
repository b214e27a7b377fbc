"""The benchmarks' shared runner, and the cost of importing emu."""

import json
import subprocess
import sys

import pytest
from jobs import ROOT

from bench.runner import Option, compare, measure, run, sweep, text


def test_functions_are_timed_in_turn_and_warm_up_does_not_count():
    called = []
    timings = compare({"a": lambda: called.append("a"), "b": lambda: called.append("b")}, repeats=2, warm_up=1)
    assert called == ["a", "b"] * 3
    assert [len(timing.samples_s) for timing in timings.values()] == [2, 2]


def test_a_timing_orders_its_samples():
    timing = measure(lambda: None, repeats=3, calls=10)
    assert 0 <= timing.best_s <= timing.median_s <= timing.worst_s


def test_a_sweep_has_a_row_a_point():
    rows = sweep([{"p": 2}, {"p": 4}], lambda p: {"messages": 2 * (p - 1)})
    assert rows == [{"p": 2, "messages": 2}, {"p": 4, "messages": 6}]


def ended(capsys, benchmark, argv, **options):
    with pytest.raises(SystemExit) as stop:
        run("Why?", benchmark, argv, **options)
    return stop.value.code, capsys.readouterr().out


def test_flags_reach_the_benchmark_in_their_type(capsys):
    status, out = ended(capsys, lambda n: {"n": n}, ["--json", "--n", "3"], n=Option(1, "how many"))
    assert json.loads(out)["n"] == 3
    assert status == 0


def test_a_failed_check_gives_status_one(capsys):
    status, out = ended(capsys, lambda: {"checks": {"sums are right": False}}, [])
    assert "FAILED sums are right" in out
    assert status == 1


def test_a_sweep_is_shown_as_a_table():
    shown = text("Why?", {"rows": [{"bytes": 8, "time_s": 0.12345}, {"bytes": 1024, "time_s": 2.0}]})
    assert shown.splitlines()[-3:] == ["  bytes  time_s", "      8  0.1235", "   1024       2"]


def test_importing_emu_is_measured():
    line = [sys.executable, "-m", "bench.imports", "--json", "--runs", "1"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=60)
    result = json.loads(done.stdout)
    assert result["extra_ms"] == result["with_emu_ms"] - result["baseline_ms"]


def test_a_table_shows_rows_that_lack_a_column():
    shown = text("How fast?", {"rows": [{"case": "ring", "aim": 6}, {"case": "tree", "aim_s": 2.0}]}).splitlines()
    assert [line.split() for line in shown[3:]] == [
        ["case", "aim", "aim_s"], ["ring", "6", "-"], ["tree", "-", "2"]
    ]  # fmt: skip
