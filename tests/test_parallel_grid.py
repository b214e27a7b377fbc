"""Tensor and pipeline parallel: the same training on every grid of ranks, its messages, its bubble, its precision."""

from dataclasses import replace

import numpy as np
import pytest

from emu.cluster import load_cluster
from emu.errors import ConfigError
from emu.nn import models
from emu.parallel.pipeline import cut, passes
from emu.parallel.sharded import Stage3
from emu.parallel.training import Plan, check, train
from emu.program import replay, run_here

PLAN = Plan(model="gpt", steps=3, batch=8, dtype="float64", stage3=Stage3(param_persistence_threshold=0))


@pytest.fixture(autouse=True)
def small_gpt(monkeypatch):
    """A GPT of three narrow blocks on short texts, four heads."""
    from emu.nn import data
    from emu.parallel import tasks

    defaults = models.gpt.__kwdefaults__ | {"depth": 3, "width": 32}
    monkeypatch.setattr(models.gpt, "__kwdefaults__", defaults)
    made = replace(tasks.TASKS["gpt"], load=lambda _: data.text(16, characters=20_000))
    monkeypatch.setitem(tasks.TASKS, "gpt", made)


def run(plan, ranks, dry=False):
    check(plan, ranks, dry)
    return run_here(lambda gpu: train(gpu, plan), load_cluster("dgx-a100", {}, max(ranks, 2)), ranks, dry=dry)


@pytest.fixture(scope="module")
def alone():
    known = {}

    def losses(plan):
        if plan not in known:
            known[plan] = run(plan, 1)[0][0].losses
        return known[plan]

    return losses


GRIDS = [(1, 2, 1), (2, 2, 1), (4, 1, 2), (1, 4, 3), (2, 2, 2), (4, 2, 4), (2, 4, 4), (1, 1, 2)]


@pytest.mark.parametrize(("tp", "pp", "micro"), GRIDS)
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3"])
def test_every_grid_of_eight_follows_one_rank(strategy, tp, pp, micro, alone):
    outcomes, _, _ = run(replace(PLAN, strategy=strategy, tp=tp, pp=pp, micro_batches=min(micro, tp * pp)), 8)
    np.testing.assert_allclose(outcomes[0].losses, alone(PLAN), rtol=1e-9)
    assert outcomes[0].replicas_equal


@pytest.mark.parametrize("change", [
    {"schedule": "gpipe", "pp": 4, "micro_batches": 4}, {"schedule": "naive", "pp": 3}, {"via": "host", "pp": 2},
    {"recompute": True, "tp": 2, "pp": 2}, {"clip_norm": 0.1, "tp": 2, "pp": 2, "strategy": "zero2"},
    {"dtype": "float32", "tp": 2, "pp": 2, "micro_batches": 2},
])  # fmt: skip
def test_every_schedule_and_option_follows_one_rank(change, alone):
    single = replace(PLAN, clip_norm=change.get("clip_norm"), dtype=change.get("dtype", "float64"))
    outcomes, _, _ = run(replace(PLAN, **change), 6 if change.get("pp") == 3 else 4)
    np.testing.assert_allclose(outcomes[0].losses, alone(single), rtol=1e-4 if "dtype" in change else 1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("micro", [1, 3, 8])
def test_a_stage_does_every_micro_batch_once_and_keeps_few_under_1f1b(schedule, stages, micro):
    for stage in range(stages):
        order = passes(schedule, stage, stages, micro)
        assert sorted(order) == sorted((kind, m) for kind in ("forward", "backward") for m in range(micro))
        held = np.cumsum([1 if kind == "forward" else -1 for kind, _ in order])
        assert held.min() == 0
        if schedule == "1f1b":
            assert held.max() <= min(micro, stages - stage)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_stages_hold_about_the_same(stages):
    layers = models.gpt(100, 16, depth=10, width=64).layers
    begins = cut(layers, stages)
    assert len(begins) == stages + 1 and begins == sorted(set(begins))
    pairs = zip(begins, begins[1:], strict=False)
    sizes = [sum(p.size for layer in layers[a:b] for p in layer.parameters()) for a, b in pairs]
    assert max(sizes) < 1.6 * sum(sizes) / stages


@pytest.mark.parametrize(("micro", "schedule"), [(1, "naive"), (4, "gpipe"), (4, "1f1b"), (8, "1f1b")])
def test_the_bubble_is_the_formulas(micro, schedule):
    """(s-1) / (m+s-1) of the time, on links that cost nothing and stages that take the same."""
    stages = 4
    plan = Plan(model="gpt2", steps=1, batch=16, pp=stages, micro_batches=micro, schedule=schedule)
    cluster = load_cluster("dgx-a100", {}, stages)
    trace = run_here(lambda gpu: train(gpu, plan), cluster, stages, dry=True)[1]
    step = replay(trace, cluster, detail="spans").step
    share = step["bubble_s"] / step["time_s"]
    assert share == pytest.approx((stages - 1) / (micro + stages - 1), abs=0.09)


def test_activations_by_the_host_are_copied_there_and_back():
    from emu.trace import Op

    def copies(via):
        rows = run(replace(PLAN, pp=2, via=via), 2, dry=True)[1].ranks[0]
        return int((rows["op"] == Op.COPY).sum())

    assert copies("host") == copies("p2p") + 2 * PLAN.steps == copies("gpudirect") + 2 * PLAN.steps


@pytest.mark.parametrize("change", [{"tp": 2, "pp": 2}, {"strategy": "zero3", "pp": 2}, {"tp": 2, "via": "host"}])
def test_a_dry_run_records_the_same_rows(change):
    plan = replace(PLAN, **change)
    real, dry = run(plan, 4)[1], run(plan, 4, dry=True)[1]
    assert all(np.array_equal(a, b) for a, b in zip(real.ranks, dry.ranks, strict=True))


@pytest.mark.parametrize("change", [
    {"strategy": "zero3", "algorithm": "hierarchical"}, {"strategy": "ddp"}, {"tp": 2, "pp": 2, "micro_batches": 3},
    {"strategy": "zero2", "pp": 2, "micro_batches": 2, "algorithm": "hierarchical"}, {"strategy": "zero3", "tp": 4},
])  # fmt: skip
def test_ranks_that_are_alike_record_what_each_would_record(change):
    from emu.parallel.training import Trainer
    from emu.trace import Op

    plan = replace(Plan(model="gpt2", batch=20, steps=2, recompute=True), **change)
    cluster = load_cluster("dgx-a100:2", {}, 16)

    def each(gpu):
        trainer = Trainer(gpu, plan)
        for index in range(plan.steps):
            trainer.step(index)

    alike = run_here(lambda gpu: train(gpu, plan), cluster, 16, dry=True)[1]
    single = run_here(each, cluster, 16, dry=True)[1]
    for mine, theirs in zip(alike.ranks, single.ranks, strict=True):
        assert len(mine) == len(theirs)
        for field in ("op", "stream", "flag", "n", "x"):
            assert np.array_equal(mine[field], theirs[field])
        for a, b in zip(mine[mine["op"] == Op.CALL], theirs[theirs["op"] == Op.CALL], strict=True):
            assert np.array_equal(alike.templates[a["a"]].rows, single.templates[b["a"]].rows)
            assert alike.groups[a["b"]] == single.groups[b["b"]] and a["c"] == b["c"]
        messages = np.isin(mine["op"], (Op.SEND, Op.RECV, Op.WAIT, Op.AWAIT))
        assert np.array_equal(mine["a"][messages], theirs["a"][messages])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 0.02), ("bfloat16", 0.05), ("tf32", 1e-3)])
