"""Every layer: gradients against finite differences, the same on arrays that are not numpy's, the same costs dry."""

from __future__ import annotations

import numpy as np
import pytest
from nn_gpus import dry_gpu, real_gpu, strict_gpu

from emu.errors import ConfigError
from emu.nn.activation import GELU, ReLU, SwiGLU
from emu.nn.attention import Attention
from emu.nn.batchnorm import BatchNorm2d
from emu.nn.compose import Recompute, Residual, Sequential
from emu.nn.conv import Conv2d
from emu.nn.embedding import Embedding
from emu.nn.linear import Linear
from emu.nn.loss import SoftmaxCrossEntropy
from emu.nn.model import Model
from emu.nn.norm import LayerNorm
from emu.nn.pool import AvgPool2d, Flatten, MaxPool2d
from emu.nn.rmsnorm import RMSNorm
from emu.nn.rotary import Rotary

D = {"dtype": "float64"}


def _block():
    inner = [LayerNorm("n", 6, **D), Linear("a", 6, 9, **D), GELU(), Linear("b", 9, 6, **D)]
    return Residual("r", Sequential("s", inner))


LAYERS = {
    "linear": (lambda: Linear("l", 5, 7, **D), (4, 5)),
    "linear of 3 dimensions": (lambda: Linear("l", 5, 7, **D), (2, 3, 5)),
    "linear without bias": (lambda: Linear("l", 5, 7, bias=False, **D), (4, 5)),
    "relu": (lambda: ReLU(), (4, 5)),
    "gelu": (lambda: GELU(), (4, 5)),
    "layer norm": (lambda: LayerNorm("n", 6, **D), (2, 3, 6)),
    "batch norm": (lambda: BatchNorm2d("n", 3, **D), (4, 3, 2, 3)),
    "rms norm": (lambda: RMSNorm("n", 6, **D), (2, 3, 6)),
    "swiglu": (lambda: SwiGLU(), (2, 3, 8)),
    "rotary": (lambda: Rotary("r", 4, 2), (2, 5, (4 + 2 * 2) * 6)),
    "attention": (lambda: Attention("a", 3), (2, 5, 3 * 3 * 4)),
    "attention both ways": (lambda: Attention("a", 3, causal=False), (2, 5, 3 * 3 * 4)),
    "attention, grouped": (lambda: Attention("a", 4, 2), (2, 5, (4 + 2 * 2) * 3)),
    "attention, fused": (lambda: Attention("a", 4, 2, fused=True), (2, 5, (4 + 2 * 2) * 3)),
    "attention of 1": (lambda: Attention("a", 1), (1, 1, 3)),
    "convolution": (lambda: Conv2d("c", 3, 4, 3, padding=1, **D), (2, 3, 5, 6)),
    "convolution, stride 2": (lambda: Conv2d("c", 3, 4, 3, stride=2, padding=1, **D), (2, 3, 6, 5)),
    "convolution 1 × 1": (lambda: Conv2d("c", 3, 4, 1, bias=False, **D), (2, 3, 4, 4)),
    "max pool": (lambda: MaxPool2d("p", 2), (2, 3, 6, 5)),
    "max pool, overlapping": (lambda: MaxPool2d("p", 3, 2, padding=1), (2, 3, 6, 5)),
    "mean pool": (lambda: AvgPool2d("p", 2), (2, 3, 6, 4)),
    "mean pool of the image": (lambda: AvgPool2d("p"), (2, 3, 4, 4)),
    "flatten": (lambda: Flatten(), (2, 3, 4)),
    "residual": (_block, (4, 6)),
    "residual with shortcut": (
        lambda: Residual("r", Linear("a", 5, 7, **D), Linear("b", 5, 7, **D)),
        (4, 5),
    ),
    "residual of a view": (lambda: Residual("r", Residual("q", Flatten())), (3, 4)),
    "recomputed": (lambda: Recompute(_block()), (4, 6)),
}
NAMES = list(LAYERS)


def _forward(gpu, layer, x):
    y, saved = layer.forward(gpu, gpu.array(x))
    return gpu.to_host(y), saved


