"""Buckets that take over from others: weights, gradients and optimizer state move, one parameter at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emu.gpu import Gpu
from emu.parallel.buckets import Bucket, flat
from emu.parallel.update import Update


def same_groups(old: Sequence[Bucket], new: Sequence[Bucket]) -> bool:
    """Say whether the new buckets hold the same parameters in the same turns; order within one is no matter."""
    return [set(b.parameters) for b in old] == [set(b.parameters) for b in new]


def take_over(gpu: Gpu, old: Sequence[Bucket], new: Sequence[Bucket], update: Update) -> None:
    """Give the new buckets buffers with the old ones' contents; `update` then works on the new ones.

    That weights and optimizer state lie in buckets is emu's way: in DDP only the gradients' buffers are new. So none
    of it takes emulated time, or memory of the emulated GPU beyond what it had.
    """
    places = {parameter: (i, start) for i, bucket in enumerate(old) for parameter, start in _starts(bucket)}
    for bucket in old:
        bucket.bind_gradients(None)
    values, update.weights = _aside([bucket.weights for bucket in old]), []
    for bucket in old:
        bucket.bind_weights(None)
    update.weights = [_moved(gpu, values, bucket, places, "weights") for bucket in new]
    for bucket, weights in zip(new, update.weights, strict=True):
        bucket.bind_weights(weights)
    values, update.masters = _aside(update.masters), []
    update.masters = [_moved(gpu, values, bucket, places) for bucket in new]
    slots = [_aside(slot) for slot in zip(*update.optimizer.state, strict=True)]
    update.optimizer.state = []
    update.optimizer.state = [tuple(_moved(gpu, slot, bucket, places) for slot in slots) for bucket in new]
    for bucket in new:
        bucket.bind_gradients(flat(gpu, bucket, "gradients"))


def _aside(arrays: Sequence[Any]) -> list[Any]:
    """Return copies that are not counted as memory of the GPU."""
    return [None if array is None else array.copy() for array in arrays]


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
    for parameter, start in _starts(bucket):
        where, at = places[parameter]
        made[start : start + parameter.size] = arrays[where][at : at + parameter.size]
    return made
