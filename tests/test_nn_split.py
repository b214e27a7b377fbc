"""Parts of layers: their values are cut from the whole's, and together they compute what the whole does."""

from __future__ import annotations

import numpy as np
import pytest
from nn_gpus import dry_gpu, real_gpu, strict_gpu

from emu.collectives.all_reduce_ring import ring_all_reduce
from emu.comm import run_local
from emu.errors import ConfigError
from emu.gpu import Gpu, Memory
from emu.gpu.arrays import arrays_of
from emu.nn import Linear, Model, SoftmaxCrossEntropy, gpt
from emu.nn.architectures import FAMILIES
from emu.nn.catalogue import find
from emu.nn.parameter import normal
from emu.nn.split import Split, by_inputs, by_outputs
from emu.nn.split_loss import SplitCrossEntropy
from emu.nn.transformers import Options


def _parts(parts):
    return Split(0, parts, lambda gpu, x, op: None)


def _run(layer, x, dy):
    gpu, model = real_gpu(), Model("m", [layer])
    model.initialise(gpu, seed=5)
    y, saved = model.forward(gpu, gpu.array(x))
    return y, model.backward(gpu, saved, gpu.array(dy))


def _linear():
    return Linear("l", 12, 24, init=normal(0.1), dtype="float64")


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_parts_by_outputs_make_the_wholes_outputs(parts):
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((5, 12)), rng.standard_normal((5, 24))
    whole = _linear()
    y, dx = _run(whole, x, dy)
    pieces = [by_outputs(_linear(), part, parts) for part in range(parts)]
    results = [_run(piece, x, np.split(dy, parts, axis=1)[part]) for part, piece in enumerate(pieces)]
    np.testing.assert_allclose(np.concatenate([each for each, _ in results], axis=1), y, atol=1e-15)
    np.testing.assert_allclose(sum(each for _, each in results), dx, atol=1e-14)
    np.testing.assert_allclose(np.concatenate([p.weight.grad for p in pieces]), whole.weight.grad, atol=1e-14)


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_parts_by_inputs_sum_to_the_wholes_outputs_and_one_adds_the_bias(parts):
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((5, 12)), rng.standard_normal((5, 24))
    y, dx = _run(_linear(), x, dy)
    pieces = [by_inputs(_linear(), part, parts) for part in range(parts)]
    results = [_run(piece, np.split(x, parts, axis=1)[part], dy) for part, piece in enumerate(pieces)]
    np.testing.assert_allclose(sum(each for each, _ in results), y, atol=1e-14)
    np.testing.assert_allclose(np.concatenate([each for _, each in results], axis=1), dx, atol=1e-14)
    assert [piece.bias is not None for piece in pieces] == [True] + [False] * (parts - 1)


def test_stacked_blocks_are_split_each_by_itself():
    piece = by_outputs(_linear(), 1, 2, [12, 8, 4])
    whole = _linear().weight.initial(3)
    np.testing.assert_array_equal(piece.weight.initial(3), whole[[*range(6, 12), *range(16, 20), 22, 23]])


TEXT = {"layers": 2, "width": 24, "heads": 12, "length": 6, "vocabulary": 11}
MODELS = {
    "gpt": TEXT,
    "bert": {**TEXT, "segments": 2},
    "llama": {**TEXT, "hidden": 24, "groups": 12},
    "llama grouped": {**TEXT, "hidden": 24, "width": 48, "heads": 24, "groups": 12},
}


def _step(gpu, name, split, x, targets):
    options = Options(dtype="float64", split=split)
    model = FAMILIES[name.split()[0]](MODELS[name], options)
    loss = SplitCrossEntropy(11, split) if split is not None and split.vocabulary else SoftmaxCrossEntropy()
    model.initialise(gpu, seed=0)
    logits, saved = model.forward(gpu, gpu.array(x))
    told, kept = loss.forward(gpu, logits, gpu.array(targets), total=20)
    model.backward(gpu, saved, loss.backward(gpu, kept, 8.0))
    return told, {p.name: (p.grad, p.cut) for p in model.parameters()}


