"""Gradients divided by the number of replicas, before their sum or after it.

The training loop's loss is the mean over the global batch: gradients sum and nothing need be divided. Where the loss
is the mean over a rank's own part, they average: divided before the sum, as PyTorch's DDP does, 16 bits don't
overflow; after it, small ones don't vanish.
"""

from __future__ import annotations

from typing import Any

from emu.catalog.schema import unknown
from emu.errors import ConfigError
from emu.gpu import Cost, Gpu
from emu.nn.kernel import dtype_name, launch

AVERAGES = ("none", "before", "after")


def averaged(gpu: Gpu, x: Any, average: str, now: str, parts: int) -> None:
    """Divide gradients by the number of replicas if `average` says that it is done `now`, before or after a sum."""
    if average == now and parts > 1:
        launch(gpu, _divide, x, cost=Cost(x.size, 2 * x.nbytes, dtype_name(x)), name="average", parts=parts)


def check_average(average: str) -> None:
    """Raise ConfigError for an unknown way to average."""
    if average not in AVERAGES:
        raise ConfigError(f"average: {unknown('way', average, AVERAGES)}")


def _divide(xp: Any, x: Any, parts: int) -> None:
    xp.multiply(x, 1 / parts, out=x)
