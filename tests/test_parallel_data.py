"""Data parallel as its users know it: accumulation, uneven batches, unused parameters, hooks, one order of sums."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from emu.cluster import load_cluster
from emu.collectives import find
from emu.errors import ConfigError
from emu.nn import models
from emu.nn.linear import Linear
from emu.nn.model import Model
from emu.nn.optim import SGD
from emu.parallel.buckets import Bucket
from emu.parallel.compression import HOOKS, OneBit, TopK
from emu.parallel.data_parallel import DataParallel
from emu.parallel.join import joined
from emu.parallel.powersgd import PowerSGD
from emu.parallel.training import Plan, train
from emu.program import run_here
from emu.timeline.volumes import bytes_sent_per_step
from emu.trace import Op

SMALL = Plan(steps=5, batch=24, dtype="float32")


@pytest.fixture(autouse=True)
def small_mlp(monkeypatch):
    monkeypatch.setattr(models.mlp, "__defaults__", ((64, 96, 160, 96, 32, 10),))


def on(main, ranks, dry=False):
    return run_here(main, load_cluster("pcie4", {}, max(ranks, 2)), ranks, dry=dry)


def run(plan, ranks, dry=False):
    return on(lambda gpu: train(gpu, plan), ranks, dry)


def strategy_of(gpu, model, **options):
    return DataParallel(gpu, model, SGD(0.1), find("all_reduce", "ring"), find("broadcast", "binomial"), **options)


BUCKETS = [1, 1000, 30_000, 1 << 30]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_deterministic_sums_have_the_same_bits_for_any_buckets(ranks):
    prints = {
        run(replace(SMALL, deterministic=True, overlap=overlap, bucket_bytes=size, first_bucket_bytes=first), ranks)[0][
            0
        ].fingerprint
        for size, first, overlap in zip(BUCKETS, (1, 8, 30_000, 1 << 30), (True, False, True, True), strict=True)
    }
    assert len(prints) == 1


@pytest.mark.parametrize("micro_batches", [2, 3])
def test_micro_batches_are_one_big_batch_and_are_reduced_once(micro_batches):
    plan = replace(SMALL, dtype="float64")
    (whole, trace, _), (parts, trace_parts, _) = run(plan, 3), run(replace(plan, micro_batches=micro_batches), 3)
    np.testing.assert_allclose(parts[0].losses, whole[0].losses, rtol=1e-12)
    calls = [int((t.ranks[0]["op"] == Op.CALL).sum()) for t in (trace, trace_parts)]
    assert calls[0] == calls[1]


def test_an_error_inside_no_sync_restores_sync():
    def main(gpu):
        strategy = strategy_of(gpu, models.mlp((4, 3, 2)))
        with pytest.raises(ValueError), strategy.no_sync():
            raise ValueError
        return strategy.buckets.syncing

    assert on(main, 2)[0] == [True, True]


def test_a_gradient_that_is_final_twice_is_named():
    def main(gpu):
        model = models.mlp((4, 3, 2))
        strategy = strategy_of(gpu, model, bucket_bytes=1 << 20)
        strategy.begin()
        strategy.ready(model.trainable()[0])
        strategy.ready(model.trainable()[0])

    with pytest.raises(ConfigError, match="parameter linear0.weight: one final gradient a step is expected, got two"):
        on(main, 2)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_unused_parameters_count_as_zero_where_they_are_looked_for(ranks):
    """Rank 1 leaves a layer out; the others use it."""
    def main(gpu):
        a, b = Linear("a", 4, 4, dtype="float64"), Linear("b", 4, 4, dtype="float64")
        whole, short = Model("m", [a, b]), Model("m", [a])
        strategy = strategy_of(gpu, whole, find_unused=True)
        before = b.weight.data.copy()
        used = whole if gpu.rank != 1 and gpu.size > 1 else short
        strategy.begin()
        y, saved = used.forward(gpu, gpu.full((2, 4), 1.0, "float64"))
        used.backward(gpu, saved, y, ready=strategy.ready)
        strategy.finish()
        told = gpu.comm.wire.exchange(strategy.buckets.all[0].weights.tobytes())
        return len(set(told)), bool((b.weight.data != before).any())

    results = on(main, ranks)[0]
    assert results == [(1, ranks > 1)] * ranks


@pytest.mark.parametrize("counts", [(3, 1), (2, 4, 1), (0, 3)])
def test_ranks_with_fewer_batches_join_in(counts):
    """Every example counts once: the same as one rank that sees each turn's examples together."""
    def data(rank, turn):
        return np.random.default_rng([rank, turn]).standard_normal((2, 4))

    def main(gpu):
        model = models.mlp((4, 3, 2), dtype="float64")
        strategy = strategy_of(gpu, model)
        mine = [data(gpu.rank, turn) for turn in range(counts[gpu.rank])]
        for batch, rows in joined(strategy, mine, len):
            strategy.begin()
            if batch is None:
                strategy.skip()
            else:
                y, saved = model.forward(gpu, gpu.array(batch))
                y /= rows
                model.backward(gpu, saved, y, ready=strategy.ready)
            strategy.finish()
        return strategy.buckets.all[0].weights.copy()

    def alone(gpu):
        model = models.mlp((4, 3, 2), dtype="float64")
        strategy = strategy_of(gpu, model)
        for turn in range(max(counts)):
            rows = np.concatenate([data(rank, turn) for rank, n in enumerate(counts) if turn < n])
            strategy.begin()
            y, saved = model.forward(gpu, gpu.array(rows))
            y /= len(rows)
            model.backward(gpu, saved, y, ready=strategy.ready)
            strategy.finish()
        return strategy.buckets.all[0].weights.copy()

    results = on(main, len(counts))[0]
    expected = on(alone, 1)[0][0]
    for weights in results:
        np.testing.assert_allclose(weights, expected, rtol=1e-12)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_hooks_leave_the_same_bits_on_every_rank_and_still_learn(hook, ranks):
    outcomes, trace, _ = run(replace(SMALL, steps=40, hook=hook, bucket_bytes=30_000, first_bucket_bytes=100), ranks)
    assert outcomes[0].replicas_equal
    assert outcomes[0].losses[-1] < 0.995 * outcomes[0].losses[0]
    plain = run(SMALL, ranks, dry=True)[1]
    limit = {"fp16": 0.51, "topk": 0.1 * ranks, "onebit": 0.1, "powersgd": 0.75}[hook]
    assert bytes_sent_per_step(trace)[0] < limit * bytes_sent_per_step(plain)[0]