def _scalar(layer, x, direction):
    return float(np.sum(_forward(real_gpu(), layer, x)[0] * direction))


def _difference(f, array, index, step=1e-6):
    kept = array[index]
    array[index] = kept + step
    above = f()
    array[index] = kept - step
    below = f()
    array[index] = kept
    return (above - below) / (2 * step)


def _some(shape, rng, count=12):
    size = int(np.prod(shape))
    picks = rng.choice(size, size=min(count, size), replace=False)
    return [np.unravel_index(pick, shape) for pick in picks]


def _run(gpu, make, shape, seed=0):
    """Run forward and backward; return what they gave, on the host."""
    rng = np.random.default_rng(seed)
    layer = make()
    model = Model("m", [layer])
    model.initialise(gpu, seed=1)
    y, saved = model.forward(gpu, gpu.array(rng.standard_normal(shape)))
    dx = model.backward(gpu, saved, gpu.array(rng.standard_normal(y.shape)))
    if gpu.dry:
        return model, y, dx
    return model, gpu.to_host(y), gpu.to_host(dx)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_equal_finite_differences(name):
    make, shape = LAYERS[name]
    gpu, rng = real_gpu(), np.random.default_rng(3)
    layer = make()
    model = Model("m", [layer])
    model.initialise(gpu, seed=1)
    for parameter in model.parameters():  # shifts and biases start at 0, scales at 1
        parameter.data += rng.standard_normal(parameter.shape) * 0.1
    x = rng.standard_normal(shape)
    y, saved = layer.forward(gpu, gpu.array(x))
    direction = rng.standard_normal(y.shape)
    dx = model.backward(gpu, [saved], gpu.array(direction))
    for index in _some(shape, rng):
        expected = _difference(lambda: _scalar(layer, x, direction), x, index)
        assert dx[index] == pytest.approx(expected, rel=1e-6, abs=1e-7)
    for parameter in model.parameters():
        for index in _some(parameter.shape, rng):
            expected = _difference(lambda: _scalar(layer, x, direction), parameter.data, index)
            assert parameter.grad[index] == pytest.approx(expected, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_layers_run_on_arrays_that_refuse_to_become_numpy(name):
    expected = _run(real_gpu(), *LAYERS[name])
    model, y, dx = _run(strict_gpu(), *LAYERS[name])
    np.testing.assert_allclose(y, expected[1], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(dx, expected[2], rtol=1e-12, atol=1e-14)
    for ours, theirs in zip(model.parameters(), expected[0].parameters(), strict=True):
        np.testing.assert_allclose(ours.grad.get(), theirs.grad, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_dry_launches_and_memory_equal_the_real_ones(name):
    real, dry = real_gpu(), dry_gpu()
    _, y, dx = _run(real, *LAYERS[name])
    _, dry_y, dry_dx = _run(dry, *LAYERS[name])
    assert dry.tape == real.tape
    assert (dry_y.shape, dry_y.dtype, dry_dx.shape) == (y.shape, y.dtype, dx.shape)
    assert dry.memory.peak == real.memory.peak
    assert dry.memory.peak_bytes == real.memory.peak_bytes


@pytest.mark.parametrize("name", NAMES)
def test_layers_do_not_write_into_what_they_are_given(name):
    make, shape = LAYERS[name]
    gpu, rng = real_gpu(), np.random.default_rng(0)
    model = Model("m", [make()])
    model.initialise(gpu, seed=1)
    x = rng.standard_normal(shape)
    given = gpu.array(x)
    y, saved = model.forward(gpu, given)
    direction = rng.standard_normal(y.shape)
    dy = gpu.array(direction)
    model.backward(gpu, saved, dy)
    np.testing.assert_array_equal(given, x)
    np.testing.assert_array_equal(dy, direction)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "flatten"])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-5), ("float16", 2e-2), ("bfloat16", 2e-1)])
