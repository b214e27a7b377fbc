"""Public architectures as layers: what each family makes of its sizes. Run dry they need no memory at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .activation import GELU, ReLU, SwiGLU
from .attention import Attention
from .batchnorm import BatchNorm2d
from .compose import Recompute, Residual, Sequential
from .conv import Conv2d
from .embedding import Embedding
from .layer import Layer
from .linear import Linear
from .model import Model
from .models import gpt as small_gpt
from .norm import LayerNorm
from .parameter import normal
from .pool import AvgPool2d, Flatten, MaxPool2d
from .rmsnorm import RMSNorm
from .rotary import Rotary

Sizes = Mapping[str, Any]


@dataclass(frozen=True)
class Options:
    """How a model is computed: precision of arrays and of products, attention, recomputation of blocks."""

    dtype: str = "float32"
    math: str | None = None
    fused: bool = False
    recompute: bool = False

    def block(self, layer: Layer) -> Layer:
        """Wrap a block for recomputation where that is asked for."""
        return Recompute(layer) if self.recompute else layer


def gpt(sizes: Sizes, options: Options) -> Model:
    """Make a GPT-2 or GPT-3."""
    return small_gpt(
        sizes["vocabulary"], sizes["length"], depth=sizes["layers"], width=sizes["width"], heads=sizes["heads"],
        fused=options.fused, recompute=options.recompute, dtype=options.dtype, math=options.math,
    )  # fmt: skip


def llama(sizes: Sizes, options: Options) -> Model:
    """Make a Llama: RMS norm, rotary positions, grouped queries, SwiGLU, no biases, an untied head."""
    vocabulary, width = sizes["vocabulary"], sizes["width"]
    layers: list[Layer] = [Embedding("embedding", vocabulary, width, dtype=options.dtype)]
    layers += [options.block(_llama_block(f"block{i}", sizes, options)) for i in range(sizes["layers"])]
    layers += [RMSNorm("norm", width, dtype=options.dtype), _linear("head", width, vocabulary, options, bias=False)]
    return Model("llama", layers)


def _llama_block(name: str, sizes: Sizes, options: Options) -> Layer:
    width, heads, hidden = sizes["width"], sizes["heads"], sizes["hidden"]
    groups = sizes.get("groups") or heads
    each = width // heads
    attention: list[Layer] = [
        RMSNorm(f"{name}.norm1", width, dtype=options.dtype),
        _linear(f"{name}.qkv", width, (heads + 2 * groups) * each, options, bias=False),
        Rotary(f"{name}.rotary", heads, groups, base=float(sizes.get("base", 10_000))),
        Attention(f"{name}.attention", heads, groups, fused=options.fused, math=options.math),
        _linear(f"{name}.project", width, width, options, bias=False),
    ]
    feed_forward: list[Layer] = [
        RMSNorm(f"{name}.norm2", width, dtype=options.dtype),
        _linear(f"{name}.gate_up", width, 2 * hidden, options, bias=False),
        SwiGLU(f"{name}.swiglu"),
        _linear(f"{name}.down", hidden, width, options, bias=False),
    ]
    return _two_residuals(name, attention, feed_forward)


def bert(sizes: Sizes, options: Options) -> Model:
    """Make a BERT with its masked-language head, tied to the embedding: norms after the sums, sees both ways."""
    width, dtype = sizes["width"], options.dtype
    embedding = Embedding(
        "embedding", sizes["vocabulary"], width, sizes["length"], segments=sizes.get("segments"), dtype=dtype
    )
    layers: list[Layer] = [embedding, LayerNorm("embedding.norm", width, epsilon=1e-12, dtype=dtype)]
    layers += [options.block(_bert_block(f"block{i}", sizes, options)) for i in range(sizes["layers"])]
    layers += [
        _linear("transform", width, width, options),
        GELU("transform.gelu"),
        LayerNorm("transform.norm", width, epsilon=1e-12, dtype=dtype),
        Linear("head", width, sizes["vocabulary"], dtype=dtype, math=options.math, weight=embedding.token),
    ]
    return Model("bert", layers)


def _bert_block(name: str, sizes: Sizes, options: Options) -> Layer:
    width, heads, dtype = sizes["width"], sizes["heads"], options.dtype
    attention: list[Layer] = [
        _linear(f"{name}.qkv", width, 3 * width, options),
        Attention(f"{name}.attention", heads, causal=False, fused=options.fused, math=options.math),
        _linear(f"{name}.project", width, width, options),
    ]
    feed_forward: list[Layer] = [
        _linear(f"{name}.up", width, 4 * width, options),
        GELU(f"{name}.gelu"),
        _linear(f"{name}.down", 4 * width, width, options),
    ]
    return Sequential(
        name,
        [
            Residual(f"{name}.add1", Sequential(f"{name}.attend", attention)),
            LayerNorm(f"{name}.norm1", width, epsilon=1e-12, dtype=dtype),
            Residual(f"{name}.add2", Sequential(f"{name}.feed", feed_forward)),
            LayerNorm(f"{name}.norm2", width, epsilon=1e-12, dtype=dtype),
        ],
    )


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
    layers += [AvgPool2d("pool"), Flatten(), _linear("classes", inputs, sizes["classes"], options)]
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
        layers += [_linear(f"linear{index + 1}", features, outputs, options), ReLU(f"linear{index + 1}.relu")]
        features = outputs
    return Model("vgg", [*layers, _linear("classes", features, sizes["classes"], options)])


def _linear(name: str, inputs: int, outputs: int, options: Options, bias: bool = True) -> Linear:
    init = normal(0.02)
    return Linear(name, inputs, outputs, bias=bias, init=init, dtype=options.dtype, math=options.math)


def _two_residuals(name: str, first: list[Layer], second: list[Layer]) -> Layer:
    return Sequential(
        name,
        [
            Residual(f"{name}.add1", Sequential(f"{name}.attend", first)),
            Residual(f"{name}.add2", Sequential(f"{name}.feed", second)),
        ],
    )


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
