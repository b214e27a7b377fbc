"""emu bench: sizes and bandwidths as nccl-tests count them, right results counted, emulated and measured apart."""

import json

import pytest
from click.testing import CliRunner

from emu.cli.bench import bench
from emu.errors import ConfigError
from emu.verify.bandwidth import bus_factor, parse_size, sizes
from emu.verify.contract import CONTRACTS

COLLECTIVES = [c for c in CONTRACTS if c != "barrier"]
LINK = ("--link", "latency=5 us, bandwidth=12 GB/s")


def run(*args):
    return CliRunner().invoke(bench, [str(a) for a in args], standalone_mode=False)


def rows(*args):
    result = run(*args, "--json")
    assert result.exception is None, result.output
    return json.loads(result.output)["rows"]


@pytest.mark.parametrize("p, factors", [
    (1, {"all_reduce": 0, "all_gather": 0, "broadcast": 1}),
    (2, {"all_reduce": 1, "all_gather": 1 / 2, "reduce": 1}),
    (3, {"all_reduce": 4 / 3, "reduce_scatter": 2 / 3, "scatter": 2 / 3}),
    (8, {"all_reduce": 7 / 4, "all_to_all": 7 / 8, "gather": 7 / 8}),
])  # fmt: skip
def test_bus_factors(p, factors):
    assert {c: bus_factor(c, p) for c in factors} == factors


def test_sizes_go_by_step_or_by_factor():
    assert list(sizes(8, 128, 1, 2)) == [8, 16, 32, 64, 128]
    assert list(sizes(parse_size("-b", "1M"), parse_size("-e", "3m"), 1 << 20, None)) == [1 << 20, 2 << 20, 3 << 20]
    assert list(sizes(7, 7, 0, None)) == [7]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_size_is_that_of_the_whole_buffer(collective):
    row = rows(collective, "-b", 4096, "-e", 4096, "-g", 4, "-n", 1)[0]
    chunked = collective in ("all_gather", "reduce_scatter", "scatter", "gather", "all_to_all")
    assert (row["size_bytes"], row["count"]) == (4096, 256 if chunked else 1024)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("p", (1, 3, 4))
def test_nothing_is_wrong(collective, p):
    for row in rows(collective, "-b", 60, "-e", 6000, "-f", 10, "-g", p, "-n", 1, "-d", "all", "-r", p - 1):
        ways = [way for way in (row["out_of_place"], row["in_place"]) if way]
        assert [way["wrong"] for way in ways] == [0] * len(ways)


@pytest.mark.parametrize("dtype", ("int8", "half", "bfloat16", "double"))
def test_every_operation_is_right(dtype):
    told = rows("all_reduce", "-b", 200, "-e", 200, "-g", 3, "-n", 1, "-d", dtype, "-o", "all")
    assert [(row["redop"], row["in_place"]["wrong"]) for row in told] == [
        ("sum", 0), ("prod", 0), ("max", 0), ("min", 0), ("avg", 0)
    ]  # fmt: skip


def test_emulated_time_is_the_closed_form_and_bandwidth_follows():
    row = rows("all_reduce", "-A", "ring", "-b", "12M", "-e", "12M", "-g", 4, "-n", 1, *LINK)[0]["in_place"]
    time_s = 6 * (5e-6 + 3 * 2**20 / 12e9)
    assert row["time_s"] == pytest.approx(time_s, rel=1e-9)
    assert row["busbw_bytes_per_s"] == pytest.approx(12 * 2**20 / time_s * 1.5, rel=1e-9)


def test_a_dry_run_times_many_gpus_without_bytes():
    row = rows("all_reduce", "-A", "ring", "-b", "1M", "-e", "1M", "-g", 256, "--dry", *LINK)[0]["in_place"]
    assert row["wall_s"] is None and row["wrong"] is None
    assert row["time_s"] == pytest.approx(510 * (5e-6 + 4096 / 12e9), rel=1e-9)


def test_the_table_has_the_columns_of_nccl_tests(tmp_path):
    output = run("all_gather", "-b", 8, "-e", 64, "-f", 2, "-g", 2, "-n", 1, "-J", tmp_path / "o.json",
                 "--plot", tmp_path / "o.png").output.splitlines()  # fmt: skip
    columns = "size count type redop root".split() + "time algbw busbw #wrong wall".split() * 2
    assert output[3].replace("#", "", 1).split() == columns
    assert output[-2] == "# Out of bounds values : 0 OK" and output[-1].startswith("# Avg bus bandwidth    : ")
    assert len(json.loads((tmp_path / "o.json").read_text())["rows"]) == 4
    assert (tmp_path / "o.png").stat().st_size > 1000


@pytest.mark.parametrize("args, message", [
    (("-b", "1X"), "-b: a size such as"),
    (("-b", "2M", "-e", "1M"), "first size must not exceed"),
    (("-f", "1", "-b", "8"), "a factor from 2 on"),
    (("-d", "floaty"), "-d: one of int8"),
    (("-o", "mean"), "-o: one of sum"),
    (("-r", "9"), "-r: a rank from 0 to 3"),
    (("-A", "rings"), "did you mean 'ring'"),
])  # fmt: skip
def test_bad_flags_say_what_must_hold(args, message):
    with pytest.raises(ConfigError, match=message):
        raise run("all_reduce", *args).exception


def test_ranks_may_be_processes(run_job):
    sizes = ["-b", "64", "-e", "4K", "-f", "8", "-n", "2"]
    job = run_job(["emu", "bench", "all_reduce", "-A", "ring", *sizes, "--json"], ranks=3)
    assert job.returncode == 0, job.output
    told = json.loads(job.stdout)
    assert told["ranks"] == 3 and told["wrong"] == 0 and all(r["in_place"]["wall_s"] > 0 for r in told["rows"])
