"""Communication hooks: sums of a bucket's gradients over the ranks in fewer bytes. What is left out is added next time.

    fp16       half the bytes of float32; no error feedback
    topk       the largest 1 % of elements as (value, index), all-gathered
    onebit     signs and one scale a part, compressed again by each part's owner, with both errors fed back
    powersgd   rank-r factors of every matrix: two small all-reduces

A hook is made for a rank and called as hook(gpu, comm, bucket); it leaves the sum in the bucket's gradients, the same
bits on every rank. Error feedback keeps Σ sent + residual = Σ gradients.
Source: Lin et al., "Deep Gradient Compression", ICLR 2018; Tang et al., "1-bit Adam", ICML 2021; Vogels et al.,
"PowerSGD", NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emu.collectives import find
from emu.gpu import Cost, Gpu
from emu.nn.kernel import launch
from emu.parallel.buckets import Bucket
from emu.parallel.powersgd import PowerSGD


class Fp16:
    """Sends gradients in 16 bits."""

    def __init__(self, gpu: Gpu) -> None:
        self.kept: Kept = {}
        self.all_reduce = find("all_reduce", "ring")

    def __call__(self, gpu: Gpu, comm: Any, bucket: Bucket) -> None:
        """Round, sum, widen."""
        x = bucket.gradients
        half = comm.empty(x.size, "float16", like=x)
        cost = Cost(0, x.nbytes + half.nbytes, bucket.dtype)
        launch(gpu, _narrow, x, half, cost=cost, name="fp16 compress")
        self.all_reduce(comm, half)
        launch(gpu, _widen, half, x, cost=cost, name="fp16 decompress")


Kept = dict[tuple[str, Any], Any]
"""Arrays that a hook keeps from step to step, by kind and by what they belong to: a parameter, or a bucket's number.

A checkpoint holds them. A `residual` is what is yet to be sent of a parameter, `server` what a part's owner has yet to
give on, a `factor` is the same on all ranks.
"""


class Residuals:
    """What was not sent yet, by parameter, in each bucket's order."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def add(self, gpu: Gpu, bucket: Bucket) -> list[Any]:
        """Add the residuals to the gradients; return the residuals' arrays."""
        for parameter in bucket.parameters:
            if ("residual", parameter) not in self._kept:
                self._kept["residual", parameter] = gpu.zeros((parameter.size,), bucket.dtype, purpose="buffers")
        held = [self._kept["residual", parameter] for parameter in bucket.parameters]
        cost = Cost(bucket.size, 3 * bucket.nbytes, bucket.dtype)
        launch(gpu, _add_all, bucket.gradients, cost=cost, name="add residual", parts=held)
        return held

    def keep(self, gpu: Gpu, bucket: Bucket, left: Any, held: list[Any]) -> None:
        """Keep what is left."""
        cost = Cost(0, 2 * bucket.nbytes, bucket.dtype)
        launch(gpu, _spread, left, cost=cost, name="keep residual", parts=held)


class TopK:
    """Sends the largest elements; all ranks add everybody's, in rank order."""

    def __init__(self, gpu: Gpu, ratio: float = 0.01) -> None:
        self.ratio = ratio
        self.kept: Kept = {}
        self.residuals = Residuals(self.kept)
        self.all_gather = find("all_gather", "ring")

    def __call__(self, gpu: Gpu, comm: Any, bucket: Bucket) -> None:
        """Choose, gather, add."""
        x = bucket.gradients
        if not bucket.size:
            return
        count = max(1, int(bucket.size * self.ratio))
        held = self.residuals.add(gpu, bucket)
        values, places = comm.empty(count, x.dtype, like=x), comm.empty(count, "int32", like=x)
        cost = Cost(4 * x.size, 2 * x.nbytes, bucket.dtype)
        launch(gpu, _choose, x, values, places, writes=2, cost=cost, name="choose the largest")
        self.residuals.keep(gpu, bucket, x, held)  # _choose took what is sent out of x
        all_values = comm.empty(count * comm.size, x.dtype, like=x)
        all_places = comm.empty(count * comm.size, "int32", like=x)
        self.all_gather(comm, values, all_values)
        self.all_gather(comm, places, all_places)
        cost = Cost(all_values.size, x.nbytes + 3 * all_values.nbytes, bucket.dtype)
        launch(gpu, _put, all_values, all_places, x, cost=cost, name="add the largest")


