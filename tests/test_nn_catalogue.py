"""Public models have their published sizes, run dry at full size, and a user's own file is checked row by row."""

from __future__ import annotations

import numpy as np
import pytest
from nn_gpus import dry_gpu, real_gpu

from emu.errors import ConfigError
from emu.nn.architectures import FAMILIES
from emu.nn.catalogue import find, names, source
from emu.nn.describe import describe
from emu.nn.loss import SoftmaxCrossEntropy
from emu.nn.models import gpt, mlp
from emu.nn.transformers import Options

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "bert-large": 335_174_458,  # with the masked-language head
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
    "vgg-16": 138_357_544,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_published(name):
    assert find(name).build().size == PUBLISHED[name]


@pytest.mark.parametrize(
    "name, billions",
    [("small", 0.125), ("medium", 0.350), ("large", 0.760), ("xl", 1.3), ("2.7b", 2.7), ("6.7b", 6.7), ("13b", 13),
     ("175b", 175)],
)  # fmt: skip
def test_gpt3_sizes_are_those_of_the_paper(name, billions):
    assert find(f"gpt3-{name}").build().size == pytest.approx(billions * 1e9, rel=0.04)


@pytest.mark.parametrize("name", names())
def test_every_model_runs_dry_at_full_size(name):
    shape, gpu = find(name), dry_gpu()
    model = shape.build(dtype="float16", fused=True)
    model.allocate(gpu)
    logits, saved = model.forward(gpu, gpu.empty(*shape.inputs(2, "float16")))
    assert logits.shape == (2, *shape.target, shape.classes)
    ready = []
    loss = SoftmaxCrossEntropy()
    _, kept = loss.forward(gpu, logits, gpu.empty(*shape.targets(2)), shape.rows(2))
    model.backward(gpu, saved, loss.backward(gpu, kept), ready=ready.append)
    assert sorted(p.name for p in ready) == sorted(p.name for p in model.parameters())
    assert gpu.memory.live["weights"] == gpu.memory.live["gradients"] == 2 * model.size
    assert source(shape.source) != shape.source


def test_flops_of_a_transformer_step_follow_the_published_formula():
    """96 B s l h² (1 + s/6h + V/16lh) with recomputation, 72 without (Narayanan et al., SC 2021, eq. 2)."""
    shape, batch = find("gpt3-175b"), 4
    s, layers, h, v = 2048, 96, 12288, 50257
    terms = layers * (1 + s / (6 * h)), v / (16 * h)
    for recompute, factor in ((False, 72), (True, 96)):
        costs = describe(shape.build(dtype="float16", recompute=recompute), *shape.inputs(batch))
        flops = sum(cost.forward_flops + cost.backward_flops for cost in costs)
        # The head isn't recomputed; norms, activations and softmax come on top of the formula's products.
        expected = batch * s * h**2 * (factor * terms[0] + 96 * terms[1])
        assert flops == pytest.approx(expected, rel=0.01)


def test_activations_of_a_block_follow_the_published_formula():
    """s b h (34 + 5 a s / h) bytes in 16 bits (Korthikanti et al., 2022, eq. 1), without its dropout masks."""
    shape, batch = find("gpt3-175b"), 1
    s, h, heads = 2048, 12288, 96
    block = describe(shape.build(dtype="float16"), *shape.inputs(batch))[5]
    masks = s * batch * h * 2 + heads * s * s * batch  # one byte an element: after attention, after the MLP, on softmax
    softmax_input = 2 * heads * s * s * batch  # computed in place here
    formula = s * batch * h * (34 + 5 * heads * s / h) - masks - softmax_input
    assert block.activation_bytes == pytest.approx(formula, rel=0.02)


def test_recomputation_keeps_one_input_a_block():
    shape = find("gpt2")
    block = describe(shape.build(dtype="float16", recompute=True), *shape.inputs(2))[5]
    assert block.activation_bytes == 2 * 2 * 1024 * 768