@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_lower_precision_follows_float32(dtype, tolerance, strategy, alone):
    plan = replace(PLAN, steps=8, strategy=strategy)
    outcome = run(replace(plan, dtype=dtype), 2)[0][0]
    single = alone(replace(plan, dtype="float32", strategy="ddp"))
    done = slice(outcome.skipped, None)  # the loss scale may have to come down first
    np.testing.assert_allclose(outcome.losses[-1], single[-1 - outcome.skipped], rtol=tolerance)
    assert len(outcome.losses[done]) >= 6


@pytest.mark.parametrize(("change", "text"), [
    ({"tp": 3}, "tp × pp: a divisor of 8 ranks is expected"), ({"pp": 0}, "pp: at least 1"),
    ({"schedule": "1f2b"}, "did you mean '1f1b'"), ({"via": "pigeon"}, "via: unknown way"),
    ({"schedule": "naive", "micro_batches": 2}, "schedule naive: 1 micro-batch"),
    ({"strategy": "ps", "tp": 2}, "strategy ps"), ({"hook": "topk", "strategy": "zero1"}, "hook: strategy ddp"),
    ({"micro_batches": 5}, "batch: at least 1 example a worker (8) and micro-batch (5)"),
])  # fmt: skip
def test_a_grid_that_cannot_be_is_refused_at_the_door(change, text):
    with pytest.raises(ConfigError) as refused:
        check(replace(PLAN, **change), 8)
    assert text in str(refused.value)


def test_more_stages_than_layers_and_a_cnn_in_parts_are_refused():
    with pytest.raises(ConfigError, match="pp: at most"):
        run(replace(PLAN, pp=8, batch=8), 8)
    with pytest.raises(ConfigError, match="tp: a transformer is expected"):
        run(replace(PLAN, model="cnn", tp=2), 2)


def test_gradients_of_parts_of_layers_are_summed_while_backward_goes_on():
    """Small parameters that are not cut are complete last: no other bucket waits for theirs."""
    cluster = load_cluster("dgx-a100", {}, 8)

    def exposed(ranks, overlap=True):
        plan = Plan(model="gpt2", batch=2 * ranks, steps=1, tp=2, bucket_bytes=4 << 20, overlap=overlap)
        trace = run_here(lambda gpu: train(gpu, plan), cluster, ranks, dry=True)[1]
        return replay(trace, cluster, detail="spans").steps()[-1]["exposed_communication_s"]

    within = exposed(2)  # inside layers, which nothing hides
    assert exposed(8) - within < 0.3 * (exposed(8, overlap=False) - within)
