"""ZeRO: data parallel whose ranks share the optimizer state (stage 1), gradients (2) and parameters (3) among them.

    stage 1   gradients are reduce-scattered where they lie, each rank updates its part, parameters are all-gathered
    stage 2   the same, and a bucket's memory is free once its part is kept
    stage 3   parameters too: see `emu.parallel.sharded`; the small ones that stay whole are treated as in stage 2

Bytes sent by a rank in a step, Ψ being those of the parameters: 2Ψ(p-1)/p in stages 1 and 2, 3Ψ(p-1)/p in stage 3.
Source: Rajbhandari et al., "ZeRO", SC 2020.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from emu.errors import ConfigError
from emu.gpu import Gpu
from emu.nn.layer import Layer
from emu.nn.model import Model
from emu.nn.optim import Rule
from emu.nn.parameter import Parameter, initialise
from emu.parallel.average import averaged, check_average
from emu.parallel.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, Bucket, assign, clear, flat, frozen
from emu.parallel.host import Host
from emu.parallel.readiness import COMM, Buckets
from emu.parallel.sharded import STAGE3, Sharded, Stage3
from emu.parallel.update import NORM, LossScale, Norm, Update
from emu.parallel.wrap import wrap

IN_FLIGHT = 2  # gradient buckets that may be on their way while backward fills the next


class Zero:
    """One rank's part of ZeRO training. The loss must be the mean over the global batch, so that gradients sum.

    `average` is that of `DataParallel`.
    `leaves` are classes of layers that choose among their inner layers (experts): they are gathered as one.
    """

    def __init__(
        self,
        gpu: Gpu,
        model: Model,
        rule: Rule,
        reduce_scatter: Callable[..., Any],
        all_gather: Callable[..., Any],
        stage: int,
        seed: int = 0,
        bucket_bytes: int = BUCKET_BYTES,
        first_bucket_bytes: int = FIRST_BUCKET_BYTES,
        *,
        comm: Any = None,
        settings: Stage3 = STAGE3,
        overlap: bool = True,
        find_unused: bool = False,
        norm: Norm = NORM,
        counts: Callable[[Parameter], bool] = lambda parameter: True,
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        offload: bool = False,
        leaves: Sequence[type] = (),
        average: str = "none",
    ) -> None:
        check_average(average)
        if stage not in (1, 2, 3):
            raise ConfigError(f"ZeRO: stage 1, 2 or 3 is expected, got {stage}")
        self.gpu, self.model, self.stage = gpu, model, stage
        self.comm = comm = comm if comm is not None else gpu.comm
        self.worker, self.workers = comm.rank, comm.size
        self.reduce_scatter, self.all_gather, self.overlap = reduce_scatter, all_gather, overlap
        self.average = average
        self._leaves, self._uses = tuple(leaves), dict[Parameter, int]()
        layers = wrap(model, self, self._leaves)
        kept = settings.persistent(model.parameters()) if stage == 3 else set(model.parameters())
        self.sharded = Sharded(gpu, comm, all_gather, layers, kept, settings, overlap, counts)
        made = assign([p for p in model.trainable() if p in kept], bucket_bytes, first_bucket_bytes, comm.size, counts)
        self.frozen = frozen([p for p in model.parameters() if p in kept])
        chunks = [c for c in reversed(self.sharded.chunks) if c.parameters[0].requires_grad]
        self._initialise(made, seed)
        self.buckets = Buckets(gpu, made, self._reduce, overlap, find_unused, self._open, at_once=stage > 1)
        self.chunks = Buckets(gpu, chunks, self._reduce, overlap, find_unused, self._open, at_once=stage > 1)
        for bucket in made + chunks:
            self._share(bucket)
        self._leaving: list[tuple[Bucket, Any]] = []
        self.update = Update(
            gpu, rule, [bucket.shard for bucket in made + chunks],
            norm=Norm((comm, *norm.comms), tuple(counts(b.parameters[0]) for b in made + chunks)),
            clip_norm=clip_norm, scale=loss_scale, host=Host(gpu) if offload else None,
        )  # fmt: skip

    @property
    def loss_scale(self) -> float:
        """The factor that the loss is to be multiplied by."""
        return self.update.scale

    @property
    def notes(self) -> list[str]:
        """What the prefetcher has to say."""
        return self.sharded.order.notes

    def begin(self) -> None:
        """Begin a step."""
        self.buckets.begin()
        self.chunks.begin()
        self.sharded.begin()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of the passes inside accumulate, whole; the pass after them reduce-scatters once."""
        with self.buckets.no_sync(), self.chunks.no_sync():
            yield

    @contextmanager
    def inference(self) -> Iterator[None]:
        """Run forward passes between steps: parameters are gathered and freed, in an order of their own. Collective."""
        with self.sharded.apart():
            yield

    def before(self, layer: Layer, backward: bool) -> None:
        """Prepare for a layer: its parameters whole, room for its gradients."""
        self.sharded.before(layer)
        if backward and self.stage > 1:
            for parameter in layer.parameters():
                bucket = self._bucket_of(parameter)
                if bucket is not None:
                    self._open(bucket)
        if backward and isinstance(layer, self._leaves):
            uses = Counter(p for p in layer.parameters() if p.requires_grad)
            self._uses = {parameter: parameter.uses_left - count for parameter, count in uses.items()}

    def after(self, layer: Layer, backward: bool) -> None:
        """Free the layer's parameters. Those that a leaf did not choose have no gradient: they count as zeros."""
        if backward and isinstance(layer, self._leaves):
            for parameter, left in self._uses.items():
                for _ in range(parameter.uses_left - left):
                    parameter.pass_over(self.gpu)
        self.sharded.after(layer, backward)

    def ready(self, parameter: Parameter) -> None:
        """Take note of a final gradient."""
        (self.chunks if self.chunks.of(parameter) is not None else self.buckets).ready(parameter)

    def skip(self) -> None:
        """Take part in a step without a batch of one's own: gradients of zero."""
        for bucket in self.buckets.all + self.chunks.all:
            self._open(bucket)
            clear(self.gpu, bucket.gradients, bucket.dtype)
            for parameter in bucket.parameters:
                self.ready(parameter)

    def finish(self) -> None:
        """Wait for my part of the gradients, update my part of the parameters, give it to all."""
        gpu = self.gpu
        self.sharded.end()
        self.chunks.finish()
        self.buckets.finish()
        self._leaving.clear()
        whole = self.buckets.all
        everything = whole + self.chunks.all
        with gpu.span("optimizer"):
            if not self.update.begin([bucket.shard_gradient for bucket in everything]):
                return
            for index, bucket in enumerate(everything):
                self.update.one(index, bucket.shard_gradient)
                if index < len(whole):
                    self._give(bucket)
        for bucket in whole:
            if bucket.sent is not None:
                gpu.wait(bucket.sent)

    def _initialise(self, made: list[Bucket], seed: int) -> None:
        """Draw the initial values: the same on every rank, so that nothing need be sent."""
        gpu = self.gpu
        with gpu.span("initialise"):
            for bucket in made + self.frozen:
                bucket.bind_weights(flat(gpu, bucket, "weights"))
                initialise(gpu, bucket.parameters, seed)
            self.sharded.initialise(seed)

    def _share(self, bucket: Bucket) -> None:
        """Give a bucket its part of weights and gradients."""
        rank = self.comm.rank
        if bucket.weights is not None:
            bucket.shard = bucket.mine(bucket.weights, rank)
        if self.stage == 1:
            bucket.bind_gradients(self.gpu.zeros((bucket.padded,), bucket.dtype, purpose="gradients"))
            bucket.shard_gradient = bucket.mine(bucket.gradients, rank)
        else:
            bucket.shard_gradient = self.gpu.zeros(bucket.shard.shape, bucket.dtype, purpose="gradients")

    def _bucket_of(self, parameter: Parameter) -> Bucket | None:
        return self.chunks.of(parameter) or self.buckets.of(parameter)

    def _open(self, bucket: Bucket) -> None:
        """Make room for a bucket's gradients; while too many are on their way, wait for the first."""
        if bucket.gradients is not None:
            return
        while len(self._leaving) >= IN_FLIGHT:
            first, _ = self._leaving.pop(0)
            if first.sent is not None:
                self.gpu.wait(first.sent)
        bucket.bind_gradients(flat(self.gpu, bucket, "buckets"))

    def _reduce(self, bucket: Bucket) -> None:
        """Sum a bucket's gradients over the ranks, and keep my part."""
        averaged(self.gpu, bucket.gradients, self.average, "before", self.workers)
        self.reduce_scatter(self.comm, bucket.gradients, bucket.shard_gradient)
        averaged(self.gpu, bucket.shard_gradient, self.average, "after", self.workers)
        if self.stage > 1:
            self._leaving.append((bucket, bucket.gradients))
            bucket.bind_gradients(None)

    def _give(self, bucket: Bucket) -> None:
        """All-gather a bucket's updated parameters while the next one is updated."""
        gpu = self.gpu
        if not self.overlap:
            self.all_gather(self.comm, bucket.shard, bucket.weights)
            bucket.sent = None
            return
        updated = gpu.record()
        with gpu.stream(COMM):
            gpu.wait(updated)
            with gpu.span("gather", bucket.index):
                self.all_gather(self.comm, bucket.shard, bucket.weights)
            bucket.sent = gpu.record()