def test_lower_precisions_keep_their_dtype_and_come_close(name, dtype, tolerance, monkeypatch):
    make, shape = LAYERS[name]
    _, exact, exact_dx = _run(real_gpu(), make, shape)
    monkeypatch.setitem(D, "dtype", dtype)
    gpu, rng = real_gpu(), np.random.default_rng(0)
    model = Model("m", [make()])
    model.initialise(gpu, seed=1)
    y, saved = model.forward(gpu, gpu.array(rng.standard_normal(shape), dtype))
    dx = model.backward(gpu, saved, gpu.array(rng.standard_normal(y.shape), dtype))
    assert {str(array.dtype) for array in (y, dx, *(p.grad for p in model.parameters()))} == {dtype}
    np.testing.assert_allclose(y.astype(np.float64), exact, atol=tolerance * np.abs(exact).max())
    if "max pool" not in name:  # rounding changes which of two near pixels is the larger one
        np.testing.assert_allclose(dx.astype(np.float64), exact_dx, atol=tolerance * np.abs(exact_dx).max())
    assert {cost.dtype for _, cost in gpu.tape} == {dtype}


@pytest.mark.parametrize("positions, segments", [(None, None), (8, None), (8, 2)])
def test_embedding_gradients_sum_over_equal_tokens(positions, segments):
    gpu, rng = real_gpu(), np.random.default_rng(0)
    layer = Embedding("e", 7, 3, positions, segments=segments, dtype="float64")
    model = Model("m", [layer])
    model.initialise(gpu, seed=0)
    tokens = rng.integers(0, 7, (4, 5)).astype(np.int32)
    y, saved = model.forward(gpu, gpu.array(tokens))
    direction = rng.standard_normal(y.shape)
    assert model.backward(gpu, saved, gpu.array(direction)) is None
    expected = np.zeros((7, 3))
    for token, row in zip(tokens.reshape(-1), direction.reshape(-1, 3), strict=True):
        expected[token] += row
    np.testing.assert_allclose(layer.token.grad, expected, atol=1e-14)
    values = layer.token.data[tokens]
    if layer.position is not None:
        values = values + layer.position.data[:5]
        np.testing.assert_allclose(layer.position.grad[:5], direction.sum(axis=0), atol=1e-14)
        assert not layer.position.grad[5:].any()
    if layer.segment is not None:
        values = values + layer.segment.data[0]
        np.testing.assert_allclose(layer.segment.grad, [direction.sum(axis=(0, 1)), [0] * 3], atol=1e-14)
    np.testing.assert_array_equal(y, values)


def test_embedding_runs_strict_and_dry():
    tokens = np.array([[1, 2, 1]], np.int32)
    tapes = []
    for gpu in (real_gpu(), strict_gpu(), dry_gpu()):
        model = Model("m", [Embedding("e", 4, 3, 6, segments=2)])
        model.initialise(gpu, seed=0)
        y, saved = model.forward(gpu, gpu.array(tokens))
        model.backward(gpu, saved, y)
        tapes.append(gpu.tape)
    assert tapes[0] == tapes[1] == tapes[2]


def test_fused_attention_equals_plain_attention():
    plain = _run(real_gpu(), lambda: Attention("a", 4, 2), (2, 6, 8 * 3))
    fused = _run(real_gpu(), lambda: Attention("a", 4, 2, fused=True), (2, 6, 8 * 3))
    np.testing.assert_allclose(fused[1], plain[1], rtol=1e-12)
    np.testing.assert_allclose(fused[2], plain[2], rtol=1e-10, atol=1e-13)


def test_causal_attention_does_not_see_later_positions():
    gpu, rng = real_gpu(), np.random.default_rng(0)
    layer, x = Attention("a", 2), rng.standard_normal((1, 6, 24))
    before = _forward(gpu, layer, x)[0]
    x[:, 4:] += 1
    after = _forward(gpu, layer, x)[0]
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert not np.array_equal(before[:, 4:], after[:, 4:])


