"""`emu replay`: a saved trace on another cluster."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from click.testing import CliRunner

from emu.cli.decisions import changed_decisions
from emu.cli.main import emu
from emu.cluster import link_cluster, load_cluster
from emu.collectives import ring_all_reduce
from emu.collectives.choose import choose
from emu.collectives.network import network_of
from emu.errors import ConfigError, EmuError, TraceError
from emu.gpu import Cost
from emu.parallel.training import Plan
from emu.parallel.training import train as main
from emu.program import run, run_here
from emu.trace import Trace


def train(gpu):
    """Two steps: a kernel that slower ranks take longer for, then an all-reduce of 4 MB."""
    gradients = gpu.zeros(1_000_000, purpose="gradients")
    for index in range(2):
        with gpu.step(index):
            gpu.launch(lambda x: None, gradients, cost=Cost(1e9 * (1 + gpu.rank), 0, "float32"), name="forward")
            ring_all_reduce(gpu.comm, gradients)


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "trace.emu"
    run(train, "pcie4", 4, way="local").trace.save(path)
    return str(path)


def call(*arguments):
    """Call the command line; raise what it raised."""
    result = CliRunner().invoke(emu, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result


def replayed(*arguments):
    return json.loads(call("replay", *arguments, "--json").stdout)


def test_a_trace_is_timed_on_its_own_cluster_by_default(trace):
    assert replayed(trace)["cluster"]["name"] == "pcie4"


def test_the_parts_of_every_step_sum_to_it(trace):
    found = replayed(trace, "--cluster", "tcp-10g", "--profile", "mpi")
    assert len(found["steps"]) == 2 and len(found["ranks"]) == 4
    for step in [found["step"], *found["steps"], *found["ranks"]]:
        parts = [v for k, v in step.items() if k.endswith("_s") and k not in ("time_s", "start_s", "end_s")]
        assert sum(parts) == step["time_s"]


def test_the_slowest_rank_makes_the_others_wait(trace):
    ranks = replayed(trace)["ranks"]
    waits = [rank["straggler_wait_s"] for rank in ranks]
    assert waits[0] > waits[1] > waits[2] > waits[3] == 0.0
    assert ranks[3]["compute_s"] == pytest.approx(4 * ranks[0]["compute_s"])


def test_a_step_takes_the_slowest_kernel_and_the_closed_form_of_its_ring(trace):
    link = "latency=5 us, bandwidth=1 GB/s"
    found = replayed(trace, "--link", link)
    gpu = link_cluster(link, 4).gpu(3)
    kernel_s = 4e9 / (gpu.peak("float32") * gpu.flops_efficiency)
    ring_s = 2 * 3 * (5e-6 + 4e6 / 4 / 1e9)
    assert found["steps"][0]["time_s"] == pytest.approx(kernel_s + ring_s, rel=1e-9)


def test_settings_change_the_cluster(trace):
    slow, fast = (replayed(trace, "--cluster", "tcp-10g", "--set", f"nic.bandwidth={b} Gb/s") for b in (1, 2))
    ratio = slow["step"]["exposed_communication_s"] / fast["step"]["exposed_communication_s"]
    assert ratio == pytest.approx(2, rel=0.1)


def test_the_critical_path_covers_the_whole_run(trace):
    found = replayed(trace)
    assert sum(row["time_s"] for row in found["critical_path"]) == pytest.approx(found["end_s"], rel=1e-12)


def test_the_text_has_the_step_the_links_and_the_critical_path(trace):
    text = call("replay", trace, "--cluster", "tcp-10g").stdout
    assert "on tcp-10g, profile ideal: an average step of 2" in text
    assert "exposed communication: tcp" in text
    assert "communication ring_all_reduce" in text


def test_output_holds_a_page_a_summary_a_timeline_and_a_plot(trace, tmp_path):
    call("replay", trace, "--output", str(tmp_path / "run"))
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "report.html",
        "step.svg",
        "summary.json",
        "timeline.json",
    ]
    events = json.loads((tmp_path / "run" / "timeline.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} >= {"GPU 0", "GPU 3", "links"}
    assert {"forward", "ring_all_reduce"} <= {e["name"] for e in events}


def test_a_ring_that_is_alone_does_not_amplify_perturbations(trace):
    found = replayed(trace, "--cluster", "tcp-10g", "--spread", "3")["spread"]
    assert found["runs"] == len(found["step_s"]) == 3
    assert 0.0 < found["spread_pct"] < 1e-6
    assert "3 runs with messages off by 1e-09" in call("replay", trace, "--spread", "3").stdout


def changed(path, tmp_path, **header):
    trace = Trace.load(path)
    target = tmp_path / "changed.emu"
    replace(trace, header={**trace.header, **header}).save(target)
    return str(target)


def test_a_trace_that_holds_answers_is_not_timed_elsewhere(trace, tmp_path):
    bound = changed(trace, tmp_path, marks={"order": "pcie4"})
    assert replayed(bound)["cluster"]["name"] == "pcie4"
    with pytest.raises(TraceError, match="asked for time or order and was answered on pcie4"):
        call("replay", bound, "--cluster", "tcp-10g")
    with pytest.raises(TraceError, match="asked for time or order"):
        call("replay", bound, "--set", "slow=0:0.5")


def test_a_trace_of_a_changed_cluster_says_that_its_name_is_not_all(tmp_path):
    path = tmp_path / "slow.emu"
    run(train, "pcie4", 2, way="local", slow="1:0.5").trace.save(path)
    assert "recorded on pcie4 with settings of its own" in call("replay", str(path)).stderr
    assert call("replay", str(path), "--set", "slow=1:0.5").stderr == ""


CHOICE = "all_reduce of 40000000 bytes on 4 ranks"


def test_a_program_that_would_decide_otherwise_is_not_timed_as_it_is(trace, tmp_path):
    decided = changed(trace, tmp_path, decisions={CHOICE: "tree", "loss scale overflows": False})
    with pytest.raises(TraceError, match=rf"decide otherwise on tcp-10g \({CHOICE}: \w+ instead of tree\); run it"):
        call("replay", decided, "--cluster", "tcp-10g")
    kept = call("replay", decided, "--cluster", "tcp-10g", "--keep-decisions")
    assert "instead of tree); timed as recorded" in kept.stderr


def test_a_decision_that_stays_is_no_matter(trace, tmp_path):
    same = choose("all_reduce", 4, 40_000_000, network_of(load_cluster("tcp-10g", gpus=4), range(4)))
    decided = changed(trace, tmp_path, decisions={CHOICE: same})
    assert call("replay", decided, "--cluster", "tcp-10g").stderr == ""


def test_a_training_that_would_decide_otherwise_is_recorded_again(trace, tmp_path):
    plan = Plan(algorithm="auto", steps=2)
    here = load_cluster("dgx-a100", gpus=4)
    program = {"name": "train", **asdict(plan)}
    _, recorded, _ = run_here(lambda gpu: main(gpu, plan), here, 4, dry=True, program=program)
    recorded.save(tmp_path / "train.emu")
    result = call("replay", str(tmp_path / "train.emu"), "--cluster", "tcp-10g", "--json")
    assert "recorded again, dry" in result.stderr
    found = json.loads(result.stdout)
    assert found["recorded_on"] == "dgx-a100"
    there = load_cluster("tcp-10g", gpus=4)
    assert changed_decisions(recorded, there) and not changed_decisions(
        replace(recorded, header={**recorded.header, "decisions": found["decisions"]}), there
    )
    kept = replayed(str(tmp_path / "train.emu"), "--cluster", "tcp-10g", "--keep-decisions")
    assert kept["step"]["time_s"] != found["step"]["time_s"]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (["--cluster", "tcp-10"], ConfigError, "did you mean"),
        (["--set", "nic.bandwith=10 Gb/s"], ConfigError, "bandwidth"),
        (["--set", "nic.bandwidth=10"], ConfigError, "no unit"),
        (["--profile", "nickel"], ConfigError, "nickel"),
        (["--output", "/proc/none"], ConfigError, "/proc/none"),
    ],
)
def test_bad_options_are_refused(trace, arguments, error, says):
    with pytest.raises(error, match=says):
        call("replay", trace, *arguments)


def test_a_cut_trace_is_refused(trace, tmp_path):
    path = tmp_path / "cut.emu"
    with open(trace, "rb") as source:
        path.write_bytes(source.read()[:-100])
    with pytest.raises(TraceError, match="cut off"):
        call("replay", str(path))


def test_a_missing_trace_is_refused():
    with pytest.raises(EmuError, match="readable trace"):
        call("replay", "nowhere.emu")
