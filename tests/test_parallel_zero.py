"""ZeRO: the same training, its bytes on the wire and its memory to the byte, gathered parameters within limits."""

from dataclasses import replace

import numpy as np
import pytest

from emu.cluster import load_cluster
from emu.collectives import find
from emu.errors import ConfigError, MismatchError
from emu.nn import Parameter, models
from emu.nn.compose import Sequential
from emu.nn.linear import Linear
from emu.nn.model import Model
from emu.nn.optim import SGD, Adam
from emu.parallel.order import Order
from emu.parallel.sharded import Stage3
from emu.parallel.training import Plan, train
from emu.parallel.update import LossScale
from emu.parallel.zero import Zero
from emu.program import run_here
from emu.timeline.volumes import bytes_sent_per_step
from emu.trace import Op

WIDTHS = (64, 96, 160, 96, 32, 10)
ALL = Stage3(param_persistence_threshold=0, max_reuse_distance=0)
SMALL = Plan(steps=6, batch=24, dtype="float64", stage3=ALL)
STAGES = ["zero1", "zero2", "zero3"]


@pytest.fixture(autouse=True)
def small_mlp(monkeypatch):
    monkeypatch.setattr(models.mlp, "__defaults__", (WIDTHS,))


def run(plan, ranks, dry=False):
    cluster = load_cluster("pcie4", {}, max(ranks, 2))
    return run_here(lambda gpu: train(gpu, plan), cluster, ranks, dry=dry)


@pytest.fixture(scope="module")
def alone():
    known = {}

    def outcome(plan):
        if plan not in known:
            known[plan] = run(plan, 1)[0][0]
        return known[plan]

    return outcome


VARIANTS = {
    "zero1": {"strategy": "zero1"},
    "zero2": {"strategy": "zero2"},
    "zero2 in tiny buckets": {"strategy": "zero2", "bucket_bytes": 1, "first_bucket_bytes": 1},
    "zero3": {"strategy": "zero3"},
    "zero3 without prefetch": {"strategy": "zero3", "stage3": replace(ALL, prefetch_bucket_size=0)},
    "zero3 keeping what is near": {"strategy": "zero3", "stage3": replace(ALL, max_reuse_distance=20_000)},
    "zero3 with small ones whole": {"strategy": "zero3", "stage3": replace(ALL, param_persistence_threshold=4000)},
    "zero3 whole until backward": {"strategy": "zero3", "stage3": replace(ALL, reshard_after_forward=False)},
    "zero3 without overlap": {"strategy": "zero3", "overlap": False},
    "zero1 offloaded": {"strategy": "zero1", "offload": True},
    "zero3 offloaded": {"strategy": "zero3", "offload": True},
    "zero3 in micro-batches": {"strategy": "zero3", "micro_batches": 3},
    "zero2 in micro-batches": {"strategy": "zero2", "micro_batches": 3},
}


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_stage_follows_one_rank(variant, ranks, alone):
    outcomes, _, _ = run(replace(SMALL, **VARIANTS[variant]), ranks)
    np.testing.assert_allclose(outcomes[0].losses, alone(SMALL).losses, rtol=1e-10)
    assert outcomes[0].accuracy == alone(SMALL).accuracy
    assert all(outcome.replicas_equal for outcome in outcomes)


def test_stages_1_and_2_and_3_give_the_same_bits_and_so_does_overlap():
    prints = {
        run(replace(SMALL, dtype="float32", strategy=strategy, overlap=overlap, bucket_bytes=1 << 30,
                    first_bucket_bytes=1 << 30), 4)[0][0].fingerprint
        for strategy in ("zero1", "zero2") for overlap in (True, False)
    }  # fmt: skip
    assert len(prints) == 1
    prints = {
        run(replace(SMALL, dtype="float32", strategy="zero3", overlap=overlap), 4)[0][0].fingerprint
        for overlap in (True, False)
    }
    assert len(prints) == 1


