"""Models that train on real data: an MLP and a CNN for digits, a GPT for characters.

Defaults are small enough for one core of a laptop, and large enough to teach. They are smooth (GELU, mean pooling):
where a rounding error can switch a ReLU, or the winner of a maximum, two float32 runs that sum in another order
part for good (measured over 200 steps of the MLP: 17 % with ReLU, 1e-5 with GELU).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from emu.errors import ConfigError

from .activation import GELU, ReLU
from .conv import Conv2d
from .embedding import Embedding
from .layer import Layer
from .linear import Linear
from .model import Model
from .norm import LayerNorm
from .parameter import normal
from .pool import AvgPool2d, Flatten, MaxPool2d
from .split import Split
from .transformers import Options, embedding_and_head, final, gpt_block

MLP_WIDTHS = (64, 2048, 2048, 1280, 512, 10)
"""7.6 M parameters, 29 MiB in float32: in reverse order a bucket of a few MiB, one above 25 MiB or two below
it, and a last one, so that the first bucket's transfer can hide behind most of backward."""


ACTIVATIONS: dict[str, Callable[[str], Layer]] = {"gelu": GELU, "relu": ReLU}
POOLS: dict[str, Callable[[str, int], Layer]] = {"mean": AvgPool2d, "max": MaxPool2d}


def mlp(
    widths: Sequence[int] = MLP_WIDTHS,
    *,
    activation: str = "gelu",
    dtype: str = "float32",
    math: str | None = None,
) -> Model:
    """Return Linear layers of these widths (inputs first, classes last) with an activation between them."""
    _check_choice("mlp: activation", activation, ACTIVATIONS)
    if len(widths) < 2 or min(widths) < 1:
        raise ConfigError(f"mlp: widths must be two or more numbers of at least 1, got {list(widths)}")
    layers: list[Layer] = []
    last = len(widths) - 2
    for index, (inputs, outputs) in enumerate(zip(widths, widths[1:], strict=False)):
        name = f"linear{index}"
        init = normal(inputs**-0.5) if index == last else None  # the logits start small
        options = {"dtype": dtype, "math": math, "input_gradient": index > 0}
        layers.append(Linear(name, inputs, outputs, init=init, **options))  # type: ignore[arg-type]
        if index < last:
            layers.append(ACTIVATIONS[activation](f"{activation}{index}"))
    return Model("mlp", layers)


def cnn(
    channels: Sequence[int] = (32, 64),
    hidden: int = 256,
    *,
    image: tuple[int, int, int] = (1, 8, 8),
    classes: int = 10,
    activation: str = "gelu",
    pool: str = "mean",
    dtype: str = "float32",
    math: str | None = None,
) -> Model:
    """Return 3 × 3 convolutions, each followed by an activation and 2 × 2 pooling, then two Linear layers.

    Takes images of shape (batch, *image), image being (channels, height, width).
    """
    _check_choice("cnn: activation", activation, ACTIVATIONS)
    _check_choice("cnn: pool", pool, POOLS)
    inputs, height, width = image
    layers: list[Layer] = []
    for index, outputs in enumerate(channels):
        options = {"dtype": dtype, "math": math, "input_gradient": index > 0}
        layers.append(Conv2d(f"conv{index}", inputs, outputs, 3, padding=1, **options))  # type: ignore[arg-type]
        layers += [ACTIVATIONS[activation](f"{activation}{index}"), POOLS[pool](f"pool{index}", 2)]
        inputs, height, width = outputs, height // 2, width // 2
    features = inputs * height * width
    layers += [
        Flatten(),
        Linear("hidden", features, hidden, dtype=dtype, math=math),
        ACTIVATIONS[activation](f"{activation}_hidden"),
        Linear("classes", hidden, classes, init=normal(hidden**-0.5), dtype=dtype, math=math),
    ]
    return Model("cnn", layers)


def gpt(
    vocabulary: int = 128,
    length: int = 64,
    *,
    depth: int = 4,
    width: int = 128,
    heads: int = 4,
    tied: bool = True,
    fused: bool = False,
    recompute: bool = False,
    split: Split | None = None,
    dtype: str = "float32",
    math: str | None = None,
) -> Model:
    """Return a GPT: token and position embedding, `depth` blocks, layer norm, and a head tied to the embedding.

    Takes integers of shape (batch, up to `length`), returns logits (batch, length, vocabulary). With `split` it
    is one rank's part; if that splits the vocabulary, the logits are those of the part's classes.
    Source: Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (pre-norm, GELU,
    deviation 0.02, residual projections scaled by 1 / √(2 depth)).
    """
    if width % heads:
        raise ConfigError(f"gpt: width must be a multiple of heads, got {width} and {heads}")
    options = Options(dtype, math, fused, recompute, split)
    embedding = Embedding("embedding", vocabulary, width, length, dtype=dtype)
    head = options.linear("head", width, vocabulary, bias=False)
    if tied:
        head.weight = embedding.token
    layers, head = embedding_and_head(embedding, head, options)
    layers += [options.block(gpt_block(f"block{i}", width, heads, depth, options)) for i in range(depth)]
    return Model("gpt", [*layers, LayerNorm("norm", width, dtype=dtype), *final(head, options)])


def _check_choice(where: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise ConfigError(f"{where}: must be one of {', '.join(known)}, got {value!r}")
