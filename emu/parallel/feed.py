"""Every worker's part of each global batch, scattered from rank 0 some steps at a time."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

from emu.collectives import find
from emu.gpu import Gpu
from emu.nn import data
from emu.nn.data import Dataset

SCATTER_STEPS = 64  # steps whose batches are scattered at a time


class Feed:
    """The rows of one rank. Ranks of one worker get the same rows; those of worker -1 get none."""

    def __init__(
        self, gpu: Gpu, dataset: Dataset, worker: int, workers: int, batch: int, steps: int, seed: int
    ) -> None:
        self.gpu, self.dataset, self.worker, self.workers = gpu, dataset, worker, workers
        self.batch, self.steps, self.seed = batch, steps, seed
        # of all ranks, worked out once for all that share this process
        self.everyone, self.rows_of = gpu.comm.wire.exchange(worker, partial(_rows_of_all, batch, workers))
        self.first = -SCATTER_STEPS
        self.inputs: Any = None
        self.targets: Any = None

    def host_batch(self, step: int) -> tuple[Any, Any]:
        """Return this worker's rows of a step's batch, in host memory. Collective."""
        self.fetch(step)
        if self.worker < 0:
            return None, None
        mine = self.rows_of[self.gpu.rank]
        start = (step - self.first) * mine
        return self.inputs[start : start + mine], self.targets[start : start + mine]

    def fetch(self, step: int) -> range:
        """Scatter the batches from this step on, where they are not here; return the steps that are. Collective."""
        if not self.first <= step < self.first + SCATTER_STEPS:
            self.first = step
            steps = range(step, min(step + SCATTER_STEPS, self.steps))
            with self.gpu.span("scatter data"):
                self.inputs = self._scatter(self.dataset.inputs, steps)
                self.targets = self._scatter(self.dataset.targets, steps)
        return range(self.first, min(self.first + SCATTER_STEPS, self.steps))

    def _scatter(self, rows: np.ndarray, steps: range) -> Any:
        """Scatter the rows of all workers' parts, rank after rank; return mine."""
        comm = self.gpu.comm
        width = int(np.prod(rows.shape[1:]))
        counts = _times(self.rows_of, len(steps) * width)
        mine = comm.empty(counts[comm.rank], rows.dtype)
        packed = None
        if comm.rank == 0:
            packed = comm.empty(sum(counts), rows.dtype) if comm.dry else self._pack(rows, steps).reshape(-1)
        find("scatter_v", "linear")(comm, packed, mine, counts, root=0)
        return mine.reshape((counts[comm.rank] // width if width else 0, *rows.shape[1:]))

    def _pack(self, rows: np.ndarray, steps: range) -> np.ndarray:
        batches = [data.batch_rows(len(rows), self.batch, step, self.seed) for step in steps]
        shares = [data.share(self.batch, w, self.workers) for w in self.everyone if w >= 0]
        return rows[np.concatenate([batch[share] for share in shares for batch in batches])]


def _rows_of_all(batch: int, workers: int, everyone: list[int]) -> tuple[list[int], tuple[int, ...]]:
    """Return each rank's worker, as told, and how many rows of a batch it gets."""
    shares = [data.share(batch, worker, workers) for worker in range(workers)]
    return everyone, tuple(shares[w].stop - shares[w].start if w >= 0 else 0 for w in everyone)


@lru_cache(maxsize=8)
def _times(counts: tuple[int, ...], by: int) -> tuple[int, ...]:
    return tuple(count * by for count in counts)


class DryFeed:
    """Batches of a model without data: shapes only. Each rank has its rows in its host's memory already."""

    def __init__(
        self, gpu: Gpu, example: tuple[int, ...], target: tuple[int, ...], dtype: str, rows: int, steps: int
    ) -> None:
        from emu.comm.dry import DryArray

        self.steps = steps
        self.batch = DryArray.of((rows, *example), dtype), DryArray.of((rows, *target), "int32")

    def host_batch(self, step: int) -> tuple[Any, Any]:
        """Return the rows of a step's batch."""
        return self.batch

    def fetch(self, step: int) -> range:
        """Return the steps whose batches are here: all."""
        return range(self.steps)
