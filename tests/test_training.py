"""Strategies train the same model as one rank, leave all ranks with the same bits, and record what they do."""

from dataclasses import replace

import numpy as np
import pytest

from emu.cluster import load_cluster
from emu.errors import ConfigError
from emu.parallel import feed
from emu.parallel.compression import HOOKS
from emu.parallel.training import Plan, Trainer, check, train
from emu.program import run_here
from emu.trace import Op

SMALL = Plan(steps=6, batch=24, dtype="float64")


@pytest.fixture(autouse=True)
def small_mlp(monkeypatch):
    """Train a small MLP of the same depth: what is tested does not depend on its width."""
    from emu.nn import models

    monkeypatch.setattr(models.mlp, "__defaults__", ((64, 96, 160, 96, 32, 10),))


def run(plan, ranks, dry=False):
    """Train on so many ranks of this process; return outcomes and trace."""
    cluster = load_cluster("pcie4", {}, max(ranks, 2))
    outcomes, trace, _ = run_here(lambda gpu: train(gpu, plan), cluster, ranks, dry=dry)
    return outcomes, trace


@pytest.fixture(scope="module")
def alone():
    """The losses of one rank, by model."""
    known = {}

    def losses(plan):
        if plan not in known:
            known[plan] = run(plan, 1)[0][0].losses
        return known[plan]

    return losses


VARIANTS = {
    "ddp": {},
    "ddp in tiny buckets": {"bucket_bytes": 1000, "first_bucket_bytes": 8},
    "ddp in one bucket": {"bucket_bytes": 1 << 30, "first_bucket_bytes": 1 << 30},
    "ddp by tree": {"algorithm": "tree"},
    "ddp by parameter server all-reduce": {"algorithm": "parameter_server"},
    "ddp without overlap": {"overlap": False},
    "ps": {"strategy": "ps"},
    "ps in tiny buckets": {"strategy": "ps", "bucket_bytes": 1000, "first_bucket_bytes": 8},
    "ps dedicated": {"strategy": "ps", "server": "dedicated"},
}


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_strategy_follows_one_rank(variant, ranks, alone):
    outcomes, _ = run(replace(SMALL, **VARIANTS[variant]), ranks)
    np.testing.assert_allclose(outcomes[0].losses, alone(SMALL), rtol=1e-10)
    assert len({outcome.fingerprint for outcome in outcomes}) == 1
    assert all(outcome.replicas_equal for outcome in outcomes)


@pytest.mark.parametrize("model", ["gpt", "cnn"])
@pytest.mark.parametrize("strategy", ["ddp", "ps"])
def test_other_models_follow_one_rank(model, strategy, alone):
    plan = Plan(model=model, steps=2, batch=6, dtype="float64")
    outcomes, _ = run(replace(plan, strategy=strategy), 3)
    np.testing.assert_allclose(outcomes[0].losses, alone(plan), rtol=1e-10)


def test_float32_follows_one_rank_for_200_steps():
    plan = Plan(steps=200, batch=64)
    outcomes, _ = run(plan, 4)
    single, _ = run(plan, 1)
    assert outcomes[0].losses[-1] == pytest.approx(single[0].losses[-1], rel=1e-4)
    assert outcomes[0].accuracy == pytest.approx(single[0].accuracy, abs=0.01)
    assert outcomes[0].accuracy > 0.85


@pytest.mark.parametrize("strategy", ["ddp", "ps", "zero1", "zero2"])
def test_ranks_hold_the_same_bits_after_every_step(strategy, monkeypatch):
    seen = []
    original = Trainer.step

    def step(trainer, index):
        loss = original(trainer, index)
        bits = b"".join(bucket.weights.tobytes() for bucket in trainer.strategy.buckets.all)
        told = trainer.gpu.comm.wire.exchange(bits)
        seen.append(len(set(told)))
        return loss

    monkeypatch.setattr(Trainer, "step", step)
    run(replace(SMALL, strategy=strategy, dtype="float32"), 3)
    assert seen == [1] * (3 * SMALL.steps)


ROWS_OF = {
    **{name: VARIANTS[name] for name in ("ddp", "ps", "ps dedicated")},
    **{strategy: {"strategy": strategy} for strategy in ("zero1", "zero2", "zero3")},
    **{hook: {"hook": hook} for hook in HOOKS},
    "shares that differ": {"batch": 25},
    "batches scattered twice": {"steps": 3},
}


@pytest.mark.parametrize("variant", ROWS_OF)
def test_a_dry_run_records_the_same_rows(variant, monkeypatch):
    monkeypatch.setattr(feed, "SCATTER_STEPS", 2)
    plan = replace(SMALL, steps=2, dtype="float32") if "hook" in ROWS_OF[variant] else SMALL
    plan = replace(plan, **ROWS_OF[variant])
    _, real = run(plan, 3)
    _, dry = run(plan, 3, dry=True)
    assert all(np.array_equal(a, b) for a, b in zip(real.ranks, dry.ranks, strict=True))
    assert real.labels == dry.labels and len(real.templates) == len(dry.templates)


def test_a_batch_that_ranks_do_not_divide_is_trained_whole(alone):
    plan = replace(SMALL, batch=25)
    outcomes, _ = run(plan, 4)
    np.testing.assert_allclose(outcomes[0].losses, alone(plan), rtol=1e-10)


def test_batches_are_copied_to_the_device_within_the_step():
    _, trace = run(SMALL, 2)
    rows = trace.ranks[0]
    steps = np.flatnonzero((rows["op"] == Op.BEGIN) & (rows["flag"] == 2))
    copies = np.flatnonzero(rows["op"] == Op.COPY)
    assert len(steps) == SMALL.steps
    assert all(any(start < copy < start + 10 for copy in copies) for start in steps)


def test_the_default_model_has_at_least_three_buckets(monkeypatch):
    from emu.nn import models
    from emu.parallel.buckets import assign

    monkeypatch.setattr(models.mlp, "__defaults__", (models.MLP_WIDTHS,))
    sizes = [bucket.nbytes for bucket in assign(models.mlp().trainable())]
    assert len(sizes) >= 3 and sizes[0] >= 1 << 20 and sizes[1] >= 25 << 20


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": "resnet"}, "model: one of mlp, cnn, gpt, or with --dry"),
        ({"strategy": "zero9"}, "strategy: unknown strategy 'zero9'; did you mean 'zero3'"),
        ({"algorithm": "rings"}, "one of naive, parameter_server"),
        ({"server": "none"}, "server: unknown server 'none'; there are dedicated, shared"),
        ({"dtype": "int8"}, "dtype: float64 or float32 or tf32"),
        ({"batch": 3}, "batch: at least 1 example a worker (4) is expected, got 3"),
        ({"steps": 0}, "steps: at least 1"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_at_the_door(change, text):
    with pytest.raises(ConfigError) as refused:
        check(replace(SMALL, **change), 4)
    assert text in str(refused.value)


def test_a_parameter_without_gradient_is_named():
    from emu.collectives import find
    from emu.nn import models
    from emu.nn.optim import SGD
    from emu.parallel.data_parallel import DataParallel

    def main(gpu):
        model = models.mlp((4, 3, 2))
        strategy = DataParallel(gpu, model, SGD(), find("all_reduce", "ring"), find("broadcast", "binomial"))
        strategy.begin()
        strategy.finish()

    with pytest.raises(ConfigError, match=r"a gradient of every parameter is expected, got none for linear1"):
        run_here(main, load_cluster("pcie4", {}, 2), 2)
