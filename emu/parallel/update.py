"""The update that ends a step: masters of 16-bit weights, the loss scale, clipping by the global norm, skipped steps.

A norm that is not finite on any rank makes all ranks skip the step.
Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emu.collectives import find
from emu.errors import ConfigError
from emu.gpu import Cost, Gpu
from emu.nn.kernel import launch
from emu.nn.optim import Optimizer, Rule, sum_of_squares, update
from emu.parallel.host import Host

HALVES = ("float16", "bfloat16")


@dataclass
class LossScale:
    """A factor on the loss that keeps small fp16 gradients from vanishing; it halves at an overflow.

    Defaults are those of PyTorch's GradScaler.
    """

    scale: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    good: int = 0

    def learn(self, finite: bool) -> None:
        """Halve after an overflow, double after `interval` steps without one."""
        if not finite:
            self.scale, self.good = max(1.0, self.scale * self.backoff), 0
            return
        self.good += 1
        if self.good == self.interval:
            self.scale, self.good = self.scale * self.growth, 0


@dataclass(frozen=True)
class Norm:
    """How the global norm is summed: over which communicators, and which of this rank's arrays count.

    An array that other ranks of these communicators hold too counts on one of them alone.
    """

    comms: tuple[Any, ...] = ()
    counts: tuple[bool, ...] | None = None


NORM = Norm()
"""Of arrays that are all on this rank."""


class Update:
    """Updates arrays (whole buckets, or this rank's shards) by a rule."""

    def __init__(
        self,
        gpu: Gpu,
        rule: Rule,
        arrays: Sequence[Any],
        *,
        norm: Norm = NORM,
        clip_norm: float | None = None,
        scale: LossScale | None = None,
        host: Host | None = None,
    ) -> None:
        if clip_norm is not None and not clip_norm > 0:
            raise ConfigError(f"clip_norm: a number above 0 is expected, got {clip_norm}")
        self.gpu, self.norm, self.clip_norm, self.loss_scale = gpu, norm, clip_norm, scale
        self.weights = list(arrays)
        self.host = host  # where masters and state are, if not on the GPU
        device: Any = host or gpu
        self.masters = [_master(gpu, device, x) if host or x.dtype.name in HALVES else None for x in arrays]
        targets = [x if master is None else master for x, master in zip(arrays, self.masters, strict=True)]
        self.optimizer = Optimizer(rule, device, targets)
        self.skipped = 0
        self.last_norm: float | None = None
        self._kernel: Any = None

    @property
    def scale(self) -> float:
        """The factor that the loss is to be multiplied by."""
        return self.loss_scale.scale if self.loss_scale else 1.0

    def begin(self, gradients: Sequence[Any]) -> bool:
        """Decide on this step from all its gradients. Return False where it is skipped, on all ranks."""
        factor = 1.0 / self.scale
        if self.clip_norm is not None or self.loss_scale is not None:
            norm = self._global_norm(gradients) * factor
            self.last_norm = norm
            finite = math.isfinite(norm)
            if self.loss_scale is not None:
                self.loss_scale.learn(finite)
            if not finite:
                self.skipped += 1
                return False
            if self.clip_norm is not None:
                factor *= min(1.0, self.clip_norm / (norm + 1e-6))
        self.optimizer.steps += 1
        self._kernel = self.optimizer.rule.kernel(self.optimizer.steps, factor)
        return True

    def one(self, index: int, gradient: Any) -> None:
        """Update one array with its gradient."""
        master, weights = self.masters[index], self.weights[index]
        if self.host is not None:
            self._on_host(self.host, index, gradient)
            return
        target, copy = (weights, None) if master is None else (master, weights)
        update(self.gpu, self.optimizer.rule, self._kernel, target, gradient, self.optimizer.state[index], copy)

    def _on_host(self, host: Host, index: int, gradient: Any) -> None:
        """Fetch the gradient, update there, give the weights back."""
        there, weights, master = host.fetch(gradient, "gradient to host"), self.weights[index], self.masters[index]
        half = weights.dtype.name in HALVES
        copy = host.empty(weights.shape, weights.dtype, "weights") if half else None
        update(host, self.optimizer.rule, self._kernel, master, there, self.optimizer.state[index], copy)
        host.give(copy if half else master, weights, "weights from host")

    def all(self, gradients: Sequence[Any]) -> bool:
        """Update every array; return False where the step is skipped."""
        if not self.begin(gradients):
            return False
        for index, gradient in enumerate(gradients):
            self.one(index, gradient)
        return True

    def arrays(self) -> list[list[Any]]:
        """Return, for each array, what a checkpoint of it holds: its weights or their master, then its state."""
        return [
            [weights if master is None else master, *state]
            for weights, master, state in zip(self.weights, self.masters, self.optimizer.state, strict=True)
        ]

    def refresh(self) -> None:
        """Write the masters' values into the weights."""
        for weights, master in zip(self.weights, self.masters, strict=True):
            if master is not None:
                if self.host is not None:
                    self.host.give(master, weights, "weights from host")
                else:
                    _cast(self.gpu, master, weights)

    def _global_norm(self, gradients: Sequence[Any]) -> float:
        gpu, counts = self.gpu, self.norm.counts
        counted = [g for i, g in enumerate(gradients) if counts is None or counts[i]]
        with gpu.span("norm"):
            total = sum_of_squares(gpu, counted)
            for comm in self.norm.comms:
                if comm.size > 1:
                    find("all_reduce", "recursive_doubling")(comm, total)
            return math.sqrt(gpu.read(total, "norm of gradients", dry=0.0))


def _master(gpu: Gpu, device: Any, x: Any) -> Any:
    dtype = "float32" if x.dtype.name in HALVES else x.dtype.name
    master = device.empty(x.shape, dtype, purpose="optimizer state")
    if device is gpu:
        _cast(gpu, x, master)
    else:
        there = device.fetch(x, "weights to host")
        if not gpu.dry:
            master[...] = there
    return master


def _cast(gpu: Gpu, x: Any, out: Any) -> None:
    launch(gpu, _copy, x, out, cost=Cost(0, x.nbytes + out.nbytes, "float32"), name="cast")


def _copy(xp: Any, x: Any, out: Any) -> None:
    out[...] = x
