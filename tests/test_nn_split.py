"""Parts of layers: their values are cut from the whole's, and together they compute what the whole does."""

from __future__ import annotations

import numpy as np
import pytest
from nn_gpus import real_gpu

from emu.comm import run_local
from emu.errors import ConfigError
from emu.gpu import Gpu, Memory
from emu.gpu.arrays import arrays_of
from emu.nn.linear import Linear
from emu.nn.loss import SoftmaxCrossEntropy
from emu.nn.model import Model
from emu.nn.models import gpt
from emu.nn.parameter import normal
from emu.nn.split import Split, by_inputs, by_outputs

SMALL = {"vocabulary": 11, "length": 6, "depth": 2, "width": 24, "heads": 12, "dtype": "float64"}


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


class _Sum:
    """Sums over all ranks forward, backward, or neither."""

    def __init__(self, name, forward, backward):
        self.name, self.sums = name, (forward, backward)

    def parameters(self):
        return []

    def forward(self, gpu, x):
        return (self._sum(gpu, x) if self.sums[0] else x), None

    def backward(self, gpu, saved, dy):
        return self._sum(gpu, dy) if self.sums[1] else dy

    def _sum(self, gpu, x):
        out = x.copy()
        for other in range(gpu.size):
            if other != gpu.rank:
                received = gpu.comm.empty(x.size, x.dtype)
                gpu.comm.sendrecv(x.reshape(-1), other, received, other)
                out += received.reshape(x.shape)
        return out


@pytest.mark.parametrize("parts", [2, 3, 4])
def test_a_gpt_split_over_ranks_has_the_loss_and_gradients_of_the_whole(parts):
    rng = np.random.default_rng(0)
    x, targets = (rng.integers(0, 11, (2, 6)).astype(np.int32) for _ in range(2))

    def step(gpu, split):
        model, loss = gpt(**SMALL, split=split), SoftmaxCrossEntropy()
        model.initialise(gpu, seed=0)
        logits, saved = model.forward(gpu, gpu.array(x))
        stats, kept = loss.forward(gpu, logits, gpu.array(targets))
        model.backward(gpu, saved, loss.backward(gpu, kept))
        return float(stats[0]), {p.name: (p.grad, p.cut) for p in model.parameters()}

    def rank(comm):
        gpu = Gpu(comm, arrays_of("numpy"), Memory(float("inf")))
        split = Split(comm.rank, parts, lambda name: _Sum(name, False, True), lambda name: _Sum(name, True, False))
        return step(gpu, split)

    expected_loss, whole = step(real_gpu(), None)
    for loss, gradients in run_local(rank, parts)[0]:
        assert loss == pytest.approx(expected_loss, rel=1e-13)
        for name, (gradient, cut) in gradients.items():
            expected = whole[name][0] if cut is None else cut(whole[name][0])
            np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: by_outputs(_linear(), 0, 5), "must be a multiple of 5 parts"),
        (lambda: by_outputs(_linear(), 0, 2, [12, 4]), "must be a multiple of 2 parts"),
        (lambda: by_inputs(_linear(), 0, 5), "l: inputs must be a multiple of 5 parts, got 12"),
        (lambda: by_inputs(by_outputs(_linear(), 0, 2), 0, 2), "split once"),
        (lambda: gpt(**SMALL, split=Split(0, 5, None, None)), "block0: heads must be a multiple of 5 parts"),
    ],
)
def test_what_does_not_divide_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
