"""FLOPs and bytes of layers against the roofline table that GPU guides print (16-bit operands, touched once)."""

from __future__ import annotations

import numpy as np
import pytest
from nn_gpus import dry_gpu, real_gpu

from emu.nn.activation import GELU, ReLU
from emu.nn.attention import Attention
from emu.nn.compose import add
from emu.nn.conv import Conv2d
from emu.nn.linear import Linear
from emu.nn.model import Model
from emu.nn.norm import LayerNorm
from emu.nn.optim import SGD, Adam, Optimizer

HALF = {"dtype": "float16"}


def _forward_cost(layer, shape):
    gpu = dry_gpu()
    model = Model("m", [layer])
    model.allocate(gpu)
    model.forward(gpu, gpu.empty(shape, "float16"))
    ((_, cost),) = gpu.tape
    return cost


@pytest.mark.parametrize(
    "inputs, outputs, batch, flops, nbytes",
    [
        (1024, 4096, 512, 4.29e9, 1.36e7),
        (1024, 4096, 1, 8.39e6, 8.4e6),
        (1024, 4096, 128, 1.07e9, 9.7e6),
        (12288, 12288, 2048, 6.18e11, 4.03e8),
    ],
)
def test_linear(inputs, outputs, batch, flops, nbytes):
    cost = _forward_cost(Linear("l", inputs, outputs, bias=False, **HALF), (batch, inputs))
    assert (cost.flops, cost.bytes) == (pytest.approx(flops, rel=0.005), pytest.approx(nbytes, rel=0.005))
    assert cost.flops == 2 * inputs * outputs * batch
    assert cost.bytes == 2 * (inputs * outputs + batch * (inputs + outputs))


@pytest.mark.parametrize(
    "shape, outputs, kernel, stride, padding, flops, nbytes",
    [
        ((32, 64, 56, 56), 64, 3, 1, 1, 7.4e9, 2.58e7),
        ((32, 64, 56, 56), 256, 1, 1, 0, 3.29e9, 6.43e7),
        ((32, 512, 7, 7), 512, 3, 1, 1, 7.4e9, 7.93e6),
        ((32, 3, 224, 224), 64, 7, 2, 3, 7.55e9, 6.1e7),
    ],
)
def test_convolution(shape, outputs, kernel, stride, padding, flops, nbytes):
    cost = _forward_cost(Conv2d("c", shape[1], outputs, kernel, stride, padding, bias=False, **HALF), shape)
    assert (cost.flops, cost.bytes) == (pytest.approx(flops, rel=0.005), pytest.approx(nbytes, rel=0.005))


@pytest.mark.parametrize("layer, flops, nbytes", [(ReLU(), 1, 4), (GELU(), 10, 4)])
def test_elementwise(layer, flops, nbytes):
    cost = _forward_cost(layer, (8, 128))
    assert (cost.flops, cost.bytes) == (flops * 1024, nbytes * 1024)


def test_layer_norm():
    cost = _forward_cost(LayerNorm("n", 4096, **HALF), (512, 4096))
    assert cost.flops == 8 * 512 * 4096
    assert cost.bytes == pytest.approx(4 * 512 * 4096, rel=0.01)


def test_residual_add():
    gpu = dry_gpu()
    add(gpu, gpu.empty(100, "float16"), gpu.empty(100, "float16"), "add")
    assert (gpu.tape[0][1].flops, gpu.tape[0][1].bytes) == (100, 600)


def test_adam_moves_28_bytes_a_parameter_in_mixed_precision():
    gpu = dry_gpu()
    master = gpu.empty(1000, "float32", purpose="optimizer state")
    weight, gradient = gpu.empty(1000, "float16", "weights"), gpu.empty(1000, "float16", "gradients")
    optimizer = Optimizer(Adam(), gpu, [master])
    optimizer.step(gpu, [master], [gradient], copies=[weight])
    assert (gpu.tape[-1][1].flops, gpu.tape[-1][1].bytes) == (12 * 1000, 28 * 1000)
    assert gpu.memory.live == {"optimizer state": 12_000, "weights": 2_000, "gradients": 2_000}


