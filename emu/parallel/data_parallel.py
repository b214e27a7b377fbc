"""Data parallel: every rank has the whole model and a part of the batch; gradients are summed by buckets.

A bucket's all-reduce is launched on the communication stream as soon as its gradients are final, while backward
goes on. What backward cannot hide makes the GPU halt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from emu.gpu import Gpu
from emu.nn.model import Model
from emu.nn.optim import Rule
from emu.nn.parameter import Parameter
from emu.parallel.average import averaged, check_average
from emu.parallel.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, Bucket, allocate, assign, clear, frozen
from emu.parallel.deterministic import sum_in_one_order
from emu.parallel.readiness import Buckets
from emu.parallel.rebuild import same_groups, take_over
from emu.parallel.update import NORM, LossScale, Norm, Update


class DataParallel:
    """Replicas whose gradients are summed by an all-reduce of each bucket.

    `all_reduce(comm, x)` sums in place. The loss must be the mean over the global batch, so that gradients sum; with
    `average` "before" or "after" (their sum) that over this rank's own part of it, all parts being of one size.
    `hook(gpu, comm, bucket)` sums a bucket's gradients another way (see `emu.parallel.compression`). Before the second
    step the buckets are rebuilt in the order in which rank 0's gradients became ready. Under a hook, whose
    state belongs to buckets, they are not. `deterministic` adds every element in the same order for any buckets.
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
        *,
        comm: Any = None,
        overlap: bool = True,
        deterministic: bool = False,
        find_unused: bool = False,
        hook: Callable[..., Any] | None = None,
        norm: Norm = NORM,
        counts: Callable[[Parameter], bool] = lambda parameter: True,
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
        average: str = "none",
    ) -> None:
        check_average(average)
        self.gpu, self.model = gpu, model
        self.comm = comm if comm is not None else gpu.comm
        self.worker, self.workers = self.comm.rank, self.comm.size
        self.all_reduce, self.deterministic, self.hook, self.average = all_reduce, deterministic, hook, average
        self._sizes = bucket_bytes, first_bucket_bytes
        self._counts, self._rebuilt = counts, hook is not None
        self.notes: list[str] = []
        made, kept = self._assign(model.trainable()), frozen(model.parameters())
        allocate(gpu, made)
        allocate(gpu, kept, gradients=False)
        self.buckets = Buckets(gpu, made, self._sum, overlap, find_unused)
        with gpu.span("broadcast parameters"):
            if self.comm.rank == 0:
                model.initialise(gpu, seed)
            for bucket in made + kept:
                broadcast(self.comm, bucket.weights, root=0)
        self.update = Update(
            gpu, rule, [bucket.weights for bucket in made], norm=self._norm(norm), clip_norm=clip_norm,
            scale=loss_scale,
        )  # fmt: skip

    @property
    def loss_scale(self) -> float:
        """The factor that the loss is to be multiplied by."""
        return self.update.scale

    def begin(self) -> None:
        """Begin a step."""
        self.settle()
        self.buckets.begin()

    def no_sync(self) -> AbstractContextManager[None]:
        """Let gradients of the passes inside accumulate; the pass after them sums over the ranks once."""
        return self.buckets.no_sync()

    def ready(self, parameter: Parameter) -> None:
        """Take note of a final gradient."""
        self.buckets.ready(parameter)

    def skip(self) -> None:
        """Take part in a step without a batch of one's own: gradients of zero."""
        for bucket in self.buckets.all:
            clear(self.gpu, bucket.gradients, bucket.dtype)
            for parameter in bucket.parameters:
                self.buckets.ready(parameter)

    def finish(self) -> None:
        """Wait for the summed gradients, then update the parameters."""
        self.buckets.finish()
        with self.gpu.span("optimizer"):
            self.update.all([bucket.gradients for bucket in self.buckets.all])

    def settle(self) -> None:
        """Rebuild the buckets, once the order of gradients is known. Collective, between steps."""
        if not self._rebuilt and self.buckets.order:
            self._rebuilt = True
            self._rebuild()

    def take_buckets(self, new: list[Bucket]) -> None:
        """Use these buckets from now on."""
        self._rebuilt = True
        self.buckets.take(new)
        self.update.norm = self._norm(self.update.norm)

    def _sum(self, bucket: Any) -> None:
        averaged(self.gpu, bucket.gradients, self.average, "before", self.workers)
        if self.hook is not None:
            self.hook(self.gpu, self.comm, bucket)
        elif self.deterministic:
            sum_in_one_order(self.gpu, self.comm, bucket)
        else:
            self.all_reduce(self.comm, bucket.gradients)
        averaged(self.gpu, bucket.gradients, self.average, "after", self.workers)

    def _rebuild(self) -> None:
        """Assign buckets anew, by rank 0's order; state moves along. Nothing is done where nothing changes."""
        places = {parameter: i for i, parameter in enumerate(self.model.trainable())}
        mine = [places[p] for p in self.buckets.order]
        told = mine if self.gpu.dry else self.comm.wire.exchange(mine if self.comm.rank == 0 else None)[0]
        by_place = list(places)
        order = [by_place[i] for i in told]
        order += [p for p in reversed(by_place) if p not in set(order)]  # unused so far
        new = self._assign(order[::-1])
        if same_groups(self.buckets.all, new):
            return
        take_over(self.gpu, self.buckets.all, new, self.update)
        self.take_buckets(new)
        self.notes.append(f"buckets rebuilt once in the order of gradients: {len(new)} buckets")

    def _assign(self, parameters: Sequence[Parameter]) -> list[Bucket]:
        return assign(parameters, *self._sizes, counts=self._counts)

    def _norm(self, norm: Norm) -> Norm:
        """Return which of the buckets count on this rank."""
        return Norm(norm.comms, tuple(self._counts(bucket.parameters[0]) for bucket in self.buckets.all))
