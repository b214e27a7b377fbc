"""Data parallel: every rank has the whole model and a part of the batch; gradients are summed by buckets.

A bucket's all-reduce is launched on the communication stream as soon as its gradients are final, while backward
goes on. What backward cannot hide makes the GPU halt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emu.errors import ConfigError
from emu.gpu import Gpu
from emu.nn.model import Model
from emu.nn.optim import Optimizer, Rule
from emu.nn.parameter import Parameter
from emu.parallel.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, Bucket, allocate, assign

COMM = "comm"  # the stream that communication runs on


class Buckets:
    """The buckets of one rank in a backward pass: which are full, and which go out next."""

    def __init__(self, gpu: Gpu, buckets: list[Bucket], send: Callable[[Bucket], None]) -> None:
        self.gpu = gpu
        self.all = buckets
        self._of = {parameter: bucket for bucket in buckets for parameter in bucket.parameters}
        self._send = send
        self._next = 0

    def begin(self) -> None:
        """Expect every gradient afresh."""
        self._next = 0
        for bucket in self.all:
            bucket.missing = len(bucket.parameters)

    def ready(self, parameter: Parameter) -> None:
        """Take note of a final gradient; send buckets that are full, in order."""
        bucket = self._of[parameter]
        bucket.missing -= 1
        if bucket.missing < 0:
            raise ConfigError(f"parameter {parameter.name}: one final gradient a step is expected, got two")
        while self._next < len(self.all) and self.all[self._next].missing == 0:
            self.launch(self.all[self._next])
            self._next += 1

    def launch(self, bucket: Bucket) -> None:
        """Send a bucket on the communication stream, once the default stream has come this far.

        `send` may leave in `bucket.sent` the event that ends it on a stream of its own.
        """
        gpu = self.gpu
        final = gpu.record()
        with gpu.stream(COMM):
            gpu.wait(final)
            with gpu.span("bucket", bucket.index):
                bucket.sent = None
                self._send(bucket)
            bucket.sent = bucket.sent or gpu.record()

    def finish(self) -> None:
        """Make the default stream wait for all buckets. Raise ConfigError if a gradient never came."""
        if self._next < len(self.all):
            names = [p.name for b in self.all[self._next :] for p in b.parameters if not p.has_gradient]
            raise ConfigError(
                f"backward: a gradient of every parameter is expected, got none for {', '.join(names[:5]) or '?'}; "
                "mark unused parameters with requires_grad=False"
            )
        for bucket in self.all:
            self.gpu.wait(bucket.sent)


class DataParallel:
    """Replicas whose gradients are summed by an all-reduce of each bucket.

    `all_reduce(comm, x)` sums in place. The loss must be the mean over the global batch, so that gradients sum.
    """

    def __init__(
        self,
        gpu: Gpu,
        model: Model,
        rule: Rule,
        all_reduce: Callable[..., Any],
        broadcast: Callable[..., Any],
        seed: int = 0,
        bucket_bytes: int = BUCKET_BYTES,
        first_bucket_bytes: int = FIRST_BUCKET_BYTES,
    ) -> None:
        self.gpu = gpu
        self.model = model
        self.worker, self.workers = gpu.rank, gpu.size
        self.all_reduce = all_reduce
        made = assign(model.trainable(), bucket_bytes, first_bucket_bytes)
        frozen = [Bucket(-1, [p], p.dtype) for p in model.parameters() if not p.requires_grad]
        allocate(gpu, made)
        allocate(gpu, frozen, gradients=False)
        self.buckets = Buckets(gpu, made, lambda bucket: self.all_reduce(gpu.comm, bucket.gradients))
        with gpu.span("broadcast parameters"):
            if gpu.rank == 0:
                model.initialise(gpu, seed)
            for bucket in made + frozen:
                broadcast(gpu.comm, bucket.weights, root=0)
        self.optimizer = Optimizer(rule, gpu, [bucket.weights for bucket in made])

    def begin(self) -> None:
        """Begin a step."""
        self.buckets.begin()

    def ready(self, parameter: Parameter) -> None:
        """Take note of a final gradient."""
        self.buckets.ready(parameter)

    def finish(self) -> None:
        """Wait for the summed gradients, then update the parameters."""
        self.buckets.finish()
        with self.gpu.span("optimizer"):
            made = self.buckets.all
            self.optimizer.step(self.gpu, [b.weights for b in made], [b.gradients for b in made])
