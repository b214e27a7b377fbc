"""`emu train` as a user starts it: what it prints, what it leaves, and that times do not depend on how."""

import json

import numpy as np
import pytest

from emu.trace import Trace

SHORT = ["--steps", "3", "--batch", "16", "--no-one-rank"]


@pytest.fixture(scope="module")
def summaries(tmp_path_factory):
    """Run `emu train` once each way; return the JSON objects."""
    from jobs import run_job

    known = {}

    def summary(way, *words):
        if (way, words) not in known:
            ranks, mpi = {"openmpi": (4, "openmpi"), "mpich": (4, "mpich"), "local": (None, "openmpi")}[way]
            local = ["--local", "4"] if way == "local" else []
            folder = tmp_path_factory.mktemp(way)
            ended = run_job(["emu", "train", *local, *words, "--json"], ranks, mpi, cwd=folder)
            assert ended.returncode == 0, ended.output
            found = json.loads(ended.stdout)
            known[way, words] = found | {"folder": folder}
        return known[way, words]

    return summary


def times(found):
    """Everything emulated in a summary."""
    return [found["step"], found["step_by_rank"], found["links"], found["bytes_sent_per_gpu"]]


def test_the_plain_line_works_as_written(run_job, tmp_path):
    ended = run_job(["/bin/bash", "-c", "mpirun -n 4 emu train"], None, "openmpi", cwd=tmp_path)
    assert ended.returncode == 0, ended.output
    for said in ("the same training", "equal bit for bit", "where an average step went", "NVLink 4", "closed form"):
        assert said in ended.stdout
    assert "step 20/20" in ended.stderr


@pytest.mark.parametrize("words", [(), ("--strategy", "ps", "--server", "dedicated", "--cluster", "tcp-10g")])
def test_emulated_times_are_the_same_bits_whatever_carries_the_bytes(summaries, words):
    open_mpi, local = (summaries(way, *SHORT, *words) for way in ("openmpi", "local"))
    assert times(open_mpi) == times(local)
    assert open_mpi["losses"] == pytest.approx(local["losses"], rel=1e-6)


def test_mpich_gives_the_same_bits_too(summaries):
    assert times(summaries("mpich", *SHORT)) == times(summaries("local", *SHORT))


def test_the_summary_has_what_a_reader_needs(summaries):
    found = summaries("local", *SHORT)
    assert {"loss", "accuracy", "bytes_sent_per_gpu", "buckets", "cluster", "step", "links", "trace", "wall_s",
            "versions", "command", "seed", "loss_one_rank"} <= set(found)  # fmt: skip
    assert len(found["buckets"]) >= 3
    assert found["cluster"]["sha256"] and found["versions"]["numpy"] == np.__version__
    gradients = 4 * found["parameters"]
    assert found["bytes_sent_per_gpu"] == pytest.approx([1.5 * gradients] * 4, rel=1e-5)


def test_the_parts_of_a_step_sum_to_it_exactly(summaries):
    found = summaries("local", *SHORT)
    for step in [found["step"], *found["step_by_rank"]]:
        parts = [value for key, value in step.items() if key.endswith("_s") and key != "time_s"]
        assert sum(parts) == step["time_s"]


def test_a_lone_all_reduce_takes_its_closed_form_on_every_link(summaries):
    rows = summaries("local", *SHORT)["links"]
    assert len(rows) == 18
    for row in rows:
        assert row["all_reduce_s"] == pytest.approx(row["closed_form_s"], rel=1e-9), row


def test_links_differ_at_least_five_fold_in_exposed_communication(summaries):
    exposed = [row["exposed_communication_s"] for row in summaries("local", *SHORT)["links"]]
    assert max(exposed) >= 5 * min(exposed) > 0


def test_a_run_leaves_its_trace_summary_and_timeline(summaries):
    found = summaries("local", *SHORT)
    folder = found["folder"] / found["output"]
    assert {path.name for path in folder.iterdir()} == {"trace.emu", "summary.json", "timeline.json"}
    assert Trace.load(folder / "trace.emu").world_size == 4
    told = json.loads((folder / "summary.json").read_text())
    assert told["step"] == found["step"]
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    assert {event["ph"] for event in events} >= {"M", "X"}


def test_emu_starts_mpirun_itself(run_job, tmp_path):
    ended = run_job(["emu", "train", "-n", "2", *SHORT, "--no-what-if", "--json"], None, "openmpi", cwd=tmp_path)
    assert ended.returncode == 0, ended.output
    assert json.loads(ended.stdout)["ranks"] == 2


def test_a_dry_run_takes_the_whole_cluster_and_the_same_time(run_job, summaries, tmp_path):
    words = ["train", "--dry", "--cluster", "dgx-a100:2", "--no-what-if", *SHORT, "--json"]
    ended = run_job(["emu", *words], None, "openmpi", cwd=tmp_path)
    assert ended.returncode == 0, ended.output
    found = json.loads(ended.stdout)
    assert found["ranks"] == 16 and found["loss"] is None
    ended = run_job(["emu", "train", "--dry", "-n", "4", *SHORT, "--json"], None, "openmpi", cwd=tmp_path)
    assert times(json.loads(ended.stdout)) == times(summaries("local", *SHORT))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train"], "mpirun -n 4 emu train"),
        (["train", "--local", "1"], "at least 2"),
        (["train", "--local", "2", "-n", "2"], "one of -n and --local"),
        (["train", "--local", "2", "--bucket", "0"], "--bucket"),
        (["train", "--local", "2", "--bucket", "25"], "--bucket"),
        (["train", "--local", "2", "--set", "nic"], "KEY=VALUE"),
        (["train", "--local", "2", "--profile", "gloop"], "gloo"),
        (["train", "--local", "2", "--device", "tpu"], "numpy"),
    ],
)
def test_what_cannot_be_is_one_line_and_status_2(run_job, tmp_path, words, said):
    ended = run_job(["emu", *words], None, "openmpi", cwd=tmp_path)
    assert ended.returncode == 2 and said in ended.stderr and "Traceback" not in ended.output
    assert len(ended.stderr.strip().splitlines()) == 1


def test_slow_ranks_and_degraded_links_are_declared_on_the_command_line(run_job, tmp_path):
    def step(*words):
        line = ["emu", "train", "--dry", "-n", "4", "--steps", "2", "--no-what-if", *words, "--json"]
        return json.loads(run_job(line, None, "openmpi", cwd=tmp_path).stdout)

    plain, slow = step(), step("--slow", "3:0.5", "--slow", "2:0.8")
    assert slow["step_by_rank"][3]["compute_s"] == pytest.approx(2 * plain["step_by_rank"][3]["compute_s"], rel=1e-6)
    assert slow["step_by_rank"][2]["compute_s"] == pytest.approx(
        plain["step_by_rank"][2]["compute_s"] / 0.8, rel=1e-6
    )
    assert slow["step"]["straggler_wait_s"] > plain["step"]["straggler_wait_s"]
    tcp = ["--cluster", "tcp-10g"]
    degraded = step(*tcp, "--degrade", "node0.nic0:0.25")
    assert degraded["step"]["time_s"] > 3 * step(*tcp)["step"]["time_s"]