def test_costs_of_layers_sum_to_those_of_a_run_and_leave_the_model_as_it_was():
    gpu, model = real_gpu(), mlp((64, 32, 10))
    model.initialise(gpu, 0)
    data = [parameter.data for parameter in model.parameters()]
    costs = describe(model, (8, 64), "float32")
    assert all(parameter.data is array for parameter, array in zip(model.parameters(), data, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    gpu.tape.clear()
    y, saved = model.forward(gpu, gpu.array(np.zeros((8, 64), np.float32)))
    model.backward(gpu, saved, y)
    assert sum(cost.forward_flops + cost.backward_flops for cost in costs) == gpu.flops()
    assert sum(cost.launches for cost in costs) == len(gpu.tape)
    assert [cost.name for cost in costs] == ["linear0", "gelu0", "linear1"]
    assert [cost.parameters for cost in costs] == [64 * 32 + 32, 0, 32 * 10 + 10]
    assert costs[0].forward_flops == 2 * 8 * 64 * 32 + 8 * 32


def test_resnet_50_takes_4_1_billion_multiply_adds_an_image():
    shape = find("resnet-50")
    costs = describe(shape.build(), *shape.inputs(1))
    assert sum(cost.forward_flops for cost in costs) / 2 == pytest.approx(4.1e9, rel=0.03)


def test_tied_parameters_are_counted_once():
    model = gpt(11, 6, depth=2, width=8, heads=2)
    assert sum(cost.parameters for cost in describe(model, (2, 6), "int32")) == model.size


@pytest.mark.parametrize(
    "family, sizes, example",
    [
        ("llama", {"layers": 2, "width": 16, "heads": 4, "groups": 2, "hidden": 24, "length": 6, "vocabulary": 11}, 6),
        ("bert", {"layers": 2, "width": 16, "heads": 4, "length": 6, "vocabulary": 11, "segments": 2}, 6),
    ],
)
def test_small_models_of_text_learn(family, sizes, example):
    gpu, loss, rng = real_gpu(), SoftmaxCrossEntropy(), np.random.default_rng(0)
    model = FAMILIES[family](sizes, Options(dtype="float64"))
    model.initialise(gpu, 0)
    x = rng.integers(0, 11, (4, example)).astype(np.int32)
    losses = []
    for _ in range(30):
        logits, saved = model.forward(gpu, gpu.array(x))
        stats, kept = loss.forward(gpu, logits, gpu.array(x))
        model.backward(gpu, saved, loss.backward(gpu, kept))
        for parameter in model.parameters():
            parameter.data -= 0.5 * parameter.grad
        losses.append(float(stats[0]))
    assert losses[-1] < losses[0] / 2


def test_a_small_resnet_trains():
    gpu, loss, rng = real_gpu(), SoftmaxCrossEntropy(), np.random.default_rng(0)
    model = FAMILIES["resnet"]({"blocks": [1, 1], "image": [1, 8, 8], "classes": 4}, Options())
    model.initialise(gpu, 0)
    x, targets = rng.random((8, 1, 8, 8), dtype=np.float32), np.arange(8, dtype=np.int32) % 4
    losses = []
    for _ in range(6):
        logits, saved = model.forward(gpu, gpu.array(x))
        stats, kept = loss.forward(gpu, logits, gpu.array(targets))
        model.backward(gpu, saved, loss.backward(gpu, kept))
        for parameter in model.parameters():
            parameter.data -= np.float32(0.05) * parameter.grad
        losses.append(float(stats[0]))
    assert losses[-1] < losses[0] / 2


def test_another_length_changes_examples_and_positions():
    shape = find("gpt2").with_length(256)
    assert shape.inputs(3) == ((3, 256), "int32")
    assert find("gpt2").build().size - shape.build().size == (1024 - 256) * 768
    with pytest.raises(ConfigError, match="only a model of text has a length"):
        find("vgg16").with_length(3)


def test_an_unknown_model_lists_the_nearest_names():
    with pytest.raises(ConfigError, match="unknown model 'gtp2'; did you mean .*gpt2"):
        find("gtp2")


TOML = """
[model]
name = "mine"
input = [3, 32, 32]
[[layers]]
kind = "conv"
outputs = 8
kernel = 3
padding = 1
bias = false
[[layers]]
kind = "batchnorm"
[[layers]]
kind = "relu"
[[layers]]
kind = "maxpool"
kernel = 2
[[layers]]
kind = "avgpool"
[[layers]]
kind = "flatten"
[[layers]]
kind = "linear"
outputs = 10
repeat = 2
"""
CSV = """kind,shape,outputs,kernel,padding,bias,repeat
input,3x32x32,,,,,
conv,,8,3,1,false,
batchnorm,,,,,,
relu,,,,,,
maxpool,,,2,,,
avgpool,,,,,,
flatten,,,,,,
linear,,10,,,,2
"""


@pytest.mark.parametrize("suffix, text", [("toml", TOML), ("csv", CSV)])
def test_a_users_layers_are_built_with_inferred_shapes(tmp_path, suffix, text):
    path = tmp_path / f"mine.{suffix}"
    path.write_text(text)
    shape = find(str(path))
    model, gpu = shape.build(), real_gpu()
    assert (shape.name, shape.example, shape.classes, shape.target) == ("mine", (3, 32, 32), 10, ())
    assert model.size == 8 * 27 + 16 + 90 + 110
    model.initialise(gpu, 0)
    y, saved = model.forward(gpu, gpu.array(np.ones((2, 3, 32, 32), np.float32)))
    model.backward(gpu, saved, y)
    assert y.shape == (2, 10)
    assert len({parameter.name for parameter in model.parameters()}) == len(model.parameters())


def test_a_users_text_model_and_family(tmp_path):
    path = tmp_path / "text.toml"
    path.write_text(
        '[model]\nlength = 16\n[[layers]]\nkind = "embedding"\nvocabulary = 50\nwidth = 24\npositions = 16\n'
        '[[layers]]\nkind = "block"\nheads = 3\nrepeat = 2\n[[layers]]\nkind = "layernorm"\n'
        '[[layers]]\nkind = "linear"\noutputs = 50\n'
    )
    shape = find(str(path))
    assert (shape.inputs(2), shape.targets(2), shape.rows(2)) == (((2, 16), "int32"), ((2, 16), "int32"), 32)
    assert describe(shape.build(), *shape.inputs(2))[-1].parameters == 24 * 50 + 50
    path.write_text(
        '[model]\nfamily = "gpt"\nlayers = 2\nwidth = 8\nheads = 2\nlength = 4\nvocabulary = 5\nname = "tiny"\n'
    )
    assert find(str(path)).build().size == gpt(5, 4, depth=2, width=8, heads=2).size


def test_custom_layers_have_costs_but_run_dry_only(tmp_path):
    path = tmp_path / "measured.csv"
    path.write_text(
        "kind,name,shape,parameters,flops,outputs,saved\ninput,,100,,,,\n"
        "custom,first,,1000,5e6,200,700\ncustom,second,,0,100,10,\n"
    )
    shape = find(str(path))
    first, second = describe(shape.build(), *shape.inputs(4))
    assert (first.parameters, first.forward_flops, first.backward_flops) == (1000, 2e7, 4e7)
    assert first.activation_bytes == 4 * 4 * 900
    assert (second.parameters, second.forward_flops, second.backward_flops) == (0, 400, 400)
    gpu, model = real_gpu(), shape.build()
    model.initialise(gpu, 0)
    with pytest.raises(ConfigError, match="must run dry"):
        model.forward(gpu, gpu.array(np.ones((1, 100), np.float32)))


HEAD = "[model]\ninput = [4]\n"


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r"\[model\]: needs input"),
        ("[model", "must be TOML"),
        (HEAD, "at least one layer is expected"),
        ("[modle]\n", "unknown table 'modle'; did you mean 'model'"),
        ("[model]\ninput = [0]\n[[layers]]\nkind='relu'", "must be whole numbers of at least 1"),
        ("[model]\ninputs = [4]\n", "unknown key 'inputs'; did you mean 'input'"),
        (HEAD + "[[layers]]\nkind = 'lineer'\noutputs = 3", "layer 1: unknown kind 'lineer'; did you mean 'linear'"),
        (HEAD + "[[layers]]\nkind = 'linear'", "layer 1: linear needs the key 'outputs'"),
        (HEAD + "[[layers]]\nkind = 'linear'\noutput = 3", "unknown key 'output'; did you mean 'outputs'"),
        (HEAD + "[[layers]]\nkind = 'linear'\noutputs = -3", "outputs: must be a whole number of at least 1, got -3"),
        (HEAD + "[[layers]]\nkind = 'conv'\noutputs = 3\nkernel = 3", "conv takes examples of 3 dimensions"),
        ("[model]\nfamily = 'gpt'\nlayers = 2", "a gpt needs the key 'width'"),
        ("[model]\nfamily = 'gtp'", "unknown family 'gtp'; did you mean 'gpt'"),
        (
            "[model]\nfamily='gpt'\nlayers=1\nwidth=9\nheads=2\nlength=3\nvocabulary=4",
            "width must be a multiple of heads",
        ),
    ],
)
def test_a_mistake_in_a_users_file_is_named(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        find(str(path))


@pytest.mark.parametrize(
    "text, message",
    [
        ("kind,outputs\nlinear,3\n", "the first row must be of kind input"),
        ("kind,shape\ninput,3xa\n", "must be whole numbers"),
        ("kind,shape,outputs\ninput,4\nlinear,,3\n", "line 2: as many cells as the header"),
        ("kind,shape,outputs\ninput,4,\nlinear,,3.5\n", "outputs: must be a whole number of at least 1, got '3.5'"),
    ],
)
def test_a_mistake_in_a_csv_is_named(tmp_path, text, message):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        find(str(path))


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="nowhere.toml: cannot be read"):
        find("nowhere.toml")