@pytest.mark.parametrize("hook", HOOKS)
def test_a_dry_run_with_a_hook_records_the_same_rows(hook):
    plan = replace(SMALL, hook=hook)
    real, dry = run(plan, 3)[1], run(plan, 3, dry=True)[1]
    assert all(np.array_equal(a, b) for a, b in zip(real.ranks, dry.ranks, strict=True))


@pytest.mark.parametrize("make", [lambda gpu: TopK(gpu, 0.1), OneBit, PowerSGD])
def test_what_is_sent_and_what_is_left_are_all_gradients(make):
    """Over 100 steps Σ sent + residuals of all ranks (and of the owners of parts) = Σ gradients."""
    ranks, shape = 3, (40, 30)

    def main(gpu):
        layer = Linear("a", shape[1], shape[0], bias=False)
        bucket = Bucket(0, [layer.weight], "float32")
        bucket.bind_gradients(gpu.zeros((bucket.padded,)))
        hook = make(gpu)
        sent, given = np.zeros(bucket.size), np.zeros(bucket.size)
        for step in range(100):
            gradient = np.random.default_rng([gpu.rank, step]).standard_normal(bucket.size).astype("f4")
            given += gradient
            bucket.gradients[...] = gradient
            hook(gpu, gpu.comm, bucket)
            sent += bucket.gradients
        left = hook.kept["residual", layer.weight].astype("f8")
        if isinstance(hook, OneBit):
            error = hook.kept["server", 0]
            mine = left[gpu.rank * error.size : (gpu.rank + 1) * error.size]
            mine += error[: mine.size]
        return sent, given, left

    results = on(main, ranks)[0]
    sent, given, left = results[0][0], sum(r[1] for r in results), sum(r[2] for r in results)
    np.testing.assert_allclose(sent + left, given, atol=2e-4 * np.abs(given).max())


@pytest.mark.parametrize("average", ["before", "after"])
@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3"])
def test_gradients_averaged_before_or_after_their_sum_train_the_same(average, strategy):
    plan = replace(SMALL, dtype="float64", strategy=strategy, clip_norm=0.05, batch=25)
    averaged, summed = (run(replace(plan, average=way), 3)[0][0] for way in (average, "none"))
    np.testing.assert_allclose(averaged.losses, summed.losses, rtol=1e-12)
    assert averaged.norm == pytest.approx(summed.norm, rel=1e-12)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(("average", "overflows"), [("before", False), ("after", True)])
def test_sums_in_16_bits_overflow_unless_they_are_averaged_before(average, overflows):
    def main(gpu):
        layer = Linear("a", 4, 4, bias=False, dtype="float16")
        strategy = strategy_of(gpu, Model("m", [layer]), average=average)
        strategy.begin()
        layer.weight.grad[...] = 40_000
        strategy.ready(layer.weight)
        strategy.buckets.finish()
        return bool(np.isinf(layer.weight.grad).any())

    assert on(main, 2)[0] == [overflows] * 2


def test_a_rebuild_of_buckets_takes_no_memory_and_no_emulated_time():
    plan = Plan(model="gpt2", steps=3, batch=4, dtype="bfloat16")
    outcomes, trace, memory = run(plan, 2, dry=True)
    assert any("buckets rebuilt once" in note for note in outcomes[0].notes)
    once = run(replace(plan, steps=1), 2, dry=True)[2][0].peak_bytes
    assert memory[0].peak_bytes == once + 2 * 16  # the losses of two more steps
    rows = trace.ranks[0]
    bounds = np.flatnonzero((rows["op"] == Op.BEGIN) & (rows["flag"] == 2)).tolist() + [len(rows)]
    computed = [rows[a:b][rows[a:b]["op"] == Op.COMPUTE] for a, b in itertools.pairwise(bounds)]
    assert len(computed[1]) == len(computed[2])  # the step that begins with it, and the next one
