"""Checkpoints: whole or not at all, resumed with the same bits, and on another number of ranks."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from emu.cluster import load_cluster
from emu.errors import ConfigError
from emu.nn import models
from emu.parallel.sharded import Stage3
from emu.parallel.training import Plan, check, train
from emu.program import run_here

PLAN = Plan(steps=6, batch=24, dtype="float32", stage3=Stage3(param_persistence_threshold=100))
STRATEGIES = ["ddp", "zero1", "zero2", "zero3"]


@pytest.fixture(autouse=True)
def small_mlp(monkeypatch):
    monkeypatch.setattr(models.mlp, "__defaults__", ((64, 96, 160, 96, 32, 10),))


def run(plan, ranks=3):
    check(plan, ranks)
    return run_here(lambda gpu: train(gpu, plan), load_cluster("pcie4", {}, max(ranks, 2)), ranks)[0][0]


@pytest.mark.parametrize(("model", "dtype"), [("mlp", "float32"), ("mlp", "float16"), ("cnn", "float32")])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_ranks_go_on_with_the_same_bits(strategy, model, dtype, tmp_path):
    plan = replace(PLAN, strategy=strategy, model=model, dtype=dtype, steps=4, bucket_bytes=20_000)
    whole = run(plan)
    run(replace(plan, steps=2, checkpoint=str(tmp_path)))
    resumed = run(replace(plan, checkpoint=str(tmp_path), resume=True))
    assert resumed.fingerprint == whole.fingerprint
    assert resumed.losses == whole.losses[2:]


@pytest.mark.parametrize("before", STRATEGIES)
@pytest.mark.parametrize(("after", "ranks"), [("zero3", 2), ("ddp", 4), ("zero1", 1)])
def test_another_number_of_ranks_and_another_strategy_go_on(before, after, ranks, tmp_path):
    plan = replace(PLAN, dtype="float64", strategy=before)
    run(replace(plan, steps=3, checkpoint=str(tmp_path)))
    resumed = run(replace(plan, strategy=after, checkpoint=str(tmp_path), resume=True), ranks)
    np.testing.assert_allclose(resumed.losses, run(plan).losses[3:], rtol=1e-10)


def test_old_checkpoints_go_and_a_half_written_one_is_ignored(tmp_path):
    run(replace(PLAN, steps=5, checkpoint=str(tmp_path), checkpoint_every=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]
    (tmp_path / "step-00000005" / "manifest.json").unlink()
    (tmp_path / ".step-00000006.writing").mkdir()
    assert len(run(replace(PLAN, checkpoint=str(tmp_path), resume=True)).losses) == PLAN.steps - 4


@pytest.mark.parametrize(("change", "text"), [
    ({"seed": 1}, "seed 0 was trained, got 1"), ({"batch": 12}, "batch 24 was trained, got 12"),
    ({"dtype": "float64"}, "dtype 'float32' was trained"),
])  # fmt: skip
def test_another_run_is_refused(change, text, tmp_path):
    run(replace(PLAN, steps=1, checkpoint=str(tmp_path)))
    with pytest.raises(ConfigError, match=text):
        run(replace(PLAN, checkpoint=str(tmp_path), resume=True, **change))


def test_resuming_from_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="resume: a checkpoint in .* is expected, got none"):
        run(replace(PLAN, checkpoint=str(tmp_path), resume=True))


def test_a_kill_at_any_moment_leaves_a_good_checkpoint(tmp_path):
    folder = tmp_path / "saved"
    code = (
        "from emu.cluster import load_cluster; from emu.nn import models; from emu.program import run_here\n"
        "from emu.parallel.training import Plan, train\n"
        "models.mlp.__defaults__ = ((64, 96, 160, 96, 32, 10),)\n"
        f"plan = Plan(steps=4000, batch=24, strategy='zero2', checkpoint={str(folder)!r}, checkpoint_every=1)\n"
        "run_here(lambda gpu: train(gpu, plan), load_cluster('pcie4', {}, 3), 3)\n"
    )
    seen = 0
    for moment in (0.0, 0.013, 0.03):
        child = subprocess.Popen([sys.executable, "-c", code])
        deadline = time.monotonic() + 60
        while not list(folder.glob("step-*")) and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(moment)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        last = max(int(path.name[5:]) for path in folder.glob("step-*"))
        plan = Plan(steps=last + 1, batch=24, strategy="zero2", checkpoint=str(folder), resume=True)
        assert len(run(plan).losses) == 1
        seen += 1
        for path in folder.glob("step-*"):
            for each in path.iterdir():
                each.unlink()
            path.rmdir()
    assert seen == 3
