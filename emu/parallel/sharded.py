"""Parameters of which every rank keeps one part: whole only around their use, gathered ahead of it, freed after.

The memory of a gathered chunk is free once the layer that used it has run; the next gather waits for that moment on
the communication stream, so that what is counted as live is all that a GPU would hold.
Source: Rajbhandari et al., "ZeRO", SC 2020; names and defaults of DeepSpeed and of PyTorch's FSDP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from emu.errors import ConfigError
from emu.gpu import Cost, Gpu
from emu.nn.kernel import launch
from emu.nn.layer import Layer
from emu.nn.parameter import Parameter, initialise
from emu.parallel.buckets import Bucket, flat
from emu.parallel.order import Order, kept_after_use
from emu.parallel.readiness import COMM


@dataclass(frozen=True)
class Stage3:
    """Limits of stage 3, in elements, by DeepSpeed's names; `reshard_after_forward` is FSDP's."""

    prefetch_bucket_size: int = 50_000_000
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    param_persistence_threshold: int = 100_000
    model_persistence_threshold: int | None = None
    reshard_after_forward: bool = True

    def __post_init__(self) -> None:
        for name in ("prefetch_bucket_size", "max_reuse_distance", "param_persistence_threshold"):
            if getattr(self, name) < 0:
                raise ConfigError(f"stage3_{name}: at least 0 elements are expected, got {getattr(self, name)}")
        if self.max_live_parameters < 1:
            raise ConfigError(
                f"stage3_max_live_parameters: at least 1 element is expected, got {self.max_live_parameters}"
            )

    def persistent(self, parameters: Sequence[Parameter]) -> set[Parameter]:
        """Return the parameters that stay whole: the small ones, up to a number of elements in all."""
        most = self.model_persistence_threshold if self.model_persistence_threshold is not None else 1 << 62
        kept, total = set(), 0
        for parameter in parameters:
            if parameter.size <= self.param_persistence_threshold and total + parameter.size <= most:
                kept.add(parameter)
                total += parameter.size
        return kept


STAGE3 = Stage3()


class Sharded:
    """The chunks of one rank: which are gathered, which will be next. A chunk belongs to one layer."""

    def __init__(
        self,
        gpu: Gpu,
        comm: Any,
        all_gather: Callable[..., Any],
        layers: Sequence[Layer],
        kept_whole: set[Parameter],
        settings: Stage3,
        overlap: bool = True,
        counts: Callable[[Parameter], bool] = lambda parameter: True,
    ) -> None:
        self.gpu, self.comm, self.all_gather, self.settings, self.overlap = gpu, comm, all_gather, settings, overlap
        self.order: Order[int] = Order()
        self.live_elements = self.peak_live_elements = 0
        self.places = {id(layer): i for i, layer in enumerate(layers)}
        self.chunks: list[Bucket] = []
        of: dict[Parameter, Bucket] = {}
        for layer in layers:
            own = [p for p in dict.fromkeys(layer.parameters()) if p not in kept_whole and p not in of]
            for group in _groups(own, settings.prefetch_bucket_size, counts):
                chunk = Bucket(len(self.chunks), group, group[0].dtype, comm.size)
                self.chunks.append(chunk)
                of |= dict.fromkeys(group, chunk)
        self.of_layer = [
            list(dict.fromkeys(of[p] for p in layer.parameters() if p in of)) for layer in layers
        ]
        self._gathered_at: dict[Bucket, Any] = {}
        self._in_use = dict.fromkeys(self.chunks, 0)
        self._early: dict[Bucket, int] = {}  # gathered ahead, not used yet -> its elements
        self._kept: set[int] = set()
        self._apart: tuple[Order[int], set[int]] = (Order(), set())
        self._check(layers)

    def initialise(self, seed: int) -> None:
        """Draw each chunk's values, the same on every rank, and keep this rank's part."""
        gpu = self.gpu
        for chunk in self.chunks:
            whole = flat(gpu, chunk, "gathered parameters")
            chunk.bind_weights(whole)
            initialise(gpu, chunk.parameters, seed)
            mine = chunk.mine(whole, self.comm.rank)
            chunk.shard = gpu.empty(mine.shape, chunk.dtype, purpose="weights")
            launch(gpu, _copy, mine, chunk.shard, cost=Cost(0, 2 * mine.nbytes, chunk.dtype), name="keep my part")
            chunk.bind_weights(None)
            del whole, mine

    def expect(self, places: Sequence[int]) -> None:
        """Know a step's order before the first one."""
        self.order.expected = list(places)
        self._learn()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Let passes inside, such as an evaluation, have an order of their own; everything is freed at their end."""
        if any(chunk.weights is not None for chunk in self.chunks):
            raise ConfigError("inference: no training step under way is expected, got one; call finish() first")
        before = self.order, self._kept
        self.order, self._kept = self._apart
        self.order.begin()
        try:
            yield
        finally:
            self.end()
            self._apart = self.order, self._kept
            self.order, self._kept = before

    def begin(self) -> None:
        """Begin a step."""
        self.order.begin()

    def before(self, layer: Layer) -> None:
        """Return once the layer's parameters are whole, for the default stream; gather ahead for those after it."""
        place = self.places[id(layer)]
        self.order.use(place, layer.name)
        chunks = self.of_layer[place]
        for chunk in chunks:
            self._in_use[chunk] += 1
            self._early.pop(chunk, None)
        for chunk in chunks:
            if chunk.weights is None:
                self._gather(chunk)
        self._look_ahead()
        for chunk in chunks:
            event = self._gathered_at.pop(chunk, None)
            if event is not None:
                self.gpu.wait(event)

    def after(self, layer: Layer, backward: bool) -> None:
        """Free the layer's parameters, unless they are needed again soon."""
        keep = (not backward and not self.settings.reshard_after_forward) or (
            self.order.known and self.order.at in self._kept
        )
        for chunk in self.of_layer[self.places[id(layer)]]:
            self._in_use[chunk] -= 1
            if not self._in_use[chunk] and not keep:
                self._free(chunk)

    def end(self) -> None:
        """Free everything; learn the step's order."""
        for chunk in self.chunks:
            self._in_use[chunk] = 0
            self._free(chunk)
        self._early.clear()
        if self.order.end():
            self._learn()

    def _learn(self) -> None:
        sizes = {i: sum(c.padded for c in chunks) for i, chunks in enumerate(self.of_layer)}
        self._kept = kept_after_use(self.order.expected, sizes, self.settings.max_reuse_distance)

    def _look_ahead(self) -> None:
        """Gather what comes next, until as much as the limit is under way or there."""
        limits = self.settings
        for place in self.order.ahead():
            for chunk in self.of_layer[place]:
                if sum(self._early.values()) >= limits.prefetch_bucket_size:
                    return
                if chunk.weights is None:
                    if self.live_elements + chunk.padded > limits.max_live_parameters:
                        return
                    self._early[chunk] = chunk.padded
                    self._gather(chunk)

    def _gather(self, chunk: Bucket) -> None:
        self._make_room(chunk)
        gpu = self.gpu
        whole = gpu.empty((chunk.padded,), chunk.dtype, purpose="gathered parameters")
        self.live_elements += chunk.padded
        self.peak_live_elements = max(self.peak_live_elements, self.live_elements)
        if self.overlap:
            free = gpu.record()
            with gpu.stream(COMM):
                gpu.wait(free)
                self._gather_into(chunk, whole)
                self._gathered_at[chunk] = gpu.record()
        else:
            self._gather_into(chunk, whole)
        chunk.bind_weights(whole)

    def _gather_into(self, chunk: Bucket, whole: Any) -> None:
        """Gather a chunk. Raise MismatchError where ranks use other layers: see `emu.parallel.wrap` on leaves."""
        with self.gpu.span("gather", chunk.index), self.gpu.about(f"parameters of {chunk.parameters[0].name}"):
            self.all_gather(self.comm, chunk.shard, whole)

    def _free(self, chunk: Bucket) -> None:
        if chunk.weights is not None:
            event = self._gathered_at.pop(chunk, None)
            if event is not None:  # gathered and never used: it must have arrived before its memory is used again
                self.gpu.wait(event)
            self.live_elements -= chunk.padded
            chunk.bind_weights(None)

    def _make_room(self, chunk: Bucket) -> None:
        """Free what is needed last, until the chunk fits."""
        limit = self.settings.max_live_parameters
        while self.live_elements + chunk.padded > limit:
            unused = [c for c in self.chunks if c.weights is not None and not self._in_use[c]]
            if not unused:
                raise ConfigError(
                    f"stage3_max_live_parameters: {self.live_elements + chunk.padded} elements are in use at once, "
                    f"got a limit of {limit}; raise it, or split the layer of {chunk.parameters[0].name}"
                )
            last = max(unused, key=self._next_use)
            self._early.pop(last, None)
            self._free(last)

    def _next_use(self, chunk: Bucket) -> int:
        for turn, place in enumerate(self.order.ahead()):
            if chunk in self.of_layer[place]:
                return turn
        return 1 << 60

    def _check(self, layers: Sequence[Layer]) -> None:
        for layer, chunks in zip(layers, self.of_layer, strict=True):
            needed = sum(chunk.padded for chunk in chunks)
            if needed > self.settings.max_live_parameters:
                raise ConfigError(
                    f"stage3_max_live_parameters: layer {layer.name} needs {needed} elements at once, "
                    f"got a limit of {self.settings.max_live_parameters}; raise it"
                )


def _groups(
    parameters: Sequence[Parameter], limit: int, counts: Callable[[Parameter], bool]
) -> list[list[Parameter]]:
    """Group a layer's parameters of one kind, each group until it holds the limit."""
    groups: list[list[Parameter]] = []
    open_groups: dict[Any, list[Parameter]] = {}
    for parameter in parameters:
        key = parameter.dtype, parameter.requires_grad, parameter.cut is not None, counts(parameter)
        group = open_groups.get(key)
        if group is None:
            group = open_groups[key] = []
            groups.append(group)
        group.append(parameter)
        if sum(p.size for p in group) >= max(1, limit):
            del open_groups[key]
    return groups


def _copy(xp: Any, x: Any, out: Any) -> None:
    out[...] = x