@pytest.mark.parametrize("vocabulary", [False, True])
@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_split_over_ranks_has_the_loss_and_gradients_of_the_whole(name, parts, vocabulary):
    rng = np.random.default_rng(0)
    x, targets = (rng.integers(0, 11, (2, 6)).astype(np.int32) for _ in range(2))
    expected, whole = _step(real_gpu(), name, None, x, targets)

    def rank(comm):
        gpu = Gpu(comm, arrays_of("numpy"), Memory(float("inf")))
        split = Split(comm.rank, parts, lambda gpu, x, op: ring_all_reduce(comm, x, op), vocabulary)
        return _step(gpu, name, split, x, targets)

    results = run_local(rank, parts)[0]
    for told, gradients in results:
        np.testing.assert_allclose(told, expected, rtol=1e-12)
        for each, (gradient, cut) in gradients.items():
            right = whole[each][0] if cut is None else cut(whole[each][0])
            np.testing.assert_allclose(gradient, right, rtol=1e-8, atol=1e-13)
    held = sum(gradient.size for _, gradients in results for gradient, cut in gradients.values() if cut is not None)
    assert held == sum(grad.size for each, (grad, _) in whole.items() if each in _split_somewhere(results))


def _split_somewhere(results):
    return {each for _, gradients in results for each, (_, cut) in gradients.items() if cut is not None}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_split_loss_keeps_its_dtype_and_runs_dry(dtype):
    logits, targets = np.random.default_rng(0).standard_normal((6, 5)), np.arange(6, dtype=np.int32) % 5
    tapes, losses = [], []
    for gpu in (real_gpu(), strict_gpu(), dry_gpu()):
        loss = SplitCrossEntropy(5, Split(0, 1, lambda gpu, x, op: None, True))
        told, kept = loss.forward(gpu, gpu.array(logits, dtype), gpu.array(targets))
        assert str(loss.backward(gpu, kept).dtype) == dtype
        tapes.append(gpu.tape)
        losses.append(None if gpu.dry else gpu.to_host(told))
    assert tapes[0] == tapes[1] == tapes[2]
    np.testing.assert_array_equal(losses[0], losses[1])
    gpu = real_gpu()
    whole, _ = SoftmaxCrossEntropy().forward(gpu, gpu.array(logits, dtype), gpu.array(targets))
    np.testing.assert_allclose(losses[0], whole, rtol=1e-6)


def test_each_part_of_gpt3_holds_an_eighth_of_its_blocks():
    shape = find("gpt3-175b")
    whole = shape.build(dtype="float16").size
    split = Split(3, 8, lambda gpu, x, op: None, vocabulary=True)
    model = shape.build(dtype="float16", fused=True, split=split)
    assert model.size == pytest.approx(whole / 8, rel=0.001)
    gpu = dry_gpu()
    model.allocate(gpu)
    logits, saved = model.forward(gpu, gpu.empty(*shape.inputs(1)))
    loss = SplitCrossEntropy(shape.classes, split)
    _, kept = loss.forward(gpu, logits, gpu.empty(*shape.targets(1)))
    model.backward(gpu, saved, loss.backward(gpu, kept))
    assert gpu.memory.live["gradients"] == 2 * model.size


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: by_outputs(_linear(), 0, 5), "must be a multiple of 5 parts"),
        (lambda: by_outputs(_linear(), 0, 2, [12, 4]), "must be a multiple of 2 parts"),
        (lambda: by_inputs(_linear(), 0, 5), "l: inputs must be a multiple of 5 parts, got 12"),
        (lambda: by_inputs(by_outputs(_linear(), 0, 2), 0, 2), "split once"),
        (
            lambda: gpt(11, 6, width=24, heads=12, split=_parts(5)),
            "block0: heads must be a multiple of 5 parts, got 12",
        ),
        (lambda: SplitCrossEntropy(3, _parts(5)), "at least one class a part is expected, got 3 for 5"),
        (lambda: find("resnet-50").build(split=_parts(2)), "only transformers are split"),
    ],
)
def test_what_does_not_divide_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
