"""`emu sweep`: one trace on many clusters."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from emu.cli.main import emu
from emu.cli.sweep import combinations
from emu.collectives import ring_all_reduce
from emu.errors import ConfigError
from emu.program import run


def reduce(gpu):
    ring_all_reduce(gpu.comm, gpu.zeros(1_000_000))


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace.emu"
    run(reduce, "tcp-10g", 4, way="local").trace.save(path)
    return str(path)


def call(*arguments):
    result = CliRunner().invoke(emu, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_axes_are_combined_and_the_last_unit_stands_for_all():
    assert combinations(["nic.bandwidth=10,25 Gb/s", "transport=tcp,rdma"]) == [
        {"nic.bandwidth": "10 Gb/s", "transport": "tcp"},
        {"nic.bandwidth": "10 Gb/s", "transport": "rdma"},
        {"nic.bandwidth": "25 Gb/s", "transport": "tcp"},
        {"nic.bandwidth": "25 Gb/s", "transport": "rdma"},
    ]


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("nic.bandwidth=800 Mb/s, 1 Gb/s", ["800 Mb/s", "1 Gb/s"]),
        ("nodes=1,2", ["1", "2"]),
        ("cluster=dgx-a100:2,latency=5 us", ["dgx-a100:2", "latency=5 us"]),
        ("cluster=latency=5 us, bandwidth=1 GB/s; tcp-10g", ["latency=5 us, bandwidth=1 GB/s", "tcp-10g"]),
        ("transport=tcp", ["tcp"]),
    ],
)
def test_values_of_an_axis(axis, values):
    assert [list(point.values())[0] for point in combinations([axis])] == values


@pytest.mark.parametrize("axis", ["nic.bandwidth", "=1", "nic.bandwidth=", "nic.bandwidth=1,,2"])
def test_an_axis_without_key_or_values_is_refused(axis):
    with pytest.raises(ConfigError, match="KEY=VALUE,VALUE"):
        combinations([axis])


def test_an_axis_given_twice_is_refused():
    with pytest.raises(ConfigError, match="'transport' twice"):
        combinations(["transport=tcp", "transport=rdma"])


def test_a_faster_link_is_faster_and_the_parts_sum(trace):
    axes = ["nic.bandwidth=10,25,100 Gb/s", "transport=tcp,rdma"]
    rows = json.loads(call("sweep", trace, *axes, "--json"))["rows"]
    assert len(rows) == 6
    for transport in ("tcp", "rdma"):
        times = [row["step"]["time_s"] for row in rows if row["settings"]["transport"] == transport]
        assert times == sorted(times, reverse=True) and len(set(times)) == 3
    for row in rows:
        parts = [v for k, v in row["step"].items() if k.endswith("_s") and k != "time_s"]
        assert sum(parts) == row["step"]["time_s"]
    assert len({row["sha256"] for row in rows}) == 6


def test_clusters_and_profiles_can_be_axes(trace):
    rows = json.loads(call("sweep", trace, "cluster=pcie4,tcp-10g", "profile=ideal,mpi", "--json"))["rows"]
    assert [row["cluster"] for row in rows] == ["pcie4", "pcie4", "tcp-10g", "tcp-10g"]
    assert rows[3]["step"]["time_s"] > rows[2]["step"]["time_s"]


def test_the_table_compares_with_the_best(trace):
    half = "latency=10 us, bandwidth=1 GB/s; latency=5 us, bandwidth=2 GB/s"
    lines = call("sweep", trace, f"cluster={half}").splitlines()
    assert [line.split()[-1] for line in lines if "bandwidth=" in line] == ["2.00x", "1.00x"]


@pytest.mark.parametrize("axis", ["nic.bandwidth=10,20 Gb/s", "transport=tcp,rdma"])
def test_output_holds_the_rows_and_their_plots(trace, tmp_path, axis):
    call("sweep", trace, axis, "--output", str(tmp_path), "--plot", str(tmp_path / "more.pdf"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["more.pdf", "sweep.json", "sweep.png", "sweep.svg"]
    assert len(json.loads((tmp_path / "sweep.json").read_text())["rows"]) == 2


def test_an_unknown_setting_is_refused(trace):
    with pytest.raises(ConfigError, match="did you mean"):
        call("sweep", trace, "nic.bandwith=10,20 Gb/s")


def test_a_plot_that_cannot_be_drawn_is_refused_before_any_work(trace):
    with pytest.raises(ConfigError, match="must end in"):
        call("sweep", "no-such-trace", "transport=tcp", "--plot", "plot.gif")


SLOW = ["--set", "nic.bandwidth=40 Gb/s", "--set", "transport.latency=300 us"]


def test_a_sweep_of_buckets_records_anew_and_its_best_is_neither_the_smallest_nor_the_largest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = ["--dry", "--model", "gpt2", "--cluster", "dgx-a100:2", "--batch", "16", "--dtype", "fp32", "--no-what-if"]
    call("train", *plan, "--output", "run", *SLOW)
    swept = ["run/trace.emu", "bucket=1,25,1000 MiB", "--plot", "buckets.svg", *SLOW, "--json"]
    steps = [row["step"] for row in json.loads(call("sweep", *swept))["rows"]]
    times = [step["time_s"] for step in steps]
    assert min(times[0], times[2]) > 1.05 * times[1]
    assert max(step["exposed_communication_s"] for step in steps) > 2 * steps[1]["exposed_communication_s"]
    assert (tmp_path / "buckets.svg").stat().st_size > 1000
    trained = json.loads(call("train", *plan, "--bucket", "1000 MiB", "--json", *SLOW))
    assert trained["step"] == steps[2]


def test_a_sweep_over_what_is_not_on_the_way_says_so(trace):
    said = "all of these take the same"
    assert said in call("sweep", trace, "--cluster", "dgx-a100", "nic.bandwidth=10,100 Gb/s")
    assert said not in call("sweep", trace, "--cluster", "tcp-10g", "nic.bandwidth=10,100 Gb/s")