@pytest.mark.parametrize("rule, flops, nbytes", [(SGD(), 4, 20), (SGD(momentum=0), 2, 12), (Adam(), 12, 28)])
def test_optimizers_in_float32(rule, flops, nbytes):
    gpu = dry_gpu()
    x, gradient = gpu.empty(10), gpu.empty(10)
    Optimizer(rule, gpu, [x]).step(gpu, [x], [gradient])
    assert (gpu.tape[-1][1].flops, gpu.tape[-1][1].bytes) == (flops * 10, nbytes * 10)


def test_backward_of_linear_is_two_products_and_a_bias_sum():
    gpu = dry_gpu()
    model = Model("m", [Linear("l", 20, 30)])
    model.allocate(gpu)
    y, saved = model.forward(gpu, gpu.empty((4, 20)))
    gpu.tape.clear()
    model.backward(gpu, saved, y)
    assert [cost.flops for _, cost in gpu.tape] == [2 * 4 * 20 * 30, 4 * 30, 2 * 4 * 20 * 30]


def test_frozen_parameters_cost_no_gradient():
    gpu = dry_gpu()
    layer = Linear("l", 20, 30)
    layer.weight.requires_grad = False
    model = Model("m", [layer])
    model.allocate(gpu)
    y, saved = model.forward(gpu, gpu.empty((4, 20)))
    gpu.tape.clear()
    ready = []
    model.backward(gpu, saved, y, ready=ready.append)
    assert [cost.flops for _, cost in gpu.tape] == [4 * 30, 2 * 4 * 20 * 30]
    assert ready == [layer.bias]
    assert layer.weight.grad is None


def test_products_can_be_costed_as_tf32_while_the_rest_stays_float32():
    gpu = dry_gpu()
    model = Model("m", [Linear("l", 4, 12, math="tf32"), Attention("a", 2, math="tf32"), GELU()])
    model.allocate(gpu)
    model.forward(gpu, gpu.empty((1, 3, 4)))
    assert [cost.dtype for _, cost in gpu.tape] == ["tf32", "tf32", "float32", "tf32", "float32"]


def test_attention_products_and_kept_probabilities():
    batch, heads, length, width = 2, 3, 8, 4
    gpu = dry_gpu()
    x = gpu.empty((batch, length, 3 * heads * width), "float16")
    before = gpu.memory.live_bytes
    layer = Attention("a", heads)
    y, saved = layer.forward(gpu, x)
    product = 2 * batch * heads * length * length * width
    assert [cost.flops for _, cost in gpu.tape][::2] == [product, product]
    assert gpu.memory.live_bytes - before == y.nbytes + 2 * batch * heads * length**2
    gpu.tape.clear()
    layer.backward(gpu, saved, y)
    assert sorted(cost.flops for _, cost in gpu.tape)[-4:] == [product] * 4


def test_fused_attention_keeps_one_number_a_row_and_skips_the_masked_half():
    batch, heads, length, width = 2, 3, 8, 4
    plain, fused = dry_gpu(), dry_gpu()
    for gpu, layer in ((plain, Attention("a", heads)), (fused, Attention("a", heads, fused=True))):
        x = gpu.empty((batch, length, 3 * heads * width))
        y, saved = layer.forward(gpu, x)
        del y
    assert fused.memory.live_bytes - x.nbytes == 4 * batch * heads * length
    assert fused.flops() == pytest.approx(plain.flops() * (length + 1) / (2 * length))


def test_a_second_use_of_a_gradient_reads_it_once_more():
    gpu = real_gpu()
    layer = Linear("l", 3, 2, bias=False)
    model = Model("m", [layer])
    model.initialise(gpu, seed=0)
    y, saved = model.forward(gpu, gpu.array(np.ones((1, 3), np.float32)))
    model.backward(gpu, saved, y)
    first, once = gpu.tape[2][1], layer.weight.grad.copy()
    y, saved = model.forward(gpu, gpu.array(np.ones((1, 3), np.float32)))
    gpu.tape.clear()
    model.backward(gpu, saved, y, accumulate=True)
    assert gpu.tape[0][1].bytes == first.bytes + layer.weight.nbytes
    np.testing.assert_array_equal(layer.weight.grad, 2 * once)


def test_initialisation_writes_each_parameter_once():
    gpu = dry_gpu()
    Model("m", [Linear("l", 4, 5)]).initialise(gpu, seed=0)
    assert [(cost.flops, cost.bytes) for _, cost in gpu.tape] == [(0, 80), (0, 20)]
