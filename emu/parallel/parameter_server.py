"""Synchronous parameter server: workers push gradients, the server sums, updates, and workers pull parameters.

The server's port carries all of it, which is why it does not scale. The server is rank 0; `dedicated`, it only
serves, otherwise it also computes a part of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from emu.errors import ConfigError
from emu.gpu import Cost, Gpu
from emu.nn.model import Model
from emu.nn.optim import Rule
from emu.nn.parameter import Parameter
from emu.parallel.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, Bucket, allocate, assign, frozen
from emu.parallel.readiness import Buckets
from emu.parallel.update import Update

SERVER = 0
PULL = "pull"  # the stream that parameters come back on; gradients go out on the communication stream


class ParameterServer:
    """One server's or worker's part. `push(comm, x, root)` sums at the root, `pull(comm, x, root)` sends from it."""

    def __init__(
        self,
        gpu: Gpu,
        model: Model,
        rule: Rule,
        push: Callable[..., Any],
        pull: Callable[..., Any],
        seed: int = 0,
        bucket_bytes: int = BUCKET_BYTES,
        first_bucket_bytes: int = FIRST_BUCKET_BYTES,
        dedicated: bool = False,
        overlap: bool = True,
    ) -> None:
        if dedicated and gpu.size < 2:
            raise ConfigError(f"parameter server: 2 ranks are needed for a server of its own, got {gpu.size}")
        self.gpu = gpu
        self.model = model
        self.dedicated = dedicated
        self.worker, self.workers = gpu.rank - dedicated, gpu.size - dedicated
        self.push, self.pull = push, pull
        self.comm = gpu.comm
        self.loss_scale = 1.0
        self.notes: list[str] = []
        made = assign(model.trainable(), bucket_bytes, first_bucket_bytes)
        kept = frozen(model.parameters())
        allocate(gpu, made)
        allocate(gpu, kept, gradients=False)
        self.buckets = Buckets(gpu, made, self._serve, overlap)
        self._final: list[Parameter] = []
        model.hooks.after_backward = self._layer_done
        with gpu.span("pull parameters"):
            if gpu.rank == SERVER:
                model.initialise(gpu, seed)
            for bucket in made + kept:
                pull(gpu.comm, bucket.weights, root=SERVER)
        self.update = Update(gpu, rule, [bucket.weights for bucket in made]) if gpu.rank == SERVER else None

    def begin(self) -> None:
        """Begin a step."""
        self.buckets.begin()
        if self.update is not None:
            self.update.begin(())

    def no_sync(self) -> AbstractContextManager[None]:
        """Let gradients of the passes inside accumulate; the pass after them pushes once."""
        return self.buckets.no_sync()

    def ready(self, parameter: Parameter) -> None:
        """Take note of a final gradient. It is pushed after its layer's backward, which still reads the weights."""
        self._final.append(parameter)

    def _layer_done(self, *_: Any) -> None:
        for parameter in self._final:
            self.buckets.ready(parameter)
        self._final.clear()

    def finish(self) -> None:
        """Wait until this rank has all updated parameters; a dedicated server serves here."""
        if self.worker < 0:
            for bucket in self.buckets.all:
                for parameter in bucket.parameters:
                    self.buckets.ready(parameter)
        self.buckets.finish()

    def _serve(self, bucket: Bucket) -> None:
        """Push one bucket's gradients, update it at the server, pull its parameters on a stream of their own."""
        gpu = self.gpu
        if gpu.rank == SERVER and self.dedicated:
            gpu.launch(_clear, bucket.gradients, cost=Cost(0, bucket.nbytes, bucket.dtype), name="clear")
        self.push(gpu.comm, bucket.gradients, root=SERVER)
        pushed = gpu.record()
        with gpu.stream(PULL):
            gpu.wait(pushed)
            if self.update is not None:
                self.update.one(bucket.index, bucket.gradients)
            self.pull(gpu.comm, bucket.weights, root=SERVER)
            bucket.sent = gpu.record()


def _clear(x: Any) -> None:
    x.fill(0)