@pytest.mark.parametrize("ranks", [2, 4, 7])
@pytest.mark.parametrize(("strategy", "times"), [("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 3)])
def test_bytes_on_the_wire_are_those_of_the_paper(strategy, times, ranks):
    steps = 3
    outcomes, trace, _ = run(replace(SMALL, strategy=strategy, steps=steps), ranks, dry=True)
    sent = bytes_sent_per_step(trace).sum()
    padding = 0
    if strategy != "ddp":
        padding = sum(-each["bytes"] // 8 % ranks * 8 for each in outcomes[0].buckets)
    weights = outcomes[0].parameters * 8 + padding
    assert sent == times * weights * (ranks - 1)  # all ranks: times Ψ(p-1)/p each


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 4])
def test_model_states_take_the_papers_bytes(stage, ranks):
    """fp16 weights and gradients, float32 master, mean and square: 4P + 12P/N, 2P + 14P/N, 16P/N."""
    model_size = 64 * 128 + 128 + 128 * 64 + 64  # a multiple of 4

    def main(gpu):
        model = models.mlp((64, 128, 64), dtype="float16")
        Zero(
            gpu, model, Adam(), find("reduce_scatter", "ring"), find("all_gather", "ring"), stage, settings=ALL,
            bucket_bytes=1 << 40, first_bucket_bytes=1 << 40, loss_scale=LossScale(),
        )  # fmt: skip
        return {p: n for p, n in gpu.memory.live.items() if n}

    live = run_here(main, load_cluster("pcie4", {}, 4), ranks, dry=True)[0]
    whole, part = 2 * model_size, 2 * model_size // ranks
    expected = {
        "weights": part if stage == 3 else whole,
        "gradients": whole if stage == 1 else part,
        "optimizer state": 12 * model_size // ranks,
    }
    assert live == [expected] * ranks


@pytest.mark.parametrize("limit", [16_000, 20_000, 40_000])
def test_gathered_parameters_stay_within_the_limit(limit):
    seen = []

    def main(gpu):
        from emu.parallel.training import Trainer

        trainer = Trainer(gpu, replace(SMALL, strategy="zero3", stage3=replace(
            ALL, max_live_parameters=limit, max_reuse_distance=1 << 40)))
        for index in range(3):
            trainer.step(index)
        seen.append(trainer.strategy.sharded.peak_live_elements)
        assert gpu.memory.peak["gathered parameters"] == 8 * seen[-1]
        assert not gpu.memory.live["gathered parameters"]

    run_here(main, load_cluster("pcie4", {}, 2), 2)
    assert 0 < max(seen) <= limit


def test_a_layer_above_the_limit_is_named():
    plan = replace(SMALL, strategy="zero3", stage3=replace(ALL, max_live_parameters=1000))
    with pytest.raises(ConfigError, match="layer linear0 needs 6240 elements at once, got a limit of 1000"):
        run(plan, 2)


def test_prefetch_hides_gathers_behind_computation():
    """A slow GPU makes every gather hide but the first of a step."""
    from emu.program import replay

    def exposed(prefetch):
        stage3 = replace(ALL, prefetch_bucket_size=prefetch)
        plan = Plan(model="gpt2", strategy="zero3", batch=8, steps=3, stage3=stage3)
        cluster = load_cluster("dgx-a100", {}, 4)
        trace = run_here(lambda gpu: train(gpu, plan), cluster, 4, dry=True)[1]
        last = replay(trace, cluster, detail="spans").steps()[-1]
        return last["exposed_communication_s"] / last["time_s"]

    assert exposed(10_000_000) < 0.3 * exposed(0)


def test_the_prefetcher_says_when_the_order_changes():
    order = Order()
    for used in ("ab", "ab", "aa", "aa", "a"):
        order.begin()
        for each in used:
            order.use(each)
        order.end()
    assert [note.split(" in ")[0] if "changed" in note else note.split(",")[0] for note in order.notes] == [
        "prefetch: the order of layers changed", "prefetch: step 4 used 1 layers",
    ]  # fmt: skip


def odd_model():
    """Frozen, zero-size, one-element, odd-sized and tied parameters."""
    first = Linear("first", 5, 7, dtype="float64")
    second = Linear("second", 7, 7, dtype="float64")
    third = Linear("third", 7, 7, dtype="float64", weight=second.weight)
    frozen = Linear("frozen", 7, 3, dtype="float64")
    frozen.weight.requires_grad = False
    scale = Linear("scale", 3, 1, bias=False, dtype="float64")
    spread = Linear("spread", 1, 3, dtype="float64")
    return Model("odd", [first, second, third, frozen, scale, spread])


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_odd_parameters_train_as_on_one_rank(stage, ranks):
    def weights(count, level):
        def main(gpu):
            model = odd_model()
            scatter, gather = find("reduce_scatter", "ring"), find("all_gather", "ring")
            strategy = Zero(gpu, model, SGD(0.1), scatter, gather, level, settings=ALL)
            for step in range(3):
                strategy.begin()
                rows = np.random.default_rng(step).standard_normal((6, 5))[gpu.rank * 6 // count :][: 6 // count]
                y, saved = model.forward(gpu, gpu.array(rows))
                model.backward(gpu, saved, y, ready=strategy.ready)
                strategy.finish()
            parts = [b.shard.tolist() for b in strategy.buckets.all + strategy.sharded.chunks]
            told = gpu.comm.wire.exchange(parts)
            sizes = [b.size for b in strategy.buckets.all + strategy.sharded.chunks]
            return [sum((part[i] for part in told), [])[:size] for i, size in enumerate(sizes)]

        return run_here(main, load_cluster("pcie4", {}, 3), count)[0][0]

    got, expected = weights(ranks, stage), weights(1, stage)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_a_parameter_without_elements_does_no_harm():
    class Nothing(Linear):
        def parameters(self):
            return [*super().parameters(), empty]

        def backward(self, gpu, saved, dy):
            empty._count_use()
            return super().backward(gpu, saved, dy)

    empty = Parameter("empty", (0,), dtype="float32")

    def main(gpu):
        model = Model("m", [Nothing("a", 4, 4)])
        scatter, gather = find("reduce_scatter", "ring"), find("all_gather", "ring")
        strategy = Zero(gpu, model, SGD(0.1), scatter, gather, 3, settings=ALL)
        strategy.begin()
        y, saved = model.forward(gpu, gpu.full((2, 4), 1.0))
        model.backward(gpu, saved, y, ready=strategy.ready)
        strategy.finish()
        return True

    assert run_here(main, load_cluster("pcie4", {}, 2), 1)[0] == [True]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_an_offloaded_optimizer_takes_no_memory_of_the_gpu_and_time_of_the_host(dtype):
    plan = replace(SMALL, strategy="zero2", dtype=dtype, offload=True)
    outcomes, trace, memory = run(plan, 2)
    assert "optimizer state" not in memory[0].live
    assert (trace.ranks[0]["op"] == Op.ELAPSED).sum() >= plan.steps - outcomes[0].skipped
    assert outcomes[0].losses == run(replace(plan, offload=False), 2)[0][0].losses


def test_a_shortage_of_host_memory_is_told():
    from emu.errors import DeviceOutOfMemory

    plan = Plan(model="gpt3-175b", strategy="zero3", batch=16, dtype="bfloat16", offload=True, recompute=True)
    cluster = load_cluster("dgx-a100:2", {"gpu": "a100-80gb"}, 16)
    with pytest.raises(DeviceOutOfMemory, match="host memory of rank 0 .* leave --offload out"):
        run_here(lambda gpu: train(gpu, plan), cluster, 16, dry=True)


@pytest.mark.parametrize("strategy", STAGES)
def test_a_dry_run_records_the_same_rows(strategy):
    plan = replace(SMALL, strategy=strategy, clip_norm=1.0)
    real, dry = run(plan, 3)[1], run(plan, 3, dry=True)[1]
    assert all(np.array_equal(a, b) for a, b in zip(real.ranks, dry.ranks, strict=True))
    assert real.labels == dry.labels


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("strategy", ["ddp", *STAGES])
def test_the_global_norm_is_that_of_one_rank(strategy, ranks, alone):
    plan = replace(SMALL, clip_norm=0.01)
    outcome = run(replace(plan, strategy=strategy), ranks)[0][0]
    assert outcome.norm == pytest.approx(alone(plan).norm, rel=1e-10)
    np.testing.assert_allclose(outcome.losses, alone(plan).losses, rtol=1e-10)
    assert outcome.losses[-1] != alone(SMALL).losses[-1]


@pytest.mark.parametrize("strategy", ["ddp", *STAGES])
def test_one_infinite_gradient_makes_all_ranks_skip_the_step(strategy, monkeypatch):
    from emu.parallel.training import Trainer

    original = Trainer.step

    def step(trainer, index):
        if index == 1 and trainer.gpu.rank == 1:
            trainer.feed.inputs[:] = np.inf if index == 1 else trainer.feed.inputs
        return original(trainer, index)

    monkeypatch.setattr(Trainer, "step", step)
    outcomes, _, _ = run(replace(SMALL, steps=2, strategy=strategy, clip_norm=1.0), 3)
    assert [outcome.skipped for outcome in outcomes] == [1, 1, 1]
    assert outcomes[0].replicas_equal


def test_evaluation_between_steps_leaves_nothing_gathered_and_no_note():
    from emu.parallel.training import Trainer

    def main(gpu):
        trainer = Trainer(gpu, replace(SMALL, strategy="zero3", steps=4))
        told = []
        for index in range(4):
            trainer.step(index)
            with trainer.strategy.inference():
                y, _ = trainer.model.forward(gpu, gpu.array(trainer.dataset.test_inputs[:8]), keep=False)
            told.append(y.tobytes())
            assert not gpu.memory.live["gathered parameters"]
        assert not trainer.strategy.notes
        return told

    results = run_here(main, load_cluster("pcie4", {}, 3), 3)[0]
    assert results[0] == results[1] == results[2] and len(set(results[0])) == 4


def test_layers_that_change_from_step_to_step_still_train_and_are_told():
    def main(gpu):
        layers = [Linear(f"l{i}", 6, 6, dtype="float64") for i in range(3)]
        model = Model("m", layers)
        strategy = Zero(
            gpu, model, SGD(0.1), find("reduce_scatter", "ring"), find("all_gather", "ring"), 3, settings=ALL,
            find_unused=True,
        )  # fmt: skip
        wrapped = list(model.layers)
        for step in range(4):
            used = Model("m", wrapped if step % 2 == 0 else [wrapped[0], wrapped[2]])
            strategy.begin()
            y, saved = used.forward(gpu, gpu.full((2, 6), 1.0, "float64"))
            used.backward(gpu, saved, y, ready=strategy.ready)
            strategy.finish()
            assert not gpu.memory.live["gathered parameters"]
        return strategy.notes

    notes = run_here(main, load_cluster("pcie4", {}, 2), 2)[0][0]
    assert len(notes) == 3 and all("the order of layers changed" in note for note in notes)


class Chosen(Sequential):
    """One of its layers works: rank r's own, and in step s the next."""

    step = 0

    def forward(self, gpu, x):
        layer = self.layers[(gpu.rank + self.step) % len(self.layers)]
        y, saved = layer.forward(gpu, x)
        return y, (layer, saved)

    def backward(self, gpu, saved, dy):
        layer, kept = saved
        return layer.backward(gpu, kept, dy)


def experts(gpu, stage=3, ranks=3, **options):
    """Train three experts, chosen by rank; return all weights and the notes."""
    chosen = Chosen("experts", [Linear(f"expert{i}", 4, 4, dtype="float64") for i in range(3)])
    model = Model("m", [Linear("in", 4, 4, dtype="float64"), chosen, Linear("out", 4, 4, dtype="float64")])
    scatter, gather = find("reduce_scatter", "ring"), find("all_gather", "ring")
    strategy = Zero(gpu, model, SGD(0.1), scatter, gather, stage, settings=ALL, **options)
    for step in range(4):
        chosen.step = step
        strategy.begin()
        y, saved = model.forward(gpu, gpu.full((2, 4), 1.0 + gpu.rank, "float64"))
        model.backward(gpu, saved, y, ready=strategy.ready)
        strategy.finish()
    buckets = strategy.buckets.all + strategy.sharded.chunks
    told = gpu.comm.wire.exchange([bucket.shard for bucket in buckets])
    whole = {}
    for i, bucket in enumerate(buckets):
        for parameter, view in bucket.views(np.concatenate([part[i] for part in told])):
            whole[parameter.name] = view
    return whole, list(strategy.notes)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_experts_that_each_rank_chooses_train_in_leaf_mode(stage):
    def plain(gpu):
        """The same without ZeRO: unused experts have gradients of zero."""
        return experts(gpu, 1, find_unused=True)

    cluster = load_cluster("pcie4", {}, 3)
    expected = run_here(plain, cluster, 3)[0][0][0]
    for found, notes in run_here(lambda gpu: experts(gpu, stage, leaves=(Chosen,)), cluster, 3)[0]:
        assert not notes
        for name, weights in expected.items():
            np.testing.assert_allclose(found[name], weights, rtol=1e-12)


def test_experts_that_each_rank_chooses_are_an_error_without_leaf_mode():
    with pytest.raises(MismatchError, match=r"about=parameters of expert0.*about=parameters of expert1"):
        run_here(lambda gpu: experts(gpu, find_unused=True), load_cluster("pcie4", {}, 3), 3)


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_gradients_leave_as_soon_as_a_bucket_is_full_also_without_overlap(strategy):
    plan = replace(SMALL, strategy=strategy, overlap=False, bucket_bytes=10_000, first_bucket_bytes=10_000)
    held, overlapped = (run(replace(plan, overlap=way), 4)[2][0].peak["buckets"] for way in (False, True))
    assert held <= overlapped
