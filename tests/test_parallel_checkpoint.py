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
from emu.nn import data, models
from emu.parallel import tasks
from emu.parallel.sharded import Stage3
from emu.parallel.training import Plan, check, train
from emu.program import run_here

PLAN = Plan(steps=6, batch=24, dtype="float32", stage3=Stage3(param_persistence_threshold=100))
STRATEGIES = ["ddp", "zero1", "zero2", "zero3", "ps"]


@pytest.fixture(autouse=True)
def small_models(monkeypatch):
    monkeypatch.setattr(models.mlp, "__defaults__", ((64, 96, 160, 96, 32, 10),))
    monkeypatch.setattr(models.gpt, "__kwdefaults__", models.gpt.__kwdefaults__ | {"depth": 2, "width": 32})
    made = replace(tasks.TASKS["gpt"], load=lambda _: data.text(16, characters=20_000))
    monkeypatch.setitem(tasks.TASKS, "gpt", made)


def run(plan, ranks=3):
    check(plan, ranks)
    return run_here(lambda gpu: train(gpu, plan), load_cluster("pcie4", {}, max(ranks, 2)), ranks)[0][0]


@pytest.mark.parametrize("change", [
    *({"strategy": strategy} for strategy in STRATEGIES), {"strategy": "ps", "server": "dedicated"},
    {"dtype": "float16"}, {"strategy": "zero3", "dtype": "float16"}, {"model": "cnn"},
    {"model": "cnn", "strategy": "zero2"}, {"hook": "topk"}, {"hook": "onebit"}, {"hook": "powersgd"},
    {"hook": "topk", "dtype": "bfloat16"},
])  # fmt: skip
def test_the_same_ranks_go_on_with_the_same_bits(change, tmp_path):
    plan = replace(PLAN, steps=4, bucket_bytes=20_000, **change)
    whole = run(plan)
    before = 1 if "strategy" in change else 2  # before buckets are rebuilt, or after
    run(replace(plan, steps=before, checkpoint=str(tmp_path)))
    resumed = run(replace(plan, checkpoint=str(tmp_path), resume=True))
    assert resumed.fingerprint == whole.fingerprint
    assert resumed.losses == whole.losses[before:]


@pytest.mark.parametrize("hook", ["topk", "onebit", "powersgd"])
@pytest.mark.parametrize("ranks", [2, 5])
def test_what_a_hook_has_yet_to_send_is_shared_out_among_another_number_of_ranks(hook, ranks, tmp_path):
    from emu.parallel import checkpoint
    from emu.parallel.training import Trainer

    plan = replace(PLAN, hook=hook, checkpoint=str(tmp_path))
    run(replace(plan, steps=3))

    def kept(gpu):
        trainer = Trainer(gpu, replace(plan, resume=True))
        checkpoint.load(trainer)
        found = trainer.strategy.hook.kept
        return {p.name: array for (kind, p), array in found.items() if kind == "residual"}, dict(
            (i, (trainer.strategy.buckets.all[i], array)) for (kind, i), array in found.items() if kind == "server"
        )

    def owed(count):
        told = run_here(kept, load_cluster("pcie4", {}, 5), count)[0]
        total = sum(float(array.sum(dtype="f8")) for residuals, _ in told for array in residuals.values())
        for rank, (_, servers) in enumerate(told):
            for bucket, array in servers.values():
                total += float(array[: max(0, bucket.size - rank * array.size)].sum(dtype="f8"))
        return total

    assert owed(ranks) == pytest.approx(owed(3), rel=1e-4, abs=1e-4) and owed(3) != 0


@pytest.mark.parametrize(("before", "after"), [((2, 1), (4, 1)), ((2, 2), (1, 1)), ((1, 1), (2, 2)), ((4, 1), (2, 2))])
@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_another_number_of_parts_and_stages_goes_on(before, after, strategy, tmp_path):
    plan = replace(PLAN, model="gpt", dtype="float64", batch=8, steps=4, strategy=strategy)
    expected = run(plan, 1).losses
    run(replace(plan, steps=2, tp=before[0], pp=before[1], checkpoint=str(tmp_path)), 4)
    resumed = run(replace(plan, tp=after[0], pp=after[1], checkpoint=str(tmp_path), resume=True), 4)
    np.testing.assert_allclose(resumed.losses, expected[2:], rtol=1e-9)


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
    ({"dtype": "float64"}, "dtype 'float32' was trained"), ({"hook": "none"}, "hook 'topk' was trained, got 'none'"),
])  # fmt: skip
def test_another_run_is_refused(change, text, tmp_path):
    run(replace(PLAN, steps=1, hook="topk", checkpoint=str(tmp_path)))
    with pytest.raises(ConfigError, match=text):
        run(replace(PLAN, checkpoint=str(tmp_path), resume=True, **{"hook": "topk"} | change))


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
