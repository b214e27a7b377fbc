"""Models: when gradients are ready, tied and frozen parameters, hooks, initial values, and optimizers."""

from __future__ import annotations

import numpy as np
import pytest
from nn_gpus import dry_gpu, real_gpu, strict_gpu

from emu.errors import ConfigError
from emu.nn.compose import Recompute
from emu.nn.linear import Linear
from emu.nn.loss import SoftmaxCrossEntropy
from emu.nn.model import Hooks, Model
from emu.nn.models import MLP_WIDTHS, cnn, gpt, mlp
from emu.nn.optim import SGD, Adam, Optimizer, sum_of_squares
from emu.nn.parameter import Parameter

SMALL = {"vocabulary": 11, "length": 6, "depth": 2, "width": 8, "heads": 2}


def _gradients(model, gpu, x, targets, total, **options):
    logits, saved = model.forward(gpu, gpu.array(x))
    loss = SoftmaxCrossEntropy()
    stats, kept = loss.forward(gpu, logits, gpu.array(targets), total)
    model.backward(gpu, saved, loss.backward(gpu, kept), **options)
    return stats


def _tokens(batch=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 11, (batch, 6)).astype(np.int32), rng.integers(0, 11, (batch, 6)).astype(np.int32)


def test_gradients_become_ready_from_the_last_layer_to_the_first():
    gpu, order = real_gpu(), []
    model = mlp((4, 5, 3))
    model.initialise(gpu, seed=0)
    y, saved = model.forward(gpu, gpu.array(np.ones((2, 4), np.float32)))
    model.backward(gpu, saved, y, ready=lambda parameter: order.append(parameter.name))
    assert order == ["linear1.weight", "linear1.bias", "linear0.weight", "linear0.bias"]


def test_a_gradient_is_ready_while_earlier_layers_are_still_to_come():
    gpu, launches = real_gpu(), {}
    model = gpt(**SMALL)
    model.initialise(gpu, seed=0)
    gpu.tape.clear()
    x, targets = _tokens()
    _gradients(model, gpu, x, targets, 24, ready=lambda p: launches.setdefault(p.name, len(gpu.tape)))
    assert launches["block1.down.weight"] < launches["block1.qkv.weight"] < launches["block0.down.weight"]
    assert launches["block1.down.weight"] < len(gpu.tape) / 2 + len(gpu.tape) / 4


def test_a_tied_gradient_is_ready_once_after_its_last_use_and_sums_both():
    x, targets = _tokens()
    tied, untied = gpt(**SMALL, dtype="float64"), gpt(**SMALL, tied=False, dtype="float64")
    gpu, order = real_gpu(), []
    for model in (tied, untied):
        model.initialise(gpu, seed=0)
    head = untied.layers[-1]
    head.weight.data[...] = untied.layers[0].token.data
    _gradients(tied, gpu, x, targets, 24, ready=lambda p: order.append(p.name))
    _gradients(untied, gpu, x, targets, 24)
    assert order.count("embedding.token") == 1
    assert order.index("embedding.token") >= len(order) - 2
    expected = untied.layers[0].token.grad + head.weight.grad
    np.testing.assert_allclose(tied.layers[0].token.grad, expected, rtol=1e-12, atol=1e-15)
    assert len(tied.parameters()) == len(untied.parameters()) - 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("build", ["gpt", "mlp", "cnn"])
