"""An all-reduce that adds each element in an order that depends on its place in its parameter alone.

A ring's order depends on which chunk an element falls into, so on the buckets. Here chunk k of a bucket is made of
the k-th piece of each of its parameters: gradients are packed so, go round the ring, and are unpacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emu.collectives import find
from emu.collectives.cuts import even_cuts
from emu.gpu import Cost, Gpu
from emu.nn.kernel import launch
from emu.parallel.buckets import Bucket


def sum_in_one_order(gpu: Gpu, comm: Any, bucket: Bucket) -> None:
    """Sum a bucket's gradients over the ranks of `comm`, with the same bits for any buckets.

    Cost: a ring all-reduce, and two copies of the bucket on the device.
    """
    p = comm.size
    if p == 1 or not bucket.size:
        return
    pieces, counts = _pieces(bucket, p)
    x = bucket.gradients
    packed = comm.empty(bucket.size, x.dtype, like=x)
    cost = Cost(0, 2 * packed.nbytes, bucket.dtype)
    launch(gpu, _pack, x, packed, cost=cost, name="pack", pieces=pieces)
    first = sum(counts[: comm.rank])
    mine = packed[first : first + counts[comm.rank]]
    find("reduce_scatter", "ring")(comm, packed, mine, counts=counts)
    find("all_gather", "ring")(comm, mine, packed, counts=counts)
    launch(gpu, _unpack, packed, x, cost=cost, name="unpack", pieces=pieces)


def _pieces(bucket: Bucket, p: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the bucket's pieces (start, end) in packed order, and the elements of each of the p chunks."""
    cuts, starts, at = [], [], 0
    for parameter in bucket.parameters:
        cuts.append(even_cuts(parameter.size, p))
        starts.append(at)
        at += parameter.size
    pieces = [(s + cut[k], s + cut[k + 1]) for k in range(p) for s, cut in zip(starts, cuts, strict=True)]
    return pieces, [sum(cut[k + 1] - cut[k] for cut in cuts) for k in range(p)]


def _pack(xp: Any, x: Any, packed: Any, pieces: Sequence[tuple[int, int]]) -> None:
    at = 0
    for start, end in pieces:
        packed[at : at + end - start] = x[start:end]
        at += end - start


def _unpack(xp: Any, packed: Any, x: Any, pieces: Sequence[tuple[int, int]]) -> None:
    at = 0
    for start, end in pieces:
        x[start:end] = packed[at : at + end - start]
        at += end - start
