"""Buckets: gradients gathered into few large messages, so that they travel while backward goes on.

Source: Li et al., "PyTorch Distributed", VLDB 2020: reverse registration order, a small first bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from emu.errors import ConfigError
from emu.gpu import Cost, Gpu
from emu.nn.kernel import launch
from emu.nn.parameter import Parameter

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclass(eq=False)
class Bucket:
    """Some parameters of one dtype; `weights` and `gradients` are flat buffers that theirs are views of.

    Where ranks share a bucket, its buffers are padded to a multiple of `parts`, and `shard` and `shard_gradient`
    are this rank's part.
    """

    index: int
    parameters: list[Parameter]
    dtype: str
    parts: int = 1
    weights: Any = None
    gradients: Any = None
    shard: Any = None
    shard_gradient: Any = None
    missing: int = 0  # parameters whose gradient is not final yet
    sent: Any = field(default=None, repr=False)  # event after its communication
    size: int = field(init=False)  # elements in all, without padding
    padded: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = sum(parameter.size for parameter in self.parameters)
        self.padded = -(-self.size // self.parts) * self.parts

    @property
    def nbytes(self) -> int:
        """Bytes of its gradients, without padding."""
        return sum(parameter.nbytes for parameter in self.parameters)

    def mine(self, flat: Any, part: int) -> Any:
        """Return a view of one part of a flat buffer."""
        each = self.padded // self.parts
        return flat[part * each : (part + 1) * each]

    def views(self, flat: Any) -> Iterable[tuple[Parameter, Any]]:
        """Yield each parameter with its view of a flat buffer."""
        start = 0
        for parameter in self.parameters:
            end = start + parameter.size
            yield parameter, flat[start:end].reshape(parameter.shape)
            start = end

    def bind_weights(self, flat: Any) -> None:
        """Make `flat` the weights, and the parameters' data views of it (None: they are not there)."""
        self.weights = flat
        if flat is None:
            for parameter in self.parameters:
                parameter.data = None
            return
        for parameter, view in self.views(flat):
            parameter.data = view

    def bind_gradients(self, flat: Any) -> None:
        """Make `flat` the gradients, and the parameters' views of it (None: they are not there)."""
        self.gradients = flat
        if flat is None:
            for parameter in self.parameters:
                parameter.grad = None
            return
        for parameter, view in self.views(flat):
            parameter.grad = view


def assign(
    parameters: Sequence[Parameter],
    bucket_bytes: int = BUCKET_BYTES,
    first_bytes: int = FIRST_BUCKET_BYTES,
    parts: int = 1,
    counts: Callable[[Parameter], bool] = lambda parameter: True,
) -> list[Bucket]:
    """Cut parameters, in reverse order, into buckets by dtype; a bucket is full once it holds its limit or more.

    The first bucket's limit is `first_bytes` (or the other limit, if that is smaller). Parts of larger tensors
    (of tensor parallelism) have buckets of their own, and so have parameters that do not count in norms here. Buckets
    are in the order in which they are complete, since each waits for those before it.
    """
    if bucket_bytes < 1:
        raise ConfigError(f"bucket: at least 1 byte is expected, got {bucket_bytes}; try '25 MiB'")
    groups: list[list[Parameter]] = []
    open_groups: dict[Any, list[Parameter]] = {}
    held: dict[Any, int] = {}
    filled, complete = 0, dict[int, int]()  # group -> place of its last parameter
    for place, parameter in enumerate(reversed(parameters)):
        key = parameter.dtype, parameter.cut is not None, counts(parameter)
        group = open_groups.get(key)
        if group is None:
            group = open_groups[key] = []
            groups.append(group)
            held[key] = 0
        group.append(parameter)
        complete[id(group)] = place
        held[key] += parameter.nbytes
        if held[key] >= (min(first_bytes, bucket_bytes) if filled == 0 else bucket_bytes):
            filled += 1
            del open_groups[key]
    groups.sort(key=lambda group: complete[id(group)])
    return [Bucket(i, group, group[0].dtype, parts) for i, group in enumerate(groups)]


def allocate(gpu: Gpu, buckets: Sequence[Bucket], gradients: bool = True) -> None:
    """Give each bucket flat buffers, and its parameters views of them."""
    for bucket in buckets:
        bucket.bind_weights(flat(gpu, bucket, "weights"))
        if gradients:
            bucket.bind_gradients(gpu.zeros((bucket.padded,), bucket.dtype, purpose="gradients"))


def flat(gpu: Gpu, bucket: Bucket, purpose: str) -> Any:
    """Allocate a bucket's flat buffer, its padding zero."""
    made = gpu.empty((bucket.padded,), bucket.dtype, purpose=purpose)
    if bucket.padded > bucket.size:
        made[bucket.size :].fill(0)
    return made


def frozen(parameters: Iterable[Parameter], parts: int = 1) -> list[Bucket]:
    """Put each parameter that requires no gradient into a bucket of its own."""
    return [Bucket(-1, [p], p.dtype, parts) for p in parameters if not p.requires_grad]


def clear(gpu: Gpu, array: Any, dtype: str, name: str = "clear") -> None:
    """Fill an array with zeros, as a kernel."""
    launch(gpu, _fill_zero, array, cost=Cost(0, array.nbytes, dtype), name=name)


def _fill_zero(xp: Any, array: Any) -> None:
    array.fill(0)
