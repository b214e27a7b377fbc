"""Pipeline parallel: each rank has some of the layers; micro-batches pass from stage to stage and back.

    naive   one micro-batch: one stage works at a time
    gpipe   all forward passes, then all backward passes; bubble (s-1)/(m+s-1) of the time, m micro-batches kept
    1f1b    backward as early as can be: the same bubble, at most s micro-batches kept

Source: Huang et al., "GPipe", 2019; Narayanan et al., "PipeDream", SOSP 2019 (1F1B with a flush).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from emu.errors import ConfigError
from emu.gpu import Gpu
from emu.nn.embedding import Embedding
from emu.nn.layer import Layer

FORWARD, BACKWARD = "forward", "backward"


def passes(schedule: str, stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Return a stage's passes in order.

    >>> passes("gpipe", 0, 2, 2)
    [('forward', 0), ('forward', 1), ('backward', 0), ('backward', 1)]
    >>> passes("1f1b", 1, 2, 2)
    [('forward', 0), ('backward', 0), ('forward', 1), ('backward', 1)]
    """
    ahead = micro_batches if schedule == "gpipe" and stages > 1 else min(stages - stage - 1, micro_batches)
    order = [(FORWARD, m) for m in range(ahead)]
    for m in range(micro_batches):
        if ahead + m < micro_batches:
            order.append((FORWARD, ahead + m))
        order.append((BACKWARD, m))
    return order


def cut(layers: Sequence[Layer], stages: int) -> list[int]:
    """Return where each stage begins, and the end: stages of about equal numbers of parameters in products.

    An embedding is a look-up and weighs nothing. Every stage gets a layer at least. The same for every part of
    layers that are split.
    """
    weights = [_weight(layer) for layer in layers]
    total, begins, done = sum(weights), [0], 0
    for index, weight in enumerate(weights):
        stage = len(begins)
        left = len(layers) - index
        if stage < stages and index > begins[-1]:
            target = total * stage / stages
            if abs(done - target) <= abs(done + weight - target) or left == stages - stage:
                begins.append(index)
        done += weight
    return [*begins, len(layers)]


def _weight(layer: Layer) -> int:
    if isinstance(layer, Embedding):
        return 0
    shapes = [parameter.whole_shape or parameter.shape for parameter in layer.parameters()]
    return 1 + sum(prod(shape) for shape in shapes if len(shape) > 1)


class Channel:
    """What a stage sends to and receives from its neighbours: activations forward, their gradients backward.

    `via` host: copied to the host's memory, sent, and copied back; else straight from GPU to GPU.
    """

    def __init__(self, gpu: Gpu, comm: Any, via: str) -> None:
        if via == "gpudirect" and comm.cluster is not None and comm.cluster.spec.transport.staged:
            raise ConfigError(
                f"via gpudirect: a transport with GPUDirect is expected, got {comm.cluster.spec.transport.name}, which "
                "stages in host memory; use --via host, or --set transport.gpudirect=true"
            )
        self.gpu, self.comm, self.via = gpu, comm, via
        self._sending: list[tuple[Any, Any]] = []

    def send(self, x: Any, to: int, kind: str) -> None:
        """Start to send; the next sends wait for those of before."""
        if self.via == "host":
            self.gpu.pass_host(x, "d2h", f"{kind} to host")
        while len(self._sending) >= 2 * self.comm.size:
            self._finish_first()
        self._sending.append((self.comm.isend(x.reshape(-1), to, tag=kind == BACKWARD), x))

    def receive(self, shape: Sequence[int], dtype: str, source: int, kind: str) -> Any:
        """Return what the neighbour sends."""
        x = self.gpu.empty(tuple(shape), dtype)
        with self.gpu.span(f"pipeline {kind}"):
            self.comm.waitall([self.comm.irecv(x.reshape(-1), source, tag=kind == BACKWARD)])
        if self.via == "host":
            self.gpu.pass_host(x, "h2d", f"{kind} from host")
        return x

    def finish(self) -> None:
        """Wait until everything has been sent."""
        while self._sending:
            self._finish_first()

    def _finish_first(self) -> None:
        request, _ = self._sending.pop(0)
        with self.gpu.span("pipeline send"):
            self.comm.waitall([request])
