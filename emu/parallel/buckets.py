"""Buckets: gradients gathered into few large messages, so that they travel while backward goes on.

Source: Li et al., "PyTorch Distributed", VLDB 2020: reverse registration order, a small first bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from emu.errors import ConfigError
from emu.gpu import Gpu
from emu.nn.parameter import Parameter

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclass(eq=False)
class Bucket:
    """Some parameters of one dtype; `weights` and `gradients` are flat buffers that theirs are views of."""

    index: int
    parameters: list[Parameter]
    dtype: str
    weights: Any = None
    gradients: Any = None
    missing: int = 0  # parameters whose gradient is not final yet
    sent: Any = field(default=None, repr=False)  # event after its communication

    @property
    def size(self) -> int:
        """Elements in all."""
        return sum(parameter.size for parameter in self.parameters)

    @property
    def nbytes(self) -> int:
        """Bytes of its gradients."""
        return sum(parameter.nbytes for parameter in self.parameters)


def assign(
    parameters: Sequence[Parameter], bucket_bytes: int = BUCKET_BYTES, first_bytes: int = FIRST_BUCKET_BYTES
) -> list[Bucket]:
    """Cut parameters, in reverse order, into buckets by dtype; a bucket is full once it holds its limit or more.

    The first bucket's limit is `first_bytes` (or the other limit, if that is smaller).
    """
    if bucket_bytes < 1:
        raise ConfigError(f"bucket: at least 1 byte is expected, got {bucket_bytes}; try '25 MiB'")
    groups: list[list[Parameter]] = []
    open_groups: dict[str, list[Parameter]] = {}
    filled = 0
    for parameter in reversed(parameters):
        group = open_groups.get(parameter.dtype)
        if group is None:
            group = open_groups[parameter.dtype] = []
            groups.append(group)
        group.append(parameter)
        limit = min(first_bytes, bucket_bytes) if filled == 0 else bucket_bytes
        if sum(each.nbytes for each in group) >= limit:
            filled += 1
            del open_groups[parameter.dtype]
    return [Bucket(i, group, group[0].dtype) for i, group in enumerate(groups)]


def allocate(gpu: Gpu, buckets: Sequence[Bucket], gradients: bool = True) -> None:
    """Give each bucket flat buffers, and its parameters views of them."""
    for bucket in buckets:
        bucket.weights = gpu.empty((bucket.size,), bucket.dtype, purpose="weights")
        if gradients:
            bucket.gradients = gpu.zeros((bucket.size,), bucket.dtype, purpose="gradients")
        start = 0
        for parameter in bucket.parameters:
            end = start + parameter.size
            parameter.data = bucket.weights[start:end].reshape(parameter.shape)
            if gradients:
                parameter.grad = bucket.gradients[start:end].reshape(parameter.shape)
            start = end
