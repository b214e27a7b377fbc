"""PowerSGD: every matrix of a bucket as the product of two thin ones, found by one power iteration a step.

P = M Q, summed and orthogonalised; Q = Mᵀ P, summed; M ≈ P Qᵀ. The last Q starts the next step; what the product
leaves out is added to the next gradient. Vectors, and matrices that would not shrink twofold, are summed as they are.
Cost: two all-reduces of r (rows + columns) elements in all.
Source: Vogels et al., "PowerSGD", NeurIPS 2019, algorithm 1.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from emu.collectives import find
from emu.gpu import Cost, Gpu
from emu.nn.kernel import launch
from emu.parallel.buckets import Bucket

RANK = 4
MIN_RATE = 2  # how much smaller the factors must be


class PowerSGD:
    """Factors of the matrices of a bucket, kept by parameter."""

    def __init__(self, gpu: Gpu, rank: int = RANK) -> None:
        self.rank = rank
        self.kept: dict[tuple[str, Any], Any] = {}  # factors and residuals, by parameter
        self.all_reduce = find("all_reduce", "ring")

    def __call__(self, gpu: Gpu, comm: Any, bucket: Bucket) -> None:
        """Factor, sum the factors, multiply."""
        p, x = comm.size, bucket.gradients
        thin: list[tuple[Any, Any]] = []
        plain: list[tuple[Any, Any]] = []
        for parameter, view in bucket.views(x):
            rows = parameter.shape[0] if len(parameter.shape) > 1 else 1
            columns = parameter.size // rows if rows else 0
            small = (rows + columns) * self.rank * MIN_RATE < rows * columns
            (thin if small else plain).append((parameter, view.reshape((rows, columns)) if small else view.reshape(-1)))
        ps = comm.empty(sum(m.shape[0] * self.rank for _, m in thin), x.dtype, like=x)
        qs = comm.empty(sum(m.shape[1] * self.rank for _, m in thin), x.dtype, like=x)
        rest = comm.empty(sum(v.size for _, v in plain), x.dtype, like=x)
        for parameter, m in thin:
            if ("factor", parameter) not in self.kept:
                self._begin(gpu, parameter, m, bucket.dtype)
            if ("residual", parameter) not in self.kept:
                self.kept["residual", parameter] = gpu.zeros((m.size,), bucket.dtype, purpose="buffers")
        matrices = [
            (m, self.kept["factor", parameter].reshape((m.shape[1], self.rank)),
             self.kept["residual", parameter].reshape(m.shape))
            for parameter, m in thin
        ]  # fmt: skip
        flops = 2 * self.rank * sum(m.size for _, m in thin)
        cost = Cost(flops, 3 * bucket.nbytes, bucket.dtype)
        launch(gpu, _left, ps, rest, writes=2, cost=cost, name="powersgd P", matrices=matrices,
               plain=[v for _, v in plain])  # fmt: skip
        self.all_reduce(comm, rest)
        self.all_reduce(comm, ps)
        launch(gpu, _right, ps, qs, writes=2, cost=cost, name="powersgd Q", matrices=matrices)
        self.all_reduce(comm, qs)
        launch(gpu, _product, ps, qs, rest, cost=cost, name="powersgd product", matrices=matrices,
               plain=[v for _, v in plain], ranks=p)  # fmt: skip

    def _begin(self, gpu: Gpu, parameter: Any, m: Any, dtype: str) -> None:
        rng = np.random.default_rng([m.shape[1], self.rank, zlib.crc32(parameter.name.encode())])
        q = rng.standard_normal(m.shape[1] * self.rank).astype(np.float32)
        self.kept["factor", parameter] = gpu.array(q, dtype, purpose="buffers", name="powersgd start")


def _cuts(matrices: list[tuple[Any, Any, Any]], side: int) -> list[slice]:
    found, at = [], 0
    for m, q, _ in matrices:
        size = m.shape[side] * q.shape[1]
        found.append(slice(at, at + size))
        at += size
    return found


def _left(xp: Any, ps: Any, rest: Any, matrices: list[tuple[Any, Any, Any]], plain: list[Any]) -> None:
    at = 0
    for v in plain:
        rest[at : at + v.size] = v
        at += v.size
    for (m, q, residual), cut in zip(matrices, _cuts(matrices, 0), strict=True):
        m += residual
        ps[cut] = (m @ q).reshape(-1)


def _right(xp: Any, ps: Any, qs: Any, matrices: list[tuple[Any, Any, Any]]) -> None:
    cuts = zip(_cuts(matrices, 0), _cuts(matrices, 1), strict=True)
    for (m, q, _), (left, right) in zip(matrices, cuts, strict=True):
        p = ps[left].reshape((m.shape[0], q.shape[1]))
        p[...] = xp.linalg.qr(p)[0]
        qs[right] = (m.T @ p).reshape(-1)


def _product(
    xp: Any, ps: Any, qs: Any, rest: Any, matrices: list[tuple[Any, Any, Any]], plain: list[Any], ranks: int
) -> None:
    cuts = zip(_cuts(matrices, 0), _cuts(matrices, 1), strict=True)
    for (m, q, residual), (left, right) in zip(matrices, cuts, strict=True):
        p = ps[left].reshape((m.shape[0], q.shape[1]))
        summed = qs[right].reshape(q.shape)
        q[...] = summed
        product = p @ summed.T
        # A rank's own part of the sum is P Pᵀ M; what that leaves out stays here.
        residual[...] = m - p @ (p.T @ m)
        m[...] = product
    at = 0
    for v in plain:
        v[...] = rest[at : at + v.size]
        at += v.size
