"""Public architectures as layers: what each family makes of its sizes. Run dry they need no memory at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .activation import GELU, ReLU
from .batchnorm import BatchNorm2d
from .compose import Residual, Sequential
from .conv import Conv2d
from .embedding import Embedding
from .layer import Layer
from .model import Model
from .models import gpt as small_gpt
from .norm import LayerNorm
from .pool import AvgPool2d, Flatten, MaxPool2d
from .rmsnorm import RMSNorm
from .transformers import Options, bert_block, embedding_and_head, final, llama_block

Sizes = Mapping[str, Any]


def gpt(sizes: Sizes, options: Options) -> Model:
    """Make a GPT-2 or GPT-3."""
    return small_gpt(
        sizes["vocabulary"], sizes["length"], depth=sizes["layers"], width=sizes["width"], heads=sizes["heads"],
        fused=options.fused, recompute=options.recompute, split=options.split, dtype=options.dtype, math=options.math,
    )  # fmt: skip


def llama(sizes: Sizes, options: Options) -> Model:
    """Make a Llama: RMS norm, rotary positions, grouped queries, SwiGLU, no biases, an untied head."""
    width, heads = sizes["width"], sizes["heads"]
    groups, base = sizes.get("groups") or heads, float(sizes.get("base", 10_000))
    embedding = Embedding("embedding", sizes["vocabulary"], width, dtype=options.dtype)
    head = options.linear("head", width, sizes["vocabulary"], bias=False)
    layers, head = embedding_and_head(embedding, head, options)
    for index in range(sizes["layers"]):
        block = llama_block(f"block{index}", width, heads, groups, sizes["hidden"], base, options)
        layers.append(options.block(block))
    return Model("llama", [*layers, RMSNorm("norm", width, dtype=options.dtype), *final(head, options)])


def bert(sizes: Sizes, options: Options) -> Model:
    """Make a BERT with its masked-language head, tied to the embedding: norms after the sums, sees both ways."""
    width, dtype = sizes["width"], options.dtype
    embedding = Embedding(
        "embedding", sizes["vocabulary"], width, sizes["length"], segments=sizes.get("segments"), dtype=dtype
    )
    head = options.linear("head", width, sizes["vocabulary"])
    head.weight = embedding.token
    layers, head = embedding_and_head(embedding, head, options)
    layers.append(LayerNorm("embedding.norm", width, epsilon=1e-12, dtype=dtype))
    for index in range(sizes["layers"]):
        layers.append(options.block(bert_block(f"block{index}", width, sizes["heads"], options)))
    layers += [
        options.linear("transform", width, width),
        GELU("transform.gelu"),
        LayerNorm("transform.norm", width, epsilon=1e-12, dtype=dtype),
        *final(head, options),
    ]
    return Model("bert", layers)


def resnet(sizes: Sizes, options: Options) -> Model:
    """Make a ResNet of bottleneck blocks (ResNet-50 and deeper)."""
    layers: list[Layer] = [
        *_conv_norm("stem", sizes["image"][0], 64, 7, 2, options, first=True),
        ReLU("stem.relu"),
        MaxPool2d("stem.pool", 3, 2, padding=1),
    ]
    inputs = 64
    for stage, count in enumerate(sizes["blocks"]):
        inner = 64 * 2**stage
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            name = f"stage{stage + 1}.block{index}"
            layers.append(options.block(_bottleneck(name, inputs, inner, stride, options)))
            inputs = 4 * inner
    layers += [AvgPool2d("pool"), Flatten(), options.linear("classes", inputs, sizes["classes"])]
    return Model("resnet", layers)


def _bottleneck(name: str, inputs: int, inner: int, stride: int, options: Options) -> Layer:
    body = [
        *_conv_norm(f"{name}.conv1", inputs, inner, 1, 1, options),
        ReLU(f"{name}.relu1"),
        *_conv_norm(f"{name}.conv2", inner, inner, 3, stride, options),
        ReLU(f"{name}.relu2"),
        *_conv_norm(f"{name}.conv3", inner, 4 * inner, 1, 1, options),
    ]
    shortcut = None
    if inputs != 4 * inner or stride != 1:
        shortcut = Sequential(f"{name}.short", _conv_norm(f"{name}.short", inputs, 4 * inner, 1, stride, options))
    residual = Residual(f"{name}.add", Sequential(f"{name}.body", body), shortcut)
    return Sequential(name, [residual, ReLU(f"{name}.relu")])


def _conv_norm(
    name: str, inputs: int, outputs: int, kernel: int, stride: int, options: Options, first: bool = False
) -> list[Layer]:
    conv = Conv2d(
        name, inputs, outputs, kernel, stride, kernel // 2, bias=False, dtype=options.dtype, math=options.math,
        input_gradient=not first,
    )  # fmt: skip
    return [conv, BatchNorm2d(f"{name}.norm", outputs, dtype=options.dtype)]


def vgg(sizes: Sizes, options: Options) -> Model:
    """Make a VGG: blocks of 3 × 3 convolutions with ReLU, each ended by 2 × 2 pooling, then three Linear layers."""
    inputs, height, width = sizes["image"]
    layers: list[Layer] = []
    for block, count in enumerate(sizes["blocks"]):
        outputs = min(512, 64 * 2**block)
        for index in range(count):
            name = f"conv{block + 1}_{index + 1}"
            first = not layers
            conv = Conv2d(
                name, inputs, outputs, 3, 1, 1, dtype=options.dtype, math=options.math, input_gradient=not first
            )
            layers += [conv, ReLU(f"{name}.relu")]
            inputs = outputs
        layers.append(MaxPool2d(f"pool{block + 1}", 2))
        height, width = height // 2, width // 2
    layers.append(Flatten())
    features = inputs * height * width
    for index, outputs in enumerate((4096, 4096)):
        layers += [options.linear(f"linear{index + 1}", features, outputs), ReLU(f"linear{index + 1}.relu")]
        features = outputs
    return Model("vgg", [*layers, options.linear("classes", features, sizes["classes"])])


FAMILIES: dict[str, Callable[[Sizes, Options], Model]] = {
    "gpt": gpt,
    "llama": llama,
    "bert": bert,
    "resnet": resnet,
    "vgg": vgg,
}
"""To add an architecture: a function here, its sizes in `SIZES`, and its shapes in emu/catalog/models.toml."""

_TEXT = ("layers", "width", "heads", "length", "vocabulary")
SIZES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gpt": (_TEXT, ()),
    "llama": ((*_TEXT, "hidden"), ("groups", "base")),
    "bert": (_TEXT, ("segments",)),
    "resnet": (("blocks", "image", "classes"), ()),
    "vgg": (("blocks", "image", "classes"), ()),
}
"""The sizes that each family needs, and those that it may be given."""