def test_gradients_of_the_parts_of_a_batch_sum_to_those_of_the_whole(build, ranks):
    rng = np.random.default_rng(0)
    make, shape, total = {
        "gpt": (lambda: gpt(**SMALL, dtype="float64"), None, 24),
        "mlp": (lambda: mlp((64, 16, 10), dtype="float64"), (4, 64), 4),
        "cnn": (lambda: cnn((2, 3), 5, dtype="float64"), (4, 1, 8, 8), 4),
    }[build]
    x, targets = _tokens() if shape is None else (rng.random(shape), rng.integers(0, 10, 4).astype(np.int32))
    gpu = real_gpu()
    whole = make()
    whole.initialise(gpu, seed=0)
    loss = _gradients(whole, gpu, x, targets, total)
    sums, stats = [np.zeros(p.shape) for p in whole.parameters()], np.zeros(2)
    for rank in range(ranks):
        part = slice(rank * 4 // ranks, (rank + 1) * 4 // ranks)
        model = make()
        model.initialise(gpu, seed=0)
        stats += _gradients(model, gpu, x[part], targets[part], total)
        for into, parameter in zip(sums, model.parameters(), strict=True):
            into += parameter.grad
    np.testing.assert_allclose(stats, loss, rtol=1e-13)
    for ours, parameter in zip(sums, whole.parameters(), strict=True):
        np.testing.assert_allclose(ours, parameter.grad, rtol=1e-9, atol=1e-15)


def test_accumulated_gradients_of_micro_batches_equal_those_of_the_batch():
    x, targets = _tokens()
    gpu, model, ready = real_gpu(), gpt(**SMALL, dtype="float64"), []
    model.initialise(gpu, seed=0)
    _gradients(model, gpu, x, targets, 24)
    expected = [parameter.grad.copy() for parameter in model.parameters()]
    for index in range(4):
        part = slice(index, index + 1)
        _gradients(model, gpu, x[part], targets[part], 24, accumulate=index > 0, ready=ready.append)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        np.testing.assert_allclose(parameter.grad, gradient, rtol=1e-9, atol=1e-15)
    assert len(ready) == 4 * len(expected)


def test_recomputation_gives_the_same_bits_for_less_memory_and_more_flops():
    x, targets = _tokens()
    peaks, grads, flops = [], [], []
    for recompute in (False, True):
        gpu, model = real_gpu(), gpt(**SMALL | {"depth": 6}, recompute=recompute)
        model.initialise(gpu, seed=0)
        _gradients(model, gpu, x, targets, 24)
        peaks.append(gpu.memory.peak["activations"])
        grads.append([parameter.grad for parameter in model.parameters()])
        flops.append(gpu.flops())
    assert peaks[1] < 0.6 * peaks[0]
    assert 1.2 < flops[1] / flops[0] < 1.4
    for plain, again in zip(*grads, strict=True):
        np.testing.assert_array_equal(plain, again)


def test_hooks_surround_each_layer_so_that_parameters_can_come_and_go():
    gpu, log = real_gpu(), []
    model = Model("m", [Linear("a", 3, 4), Recompute(Linear("b", 4, 2))])
    model.initialise(gpu, seed=0)
    stored = {parameter: parameter.data for parameter in model.parameters()}
    for parameter in stored:
        parameter.data = None

    def gather(gpu, index, layer):
        for parameter in layer.parameters():
            parameter.data = stored[parameter].copy()

    def free(gpu, index, layer):
        log.append(index)
        for parameter in layer.parameters():
            parameter.data = None

    model.hooks = Hooks(gather, free, gather, free)
    y, saved = model.forward(gpu, gpu.array(np.ones((2, 3), np.float32)))
    model.backward(gpu, saved, y)
    assert log == [0, 1, 1, 0]
    assert all(parameter.data is None and parameter.grad.any() for parameter in stored)


def test_gradients_may_be_views_of_one_flat_buffer():
    gpu, model = real_gpu(), mlp((4, 5, 3))
    model.initialise(gpu, seed=0)
    flat, start = gpu.zeros(model.size, purpose="gradients"), 0
    for parameter in reversed(model.parameters()):
        parameter.grad = flat[start : start + parameter.size].reshape(parameter.shape)
        start += parameter.size
    y, saved = model.forward(gpu, gpu.array(np.ones((2, 4), np.float32)))
    model.backward(gpu, saved, y)
    assert flat.any()
    assert all(np.shares_memory(parameter.grad, flat) for parameter in model.parameters())


def test_activations_are_freed_while_backward_goes_on():
    gpu, model = dry_gpu(), mlp((8,) * 20)
    model.allocate(gpu)
    live = []
    y, saved = model.forward(gpu, gpu.empty((64, 8)))
    model.backward(gpu, saved, y, ready=lambda _: live.append(gpu.memory.live["activations"]))
    del y
    assert live[-1] < live[0] / 4
    assert not saved


def test_inference_keeps_nothing():
    gpu, model = dry_gpu(), mlp((8,) * 20)
    model.allocate(gpu)
    _, saved = model.forward(gpu, gpu.empty((64, 8)), keep=False)
    assert saved == []
    assert gpu.memory.peak["activations"] == 2 * 64 * 8 * 4


def test_initial_values_depend_on_seed_and_name_alone():
    first, again, other = Linear("a", 300, 20), Linear("a", 300, 20), Linear("b", 300, 20)
    values = first.weight.initial(7)
    np.testing.assert_array_equal(values, again.weight.initial(7))
    assert not np.array_equal(values, other.weight.initial(7))
    assert not np.array_equal(values, first.weight.initial(8))
    assert values.std() == pytest.approx((2 / 300) ** 0.5, rel=0.05)
    stages = [Model("m", gpt(**SMALL).layers[:2]), Model("m", gpt(**SMALL).layers[2:])]
    whole = {parameter.name: parameter for parameter in gpt(**SMALL).parameters()}
    for stage in stages:
        for parameter in stage.parameters():
            np.testing.assert_array_equal(parameter.initial(3), whole[parameter.name].initial(3))


def test_initial_values_are_the_same_in_every_precision():
    gpu = real_gpu()
    for dtype in ("float64", "float32", "float16"):
        model = mlp((4, 5, 3), dtype=dtype)
        model.initialise(gpu, seed=0)
        weight = model.parameters()[0]
        np.testing.assert_array_equal(weight.data, weight.initial(0).astype(dtype))


def test_the_default_model_fills_three_buckets():
    sizes = [parameter.nbytes for parameter in reversed(mlp().parameters())]
    for close_first in (False, True):  # whether a bucket is closed before or after it passes its size
        buckets, size = 0, 0
        for nbytes in sizes:
            cap = (1 << 20) if buckets == 0 else 25 << 20
            if close_first and size and size + nbytes > cap:
                buckets, size = buckets + 1, 0
            size += nbytes
            if not close_first and size >= cap:
                buckets, size = buckets + 1, 0
        assert buckets + (size > 0) >= 3
    assert sum(sizes) > 26 << 20
    assert MLP_WIDTHS[0] == 64 and MLP_WIDTHS[-1] == 10


def test_sgd_follows_its_definition():
    gpu, rng = real_gpu(), np.random.default_rng(0)
    x, gradients = rng.standard_normal(7), rng.standard_normal((3, 7))
    rule = SGD(learning_rate=0.1, momentum=0.9, weight_decay=0.01)
    expected, velocity = x.copy(), np.zeros(7)
    data = gpu.array(x)
    optimizer = Optimizer(rule, gpu, [data])
    for gradient in gradients:
        velocity = 0.9 * velocity + 0.5 * gradient + 0.01 * expected
        expected = expected - 0.1 * velocity
        optimizer.step(gpu, [data], [gpu.array(gradient)], scale=0.5)
    np.testing.assert_allclose(data, expected, rtol=1e-13)


def test_adam_follows_its_definition():
    gpu, rng = real_gpu(), np.random.default_rng(0)
    x, gradients = rng.standard_normal((2, 4)), rng.standard_normal((3, 2, 4))
    rule = Adam(learning_rate=0.1, weight_decay=0.01)
    expected, m, v = x.copy(), 0.0, 0.0
    data = gpu.array(x)
    optimizer = Optimizer(rule, gpu, [data])
    for t, gradient in enumerate(gradients, 1):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        expected = expected * (1 - 0.1 * 0.01) - 0.1 * step
        optimizer.step(gpu, [data], [gpu.array(gradient)])
    np.testing.assert_allclose(data, expected, rtol=1e-12)


@pytest.mark.parametrize("rule", [SGD(), SGD(momentum=0), Adam(weight_decay=0.1)])
def test_updates_of_a_flat_buffer_of_shards_and_of_each_array_give_the_same_bits(rule):
    gpu, rng, size = real_gpu(), np.random.default_rng(0), 100_003
    start = rng.standard_normal(size).astype(np.float32)
    gradients = rng.standard_normal((3, size)).astype(np.float32)
    results = []
    for cuts in ([], [1, 40_000], [33_333, 66_667]):
        whole = gpu.array(start)
        parts = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
        optimizer = Optimizer(rule, gpu, [whole[part] for part in parts])
        for gradient in gradients:
            device = gpu.array(gradient)
            optimizer.step(gpu, [whole[part] for part in parts], [device[part] for part in parts])
        results.append(whole)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    assert results[0].dtype == np.float32


@pytest.mark.parametrize("rule", [SGD(weight_decay=0.1), Adam(weight_decay=0.1)])
def test_optimizers_run_strict_and_dry(rule):
    tapes = []
    for gpu in (real_gpu(), strict_gpu(), dry_gpu()):
        x, gradient = (gpu.array(np.ones(5, np.float32)) for _ in range(2))
        copy = gpu.array(np.ones(5, np.float16))
        optimizer = Optimizer(rule, gpu, [x])
        optimizer.step(gpu, [x], [gradient], copies=[copy], learning_rate=0.5)
        sum_of_squares(gpu, [x, gradient])
        tapes.append(gpu.tape)
    assert tapes[0] == tapes[1] == tapes[2]


def test_masters_are_rounded_into_their_copies():
    gpu = real_gpu()
    x, gradient = gpu.array(np.full(4, 1 / 3, np.float32)), gpu.array(np.ones(4, np.float16))
    copy = gpu.array(np.zeros(4, np.float16))
    Optimizer(SGD(learning_rate=0.1), gpu, [x]).step(gpu, [x], [gradient], copies=[copy])
    np.testing.assert_array_equal(copy, x.astype(np.float16))
    assert x[0] == pytest.approx(1 / 3 - 0.1)


def test_the_sum_of_squares_finds_infinities():
    gpu = real_gpu()
    values = [gpu.array(np.arange(100_000, dtype=np.float32)), gpu.array(np.ones((2, 2), np.float16))]
    assert sum_of_squares(gpu, values)[0] == pytest.approx((np.arange(1e5) ** 2).sum() + 4)
    values[1][0, 0] = np.inf
    assert np.isinf(sum_of_squares(gpu, values)[0])


@pytest.mark.parametrize("size", [0, 1])
def test_parameters_of_no_or_one_element_train(size):
    gpu = real_gpu()
    model = Model("m", [Linear("a", 3, size), Linear("b", size, 2)])
    model.initialise(gpu, seed=0)
    y, saved = model.forward(gpu, gpu.array(np.ones((2, 3), np.float32)))
    model.backward(gpu, saved, gpu.array(np.ones((2, 2), np.float32)))
    parameters = model.parameters()
    optimizer = Optimizer(Adam(), gpu, [p.data for p in parameters])
    optimizer.step(gpu, [p.data for p in parameters], [p.grad for p in parameters])
    assert [p.grad.shape for p in parameters] == [p.shape for p in parameters]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: SGD(learning_rate=0), "learning_rate must be above 0, got 0"),
        (lambda: SGD(momentum=1), "momentum must be in"),
        (lambda: Adam(beta2=1.0), "beta2 must be in"),
        (lambda: mlp(activation="rely"), "mlp: activation: must be one of gelu, relu, got 'rely'"),
        (lambda: cnn(pool="min"), "cnn: pool: must be one of mean, max"),
        (lambda: mlp((3,)), "widths must be two or more"),
        (lambda: gpt(width=10, heads=3), "width must be a multiple of heads"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_parameter_knows_its_size_in_its_dtype():
    assert Parameter("p", (3, 4), dtype="bfloat16").nbytes == 24
    assert Parameter("p", (), dtype="float64").nbytes == 8
    assert Parameter("p", (0, 4)).nbytes == 0


@pytest.mark.parametrize("build", ["mlp", "cnn", "gpt", "gpt fused"])
def test_whole_steps_are_the_same_on_arrays_that_refuse_numpy_and_dry(build):
    make, x, classes = {
        "mlp": (lambda: mlp((64, 16, 10)), np.ones((4, 64), np.float32), (4,)),
        "cnn": (lambda: cnn((2, 3), 5), np.ones((4, 1, 8, 8), np.float32), (4,)),
        "gpt": (lambda: gpt(**SMALL), _tokens()[0], (4, 6)),
        "gpt fused": (lambda: gpt(**SMALL, fused=True, recompute=True), _tokens()[0], (4, 6)),
    }[build]
    tapes, weights, peaks = [], [], []
    for gpu in (real_gpu(), strict_gpu(), dry_gpu()):
        model = make()
        model.initialise(gpu, seed=0)
        parameters = model.parameters()
        arrays = [parameter.data for parameter in parameters]
        optimizer = Optimizer(Adam(), gpu, arrays)
        for _ in range(2):
            _gradients(model, gpu, x, np.zeros(classes, np.int32), 24)
            optimizer.step(gpu, arrays, [parameter.grad for parameter in parameters])
        tapes.append(gpu.tape)
        peaks.append(gpu.memory.peak)
        weights.append([] if gpu.dry else [gpu.to_host(array) for array in arrays])
    assert tapes[0] == tapes[1] == tapes[2]
    assert peaks[0] == peaks[1] == peaks[2]
    for real, strict in zip(weights[0], weights[1], strict=True):
        np.testing.assert_array_equal(real, strict)
