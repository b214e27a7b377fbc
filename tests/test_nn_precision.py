"""Training in 16 bits: master weights in float32, scaled losses, infinities that are found and not warned about."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from nn_gpus import real_gpu

from emu.nn.data import batch_rows, digits
from emu.nn.loss import SoftmaxCrossEntropy
from emu.nn.models import mlp
from emu.nn.optim import SGD, Optimizer, sum_of_squares


def _train(dtype, scale, steps=60):
    gpu, data, loss = real_gpu(), digits(dtype), SoftmaxCrossEntropy()
    model = mlp((64, 64, 10), dtype=dtype)
    model.initialise(gpu, 0)
    weights = [parameter.data for parameter in model.parameters()]
    masters = [gpu.array(p.initial(0), "float32", purpose="optimizer state") for p in model.parameters()]
    optimizer, losses = Optimizer(SGD(0.05), gpu, masters), []
    for step in range(steps):
        rows = batch_rows(1500, 64, step, 0)
        logits, saved = model.forward(gpu, gpu.array(data.inputs[rows]))
        stats, kept = loss.forward(gpu, logits, gpu.array(data.targets[rows]))
        model.backward(gpu, saved, loss.backward(gpu, kept, scale))
        gradients = [parameter.grad for parameter in model.parameters()]
        optimizer.step(gpu, masters, gradients, scale=1 / scale, copies=weights)
        losses.append(float(stats[0]))
    assert {str(array.dtype) for array in weights + gradients} == {dtype}
    return losses


@pytest.mark.parametrize("dtype, tolerance", [("float16", 0.01), ("bfloat16", 0.05)])
def test_mixed_precision_follows_float32(dtype, tolerance):
    np.testing.assert_allclose(_train(dtype, 1024.0), _train("float32", 1.0), rtol=tolerance)


def test_a_scale_beyond_float16_gives_infinities_without_a_warning():
    gpu, data, loss = real_gpu(), digits("float16"), SoftmaxCrossEntropy()
    model = mlp((64, 64, 10), dtype="float16")
    model.initialise(gpu, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logits, saved = model.forward(gpu, gpu.array(data.inputs[:4]))
        _, kept = loss.forward(gpu, logits, gpu.array(data.targets[:4]))
        model.backward(gpu, saved, loss.backward(gpu, kept, 2.0**24))
        total = sum_of_squares(gpu, [parameter.grad for parameter in model.parameters()])
    assert not np.isfinite(total[0])