def test_rotary_scores_depend_on_distance_alone():
    gpu, width = real_gpu(), 8
    x = np.tile(np.random.default_rng(0).standard_normal((1, 1, 3 * width)), (1, 6, 1))
    y, _ = Rotary("r", 1).forward(gpu, gpu.array(x))
    scores = y[0, :, :width] @ y[0, :, width : 2 * width].T
    for distance in range(6):
        np.testing.assert_allclose(np.diagonal(scores, distance), scores[0, distance], rtol=1e-12)
    np.testing.assert_array_equal(y[..., 2 * width :], x[..., 2 * width :])


def test_max_pool_gives_a_tie_to_one_pixel():
    gpu = real_gpu()
    layer = MaxPool2d("p", 2)
    y, saved = layer.forward(gpu, gpu.array(np.ones((1, 1, 4, 4))))
    dx = layer.backward(gpu, saved, gpu.array(np.ones(y.shape)))
    assert dx.sum() == 4


@pytest.mark.parametrize("scale", [1.0, 128.0])
def test_loss_and_its_gradient_equal_finite_differences(scale):
    gpu, rng = real_gpu(), np.random.default_rng(0)
    logits, targets = rng.standard_normal((2, 3, 5)), rng.integers(0, 5, (2, 3)).astype(np.int32)
    loss = SoftmaxCrossEntropy()

    def value():
        return float(loss.forward(gpu, gpu.array(logits), gpu.array(targets), total=11)[0][0])

    stats, saved = loss.forward(gpu, gpu.array(logits), gpu.array(targets), total=11)
    gradient = loss.backward(gpu, saved, scale)
    shifted = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(shifted, targets[..., None], -1)).sum() / 11
    assert stats[0] == pytest.approx(expected, rel=1e-12)
    assert stats[1] == (logits.argmax(-1) == targets).sum()
    for index in _some(logits.shape, rng):
        assert gradient[index] == pytest.approx(scale * _difference(value, logits, index), rel=1e-6, abs=1e-8)


def test_a_small_loss_keeps_its_digits_in_float32():
    gpu = real_gpu()
    logits = np.zeros((1, 3), np.float32)
    logits[0, 1] = 16
    stats, _ = SoftmaxCrossEntropy().forward(gpu, gpu.array(logits), gpu.array(np.array([1], np.int32)))
    assert stats[0] == pytest.approx(np.log1p(2 * np.exp(-16.0)), rel=1e-6)


def test_loss_runs_strict_and_dry():
    logits, targets = np.ones((4, 3), np.float32), np.zeros(4, np.int32)
    tapes = []
    for gpu in (real_gpu(), strict_gpu(), dry_gpu()):
        _, saved = SoftmaxCrossEntropy().forward(gpu, gpu.array(logits), gpu.array(targets), total=8)
        SoftmaxCrossEntropy().backward(gpu, saved)
        tapes.append(gpu.tape)
    assert tapes[0] == tapes[1] == tapes[2]


def test_empty_batches_pass_through():
    gpu = real_gpu()
    model = Model("m", [Linear("a", 4, 3), ReLU(), Linear("b", 3, 2)])
    model.initialise(gpu, seed=0)
    logits, saved = model.forward(gpu, gpu.array(np.zeros((0, 4), np.float32)))
    loss = SoftmaxCrossEntropy()
    stats, kept = loss.forward(gpu, logits, gpu.array(np.zeros(0, np.int32)), total=4)
    model.backward(gpu, saved, loss.backward(gpu, kept))
    assert stats.tolist() == [0, 0]
    assert all(not parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize(
    "make, shape, message",
    [
        (lambda: Embedding("e", 4, 3, 2), (1, 3), "e: a length of at most 2 is expected, got 3"),
        (lambda: Rotary("r", 1), (1, 2, 9), "r: heads of an even width are expected, got 3"),
        (lambda: Attention("a", 3), (2, 5, 10), "a: the input must have shape"),
        (lambda: Conv2d("c", 1, 1, 5), (1, 1, 3, 3), "c: a window of 5 must fit into 3"),
        (lambda: MaxPool2d("p", 4), (1, 1, 3, 3), "p: a window of 4 must fit"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(make, shape, message):
    with pytest.raises(ConfigError, match=message):
        _run(real_gpu(), make, shape)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="heads must be a multiple"):
        Attention("a", 4, 3)