class OneBit:
    """Sends signs: to each part's owner, who sums, takes signs again and gives them to all."""

    def __init__(self, gpu: Gpu) -> None:
        self.kept: Kept = {}
        self.residuals = Residuals(self.kept)
        self.all_to_all, self.all_gather = find("all_to_all", "pairwise"), find("all_gather", "ring")

    def __call__(self, gpu: Gpu, comm: Any, bucket: Bucket) -> None:
        """Compress, exchange, sum, compress again, gather."""
        x, p = bucket.gradients, comm.size
        if not bucket.size:
            return
        each = -(-bucket.size // (8 * p)) * 8  # elements of a part, whole bytes of signs
        held = self.residuals.add(gpu, bucket)
        sent = comm.empty(p * (each // 8 + 4), "uint8", like=x)
        cost = Cost(4 * x.size, 3 * x.nbytes, bucket.dtype)
        launch(gpu, _signs, x, sent, cost=cost, name="1-bit compress", parts=p, each=each)
        self.residuals.keep(gpu, bucket, x, held)  # _signs took what is sent out of x
        got = comm.empty_like(sent)
        self.all_to_all(comm, sent, got)
        owed = "server", bucket.index
        if owed not in self.kept:
            self.kept[owed] = gpu.zeros((each,), "float32", purpose="buffers")
        mine = comm.empty(each // 8 + 4, "uint8", like=x)
        cost = Cost(4 * each * p, got.nbytes + 8 * each, bucket.dtype)
        launch(gpu, _sum_signs, got, self.kept[owed], mine, writes=2, cost=cost, name="1-bit sum", parts=p, each=each)
        everyone = comm.empty_like(sent)
        self.all_gather(comm, mine, everyone)
        cost = Cost(x.size, sent.nbytes + x.nbytes, bucket.dtype)
        launch(gpu, _from_signs, everyone, x, cost=cost, name="1-bit decompress", parts=p, each=each)


HOOKS: dict[str, Callable[[Gpu], Any]] = {"fp16": Fp16, "topk": TopK, "onebit": OneBit, "powersgd": PowerSGD}
"""To add a hook: a class here, and its line."""


def _narrow(xp: Any, x: Any, half: Any) -> None:
    half[...] = x.astype(xp.float16)


def _widen(xp: Any, half: Any, x: Any) -> None:
    x[...] = half.astype(x.dtype)


def _add_all(xp: Any, x: Any, parts: list[Any]) -> None:
    at = 0
    for part in parts:
        x[at : at + part.size] += part
        at += part.size


def _spread(xp: Any, left: Any, parts: list[Any]) -> None:
    at = 0
    for part in parts:
        part[...] = left[at : at + part.size]
        at += part.size


def _choose(xp: Any, x: Any, values: Any, places: Any) -> None:
    chosen = xp.argsort(-xp.abs(x), kind="stable")[: values.size]
    values[...] = x[chosen]
    places[...] = chosen.astype(places.dtype)
    x[chosen] = 0


def _put(xp: Any, values: Any, places: Any, x: Any) -> None:
    x.fill(0)
    xp.add.at(x, places, values)


def _pack(xp: Any, x: Any, out: Any) -> Any:
    """Write the scale and the signs of x into out; return what they stand for."""
    scale = xp.mean(xp.abs(x)).astype(xp.float32) if x.size else xp.float32(0)
    positive = x >= 0
    out[:4] = np.frombuffer(np.float32(scale).tobytes(), np.uint8)
    bits = xp.packbits(positive)
    out[4 : 4 + bits.size] = bits
    return xp.where(positive, scale, -scale).astype(x.dtype)


def _unpack(xp: Any, packed: Any, each: int) -> Any:
    scale = packed[:4].view(np.float32)[0]
    return xp.where(xp.unpackbits(packed[4:])[:each] > 0, scale, -scale)


def _signs(xp: Any, x: Any, sent: Any, parts: int, each: int) -> None:
    width = each // 8 + 4
    sent.fill(0)
    for part in range(parts):
        piece = x[part * each : (part + 1) * each]
        piece -= _pack(xp, piece, sent[part * width : (part + 1) * width])


def _sum_signs(xp: Any, got: Any, error: Any, mine: Any, parts: int, each: int) -> None:
    width = each // 8 + 4
    for part in range(parts):
        error += _unpack(xp, got[part * width : (part + 1) * width], each)
    error -= _pack(xp, error, mine)


def _from_signs(xp: Any, everyone: Any, x: Any, parts: int, each: int) -> None:
    width = each // 8 + 4
    for part in range(parts):
        piece = x[part * each : (part + 1) * each]
        piece[...] = _unpack(xp, everyone[part * width : (part + 1) * width], each)[: piece.size]
