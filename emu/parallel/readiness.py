"""Which buckets are full in a backward pass, and which go out next. How a bucket is sent is not its business."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from emu.errors import ConfigError
from emu.gpu import Gpu
from emu.nn.parameter import Parameter
from emu.parallel.buckets import Bucket, clear

COMM = "comm"  # the stream that communication runs on


class Buckets:
    """The buckets of one rank in a backward pass; they go out in order, so that all ranks send the same.

    With `overlap` a bucket goes out as soon as it is full; without, all go out after backward, on the stream that
    computes, or, `at_once`, there as soon as each is full, so that its memory is free. With `find_unused` a parameter
    without a gradient counts as one with zeros.
    """

    def __init__(
        self,
        gpu: Gpu,
        buckets: list[Bucket],
        send: Callable[[Bucket], None],
        overlap: bool = True,
        find_unused: bool = False,
        prepare: Callable[[Bucket], None] = lambda bucket: None,
        at_once: bool = False,
    ) -> None:
        self.gpu = gpu
        self.overlap, self.find_unused, self.at_once = overlap, find_unused, overlap or at_once
        self.syncing = True
        self.order: list[Parameter] = []  # in which gradients became final in this pass
        self._send, self._prepare = send, prepare
        self._next = 0
        self.take(buckets)

    def take(self, buckets: list[Bucket]) -> None:
        """Use these buckets from now on."""
        self.all = buckets
        self._of = {parameter: bucket for bucket in buckets for parameter in bucket.parameters}
        self._seen: set[Parameter] = set()

    def of(self, parameter: Parameter) -> Bucket | None:
        """Return the bucket of a parameter, None if it has none here."""
        return self._of.get(parameter)

    def begin(self) -> None:
        """Expect every gradient afresh."""
        self._next = 0
        self._seen.clear()
        self.order.clear()
        for bucket in self.all:
            bucket.missing = len(bucket.parameters)
            bucket.sent = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of the passes inside accumulate; nothing goes out."""
        before, self.syncing = self.syncing, False
        try:
            yield
        finally:
            self.syncing = before

    def ready(self, parameter: Parameter) -> None:
        """Take note of a final gradient; send buckets that are full, in order."""
        if not self.syncing:
            return
        if parameter in self._seen:
            raise ConfigError(
                f"parameter {parameter.name}: one final gradient a step is expected, got two; "
                "let backward passes before the last one run in no_sync()"
            )
        self._seen.add(parameter)
        self.order.append(parameter)
        self._of[parameter].missing -= 1
        if self.at_once:
            self._send_full()

    def finish(self) -> None:
        """Make the default stream wait for all buckets. Raise ConfigError if a gradient never came."""
        missing = [p for bucket in self.all for p in bucket.parameters if p not in self._seen]
        if missing and not self.find_unused:
            names = ", ".join(p.name for p in missing[:5])
            raise ConfigError(
                f"backward: a gradient of every parameter is expected, got none for {names}; "
                "mark unused parameters with requires_grad=False, or let the strategy find_unused"
            )
        for parameter in missing:
            self._prepare(self._of[parameter])  # room for its gradient
            if not parameter.has_gradient:
                clear(self.gpu, parameter.grad, parameter.dtype, "no gradient")
            self._of[parameter].missing -= 1
        self._send_full()
        for bucket in self.all:
            if bucket.sent is not None:
                self.gpu.wait(bucket.sent)

    def _send_full(self) -> None:
        while self._next < len(self.all) and self.all[self._next].missing == 0:
            self._launch(self.all[self._next])
            self._next += 1

    def _launch(self, bucket: Bucket) -> None:
        """Send a bucket on the communication stream, once the default stream has come this far.

        `send` may leave in `bucket.sent` the event that ends it on a stream of its own.
        """
        gpu = self.gpu
        if not self.overlap:
            with gpu.span("bucket", bucket.index):
                self._send(bucket)
            return
        final = gpu.record()
        with gpu.stream(COMM):
            gpu.wait(final)
            with gpu.span("bucket", bucket.index):
                self._send(bucket)
            bucket.sent = bucket.sent or gpu.record()
