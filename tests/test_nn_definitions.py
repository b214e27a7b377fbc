"""Outputs of layers against their definitions, written out slowly."""

from __future__ import annotations

from math import erf, sqrt

import numpy as np
import pytest
from nn_gpus import real_gpu

from emu.nn import (
    GELU,
    Attention,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    LayerNorm,
    Linear,
    MaxPool2d,
    Model,
    ReLU,
    RMSNorm,
    Rotary,
    SwiGLU,
)

RNG = np.random.default_rng(0)


def _output(layer, x):
    gpu, model = real_gpu(), Model("m", [layer])
    model.initialise(gpu, seed=0)
    for parameter in model.parameters():
        parameter.data += RNG.standard_normal(parameter.shape) * 0.1
    return model.forward(gpu, gpu.array(x))[0]


def _windows(x, kernel, stride, padding, value, f):
    """Apply f to every window (batch, channels, kernel, kernel) of padded images."""
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)], constant_values=value)
    height, width = ((size - kernel) // stride + 1 for size in x.shape[2:])
    starts = [(i * stride, j * stride) for i in range(height) for j in range(width)]
    columns = [f(x[:, :, i : i + kernel, j : j + kernel]) for i, j in starts]
    return np.stack(columns, axis=-1).reshape(*columns[0].shape, height, width)


def test_linear():
    layer, x = Linear("l", 5, 3, dtype="float64"), RNG.standard_normal((2, 4, 5))
    y = _output(layer, x)
    np.testing.assert_allclose(y, np.einsum("abi,oi->abo", x, layer.weight.data) + layer.bias.data, rtol=1e-13)


def test_activations():
    x = np.linspace(-6, 6, 101)
    np.testing.assert_array_equal(_output(ReLU(), x), np.where(x > 0, x, 0))
    exact = [0.5 * value * (1 + erf(value / sqrt(2))) for value in x]
    np.testing.assert_allclose(_output(GELU(), x), exact, atol=5e-4)  # the tanh form is that close
    pairs = RNG.standard_normal((3, 8))
    gate, value = pairs[:, :4], pairs[:, 4:]
    np.testing.assert_allclose(_output(SwiGLU(), pairs), gate / (1 + np.exp(-gate)) * value, rtol=1e-13)


def test_norms():
    x = RNG.standard_normal((2, 3, 6)) * 3 + 1
    layer = LayerNorm("n", 6, dtype="float64")
    y = _output(layer, x)
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, normal * layer.scale.data + layer.shift.data, rtol=1e-12)
    root = RMSNorm("n", 6, dtype="float64")
    y = _output(root, x)
    np.testing.assert_allclose(y, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * root.scale.data, rtol=1e-12)
    images, batch = RNG.standard_normal((4, 3, 2, 5)), BatchNorm2d("n", 3, dtype="float64")
    y = _output(batch, images)
    mean, variance = images.mean((0, 2, 3), keepdims=True), images.var((0, 2, 3), keepdims=True)
    scale, shift = batch.scale.data[:, None, None], batch.shift.data[:, None, None]
    np.testing.assert_allclose(y, (images - mean) / np.sqrt(variance + 1e-5) * scale + shift, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("heads, groups, causal", [(2, 2, True), (4, 2, True), (4, 1, False)])
def test_attention(heads, groups, causal, fused):
    length, width = 5, 3
    x = RNG.standard_normal((2, length, (heads + 2 * groups) * width))
    y = _output(Attention("a", heads, groups, causal=causal, fused=fused), x)
    parts = x.reshape(2, length, heads + 2 * groups, width)
    for b in range(2):
        for head in range(heads):
            group = head // (heads // groups)
            for t in range(length):
                seen = t + 1 if causal else length
                keys, values = parts[b, :seen, heads + group], parts[b, :seen, heads + groups + group]
                weights = np.exp(keys @ parts[b, t, head] / sqrt(width))
                expected = weights @ values / weights.sum()
                np.testing.assert_allclose(y[b, t, head * width : (head + 1) * width], expected, rtol=1e-11)


def test_rotary():
    heads, width, length = 2, 6, 4
    x = RNG.standard_normal((1, length, 3 * heads * width))
    y = _output(Rotary("r", heads, base=100.0), x).reshape(length, 3 * heads, width)
    turned = x.reshape(length, 3 * heads, width)
    for t in range(length):
        for i in range(width // 2):
            angle = t * 100.0 ** (-2 * i / width)
            first, second = turned[t, :4, i], turned[t, :4, i + width // 2]
            np.testing.assert_allclose(y[t, :4, i], first * np.cos(angle) - second * np.sin(angle), rtol=1e-12)
            np.testing.assert_allclose(y[t, :4, i + 3], second * np.cos(angle) + first * np.sin(angle), rtol=1e-12)


@pytest.mark.parametrize("kernel, stride, padding", [(1, 1, 0), (3, 1, 1), (3, 2, 1), (2, 2, 0), (5, 3, 2)])
def test_convolution_and_pooling(kernel, stride, padding):
    x = RNG.standard_normal((2, 3, 7, 6))
    layer = Conv2d("c", 3, 4, kernel, stride, padding, dtype="float64")
    y = _output(layer, x)

    def product(window):
        return np.einsum("bcij,ocij->bo", window, layer.weight.data) + layer.bias.data

    np.testing.assert_allclose(y, _windows(x, kernel, stride, padding, 0, product), rtol=1e-11, atol=1e-13)
    largest = _windows(x, kernel, stride, padding, -np.inf, lambda window: window.max((2, 3)))
    np.testing.assert_array_equal(_output(MaxPool2d("p", kernel, stride, padding), x), largest)
    mean = _windows(x, kernel, stride, 0, 0, lambda window: window.mean((2, 3)))
    np.testing.assert_allclose(_output(AvgPool2d("p", kernel, stride), x), mean, rtol=1e-11, atol=1e-13)
