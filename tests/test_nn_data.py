"""Data: real, plain, and in an order that seed and step decide; models learn from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sklearn
from nn_gpus import real_gpu
from sklearn.datasets import load_digits

import emu.nn.data as data_module
from emu.errors import ConfigError
from emu.nn.data import batch_rows, digits, encode, share, text
from emu.nn.loss import SoftmaxCrossEntropy
from emu.nn.models import cnn, gpt, mlp
from emu.nn.optim import SGD, Adam, Optimizer


def _train(model, data, rule, steps, batch, ranks=1, seed=0):
    """Train; with several ranks, sum their gradients in turn. Return the losses and the final parameters."""
    gpu, loss = real_gpu(), SoftmaxCrossEntropy()
    model.initialise(gpu, seed)
    parameters = model.parameters()
    arrays = [parameter.data for parameter in parameters]
    optimizer, losses = Optimizer(rule, gpu, arrays), []
    for step in range(steps):
        rows = batch_rows(len(data.inputs), batch, step, seed)
        total, value = data.targets[rows].size, 0.0
        for rank in range(ranks):
            mine = rows[share(batch, rank, ranks)]
            logits, saved = model.forward(gpu, gpu.array(data.inputs[mine]))
            stats, kept = loss.forward(gpu, logits, gpu.array(data.targets[mine]), total)
            model.backward(gpu, saved, loss.backward(gpu, kept), accumulate=rank > 0)
            value += float(stats[0])
        optimizer.step(gpu, arrays, [parameter.grad for parameter in parameters])
        losses.append(value)
    return losses, arrays


def _accuracy(model, data):
    gpu = real_gpu()
    logits, _ = model.forward(gpu, gpu.array(data.test_inputs), keep=False)
    stats, _ = SoftmaxCrossEntropy().forward(gpu, logits, gpu.array(data.test_targets))
    return stats[1] / data.test_targets.size


def test_digits_are_split_and_scaled():
    data = digits()
    assert data.inputs.shape == (1500, 64) and data.test_inputs.shape == (297, 64)
    assert (data.inputs.dtype, data.targets.dtype) == (np.float32, np.int32)
    assert data.inputs.min() == 0 and data.inputs.max() == 1
    assert np.bincount(data.test_targets).min() > 15
    np.testing.assert_array_equal(digits(images=True).inputs.reshape(-1, 64), data.inputs)


def test_digits_are_those_that_scikit_learn_loads():
    pixels, labels = load_digits(return_X_y=True)
    ours, our_labels = data_module._load_digits(Path(sklearn.__file__).parent)
    np.testing.assert_array_equal(ours, pixels)
    np.testing.assert_array_equal(our_labels, labels)


def test_digits_without_scikit_learn_name_the_extra(monkeypatch):
    monkeypatch.setattr(data_module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"data 'digits': .*pip install 'emu\[data\]'"):
        digits()


def test_text_targets_are_the_inputs_one_character_later():
    data = text(32, characters=20_000)
    np.testing.assert_array_equal(data.inputs.reshape(-1)[1:], data.targets.reshape(-1)[:-1])
    assert data.inputs.max() < data.classes == len(data.symbols) <= 129
    words = "".join(data.symbols[number] for number in data.inputs.reshape(-1))
    assert words.count("import ") > 3
    assert len(data.test_inputs) == pytest.approx(0.1 * 20_000 / 32, rel=0.05)


def test_encoding_folds_characters_beyond_ascii():
    numbers, symbols = encode("aé→b")
    assert numbers.tolist() == [0, 2, 2, 1]
    assert symbols == "ab\N{REPLACEMENT CHARACTER}"


def test_an_epoch_shows_every_row_once_and_batches_run_on_across_epochs():
    rows = np.concatenate([batch_rows(10, 4, step, seed=1) for step in range(5)])
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
    assert rows[:10].tolist() != rows[10:].tolist()
    np.testing.assert_array_equal(rows[8:12], batch_rows(10, 4, 2, seed=1))
    assert len(batch_rows(3, 10, 0, seed=0)) == 10


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_shares_cover_the_batch_in_order(size):
    parts = [share(10, rank, size) for rank in range(size)]
    assert [row for part in parts for row in range(10)[part]] == list(range(10))


@pytest.mark.parametrize("call", [lambda: batch_rows(10, 0, 0, 0), lambda: text(0), lambda: text(64, characters=100)])
def test_bad_sizes_are_refused(call):
    with pytest.raises(ConfigError):
        call()


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_an_mlp_learns_digits(activation):
    data, model = digits(), mlp((64, 128, 10), activation=activation)
    losses, _ = _train(model, data, SGD(0.05), steps=120, batch=64)
    assert losses[0] > 2 and losses[-1] < 0.3
    assert _accuracy(model, data) > 0.9


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_a_cnn_learns_digits(pool):
    data, model = digits(images=True), cnn((8, 16), 32, pool=pool)
    losses, _ = _train(model, data, Adam(0.005), steps=80, batch=64)
    assert losses[-1] < 0.5
    assert _accuracy(model, data) > 0.85


def test_a_gpt_learns_characters():
    data = text(32, characters=50_000)
    model = gpt(data.classes, 32, depth=2, width=64, heads=4)
    losses, _ = _train(model, data, Adam(0.003), steps=40, batch=16)
    assert losses[0] == pytest.approx(np.log(data.classes), rel=0.05)
    assert losses[-1] < 3.3


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-10), ("float32", 1e-4)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_training_on_parts_of_each_batch_follows_the_loss_of_one_rank(dtype, tolerance, ranks):
    data = digits(dtype)
    one, _ = _train(mlp((64, 64, 32, 10), dtype=dtype), data, SGD(0.05), steps=100, batch=64)
    more, _ = _train(mlp((64, 64, 32, 10), dtype=dtype), data, SGD(0.05), steps=100, batch=64, ranks=ranks)
    np.testing.assert_allclose(more, one, rtol=tolerance)


def test_float32_training_stays_float32_and_near_float64():
    losses = {}
    for dtype in ("float32", "float64"):
        model = mlp((64, 64, 10), dtype=dtype)
        losses[dtype], arrays = _train(model, digits(dtype), SGD(0.05), steps=50, batch=64)
        assert {str(array.dtype) for array in arrays} == {dtype}
    np.testing.assert_allclose(losses["float32"], losses["float64"], rtol=1e-4)
