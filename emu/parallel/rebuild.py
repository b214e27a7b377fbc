"""Buckets that take over from others: weights, gradients and optimizer state move, one parameter at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emu.gpu import Cost, Gpu
from emu.parallel.buckets import Bucket, flat
from emu.parallel.update import Update


def same_groups(old: Sequence[Bucket], new: Sequence[Bucket]) -> bool:
    """Say whether the new buckets hold the same parameters in the same turns; order within one is no matter."""
    return [set(b.parameters) for b in old] == [set(b.parameters) for b in new]


def take_over(gpu: Gpu, old: Sequence[Bucket], new: Sequence[Bucket], update: Update) -> None:
    """Give the new buckets buffers with the old ones' contents; `update` then works on the new ones."""
    places = {parameter: (i, start) for i, bucket in enumerate(old) for parameter, start in _starts(bucket)}
    for bucket in old:
        bucket.bind_gradients(None)
    # One kind of array after the other, so that no more than one is there twice.
    _replace(gpu, [bucket.weights for bucket in old], new, places, update)
    for bucket in old:
        bucket.weights = None
    update.masters = [_moved(gpu, update.masters, bucket, places) for bucket in new]
    slots = []
    for k in range(update.optimizer.rule.slots):
        slots.append([_moved(gpu, [state[k] for state in update.optimizer.state], bucket, places) for bucket in new])
    update.optimizer.state = [tuple(slot[i] for slot in slots) for i in range(len(new))]
    for bucket in new:
        bucket.bind_gradients(flat(gpu, bucket, "gradients"))


def _replace(
    gpu: Gpu, arrays: Sequence[Any], new: Sequence[Bucket], places: dict[Any, tuple[int, int]], update: Update
) -> None:
    """Give the new buckets weights of their own, with the old ones' values."""
    update.weights = [_moved(gpu, arrays, bucket, places, "weights") for bucket in new]
    for bucket, weights in zip(new, update.weights, strict=True):
        bucket.bind_weights(weights)


def _starts(bucket: Bucket) -> list[tuple[Any, int]]:
    found, start = [], 0
    for parameter in bucket.parameters:
        found.append((parameter, start))
        start += parameter.size
    return found


def _moved(
    gpu: Gpu, arrays: Sequence[Any], bucket: Bucket, places: dict[Any, tuple[int, int]],
    purpose: str = "optimizer state",
) -> Any:  # fmt: skip
    """Return a flat array of the new bucket with what its parameters have in the old buckets' arrays (None: none)."""
    like = arrays[places[bucket.parameters[0]][0]]
    if like is None:
        return None
    made = gpu.empty((bucket.padded,), like.dtype, purpose=purpose)
    parts = []
    for parameter, start in _starts(bucket):
        where, at = places[parameter]
        parts.append((made[start : start + parameter.size], arrays[where][at : at + parameter.size]))
    cost = Cost(0, 2 * made.nbytes, "float32")
    gpu.launch(lambda: _copy_parts(parts), cost=cost, name="rebuild buckets")
    return made


def _copy_parts(parts: list[tuple[Any, Any]]) -> None:
    for into, x in parts:
        into[...] = x
