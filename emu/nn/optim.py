"""Optimizers as rules on arrays of any shape: a parameter, a flat buffer of many, or a rank's shard of one.

SGD with momentum: 4 FLOPs a parameter; reads x, g, v and writes x, v. Adam: 12 FLOPs a parameter; reads
x, g, m, v and writes x, m, v (28 bytes a parameter with 16-bit gradients and weights and a float32 master).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from emu.errors import ConfigError

from .kernel import Array, Cost, Device, blocks, dtype_name, launch


class Rule(Protocol):
    """How one array is updated: hyperparameters, but no state."""

    @property
    def learning_rate(self) -> float:
        """Step size."""
        ...

    @property
    def slots(self) -> int:
        """Arrays of optimizer state that each array of parameters needs."""
        ...

    @property
    def flops(self) -> int:
        """FLOPs an element."""
        ...

    def kernel(self, step: int, scale: float) -> Callable[..., None]:
        """Return the kernel `(xp, gradient, *state, x)` of step `step` (1, 2, …), the gradient times `scale`."""
        ...


@dataclass(frozen=True)
class SGD:
    """v = momentum v + g + weight_decay x; x -= learning_rate v."""

    learning_rate: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check("SGD", self.learning_rate > 0, "learning_rate must be above 0", self.learning_rate)
        _check("SGD", 0 <= self.momentum < 1, "momentum must be in [0, 1)", self.momentum)

    @property
    def slots(self) -> int:
        return 1 if self.momentum else 0

    @property
    def flops(self) -> int:
        return (4 if self.momentum else 2) + (2 if self.weight_decay else 0)

    def kernel(self, step: int, scale: float) -> Callable[..., None]:
        def update(xp: Any, gradient: Array, *rest: Array) -> None:
            x, decay, rate = rest[-1], self.weight_decay, self.learning_rate
            velocity = rest[0] if self.momentum else None
            for part in blocks(xp, x.size):
                change = gradient[part] * scale
                if decay:
                    change += x[part] * decay
                if velocity is not None:
                    xp.multiply(velocity[part], self.momentum, out=velocity[part])
                    xp.add(velocity[part], change, out=velocity[part])
                    xp.multiply(velocity[part], rate, out=change)
                else:
                    xp.multiply(change, rate, out=change)
                xp.subtract(x[part], change, out=x[part])

        return update


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction; `weight_decay` is decoupled (AdamW).

    Source: Kingma and Ba, "Adam", ICLR 2015, algorithm 1; Loshchilov and Hutter, ICLR 2019.
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check("Adam", self.learning_rate > 0, "learning_rate must be above 0", self.learning_rate)
        for name, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            _check("Adam", 0 <= beta < 1, f"{name} must be in [0, 1)", beta)
        _check("Adam", self.epsilon > 0, "epsilon must be above 0", self.epsilon)

    @property
    def slots(self) -> int:
        return 2

    @property
    def flops(self) -> int:
        return 12 + (2 if self.weight_decay else 0)

    def kernel(self, step: int, scale: float) -> Callable[..., None]:
        correction = math.sqrt(1 - self.beta2**step)
        rate = correction * self.learning_rate / (1 - self.beta1**step)
        first, second, epsilon = scale * (1 - self.beta1), scale * scale * (1 - self.beta2), self.epsilon * correction
        keep = 1 - self.learning_rate * self.weight_decay

        def update(xp: Any, gradient: Array, mean: Array, square: Array, x: Array) -> None:
            scratch = xp.empty_like(x[next(blocks(xp, x.size), slice(0))])  # the first block is the largest
            for part in blocks(xp, x.size):
                g, m, v, target = gradient[part], mean[part], square[part], x[part]
                change = scratch[: g.size]
                xp.multiply(g, first, out=change)
                xp.multiply(m, self.beta1, out=m)
                xp.add(m, change, out=m)
                xp.multiply(g, g, out=change)
                xp.multiply(change, second, out=change)
                xp.multiply(v, self.beta2, out=v)
                xp.add(v, change, out=v)
                xp.sqrt(v, out=change)
                xp.add(change, epsilon, out=change)
                xp.divide(m, change, out=change)
                xp.multiply(change, rate, out=change)
                if self.weight_decay:
                    xp.multiply(target, keep, out=target)
                xp.subtract(target, change, out=target)

        return update


class Optimizer:
    """A rule with the state of the arrays that it updates, which it allocates in their dtype on the GPU."""

    def __init__(self, rule: Rule, gpu: Device, arrays: Sequence[Array]) -> None:
        self.rule = rule
        self.steps = 0
        self.state: list[tuple[Array, ...]] = [
            tuple(gpu.zeros(x.shape, x.dtype, purpose="optimizer state") for _ in range(rule.slots)) for x in arrays
        ]

    def step(
        self,
        gpu: Device,
        arrays: Sequence[Array],
        gradients: Sequence[Array],
        *,
        scale: float = 1.0,
        learning_rate: float | None = None,
        copies: Sequence[Array] | None = None,
    ) -> None:
        """Update the arrays in place, in the order given at first, with `scale` times the gradients.

        `copies` are 16-bit weights that receive the updated values, where the arrays are their masters.
        """
        self.steps += 1
        rule = self.rule if learning_rate is None else _with_rate(self.rule, learning_rate)
        kernel = rule.kernel(self.steps, float(scale))
        outs = copies if copies is not None else [None] * len(arrays)
        for x, gradient, state, copy in zip(arrays, gradients, self.state, outs, strict=True):
            update(gpu, rule, kernel, x, gradient, state, copy)


def update(
    gpu: Device,
    rule: Rule,
    kernel: Callable[..., None],
    x: Array,
    gradient: Array,
    state: Sequence[Array],
    copy: Array | None = None,
) -> None:
    """Launch one update of one array with `kernel = rule.kernel(step, scale)`."""
    moved = gradient.nbytes + 2 * x.nbytes + sum(2 * slot.nbytes for slot in state)
    outs = [*state, x] + ([copy] if copy is not None else [])
    cost = Cost(rule.flops * x.size, moved + (copy.nbytes if copy is not None else 0), dtype_name(x))
    run = _flat if copy is None else _flat_with_copy
    launch(gpu, run, gradient, *outs, writes=len(outs), update=kernel, cost=cost, name="optimizer")


def _flat(xp: Any, *arrays: Array, update: Callable[..., None]) -> None:
    update(xp, *(array.reshape(-1) for array in arrays))


def _flat_with_copy(xp: Any, *arrays: Array, update: Callable[..., None]) -> None:
    _flat(xp, *arrays[:-1], update=update)
    arrays[-1][...] = arrays[-2].reshape(arrays[-1].shape)


def sum_of_squares(gpu: Device, arrays: Sequence[Array]) -> Array:
    """Return a device array of one float64: Σ x² over all arrays, for clipping and to find infinities."""
    total = gpu.zeros((1,), "float64", purpose="buffers")
    for x in arrays:
        cost = Cost(2 * x.size, x.nbytes, dtype_name(x))
        launch(gpu, _add_squares, x, total, cost=cost, name="norm")
    return total


def _add_squares(xp: Any, x: Array, total: Array) -> None:
    x = x.reshape(-1)
    for part in blocks(xp, x.size):
        wide = x[part].astype(xp.float64)
        xp.add(total, xp.dot(wide, wide), out=total)


def _with_rate(rule: Any, learning_rate: float) -> Any:
    return replace(rule, learning_rate=learning_rate)


def _check(where: str, holds: bool, must: str, value: float) -> None:
    if not holds:
        raise ConfigError(f"{where}: {must}, got {value}")
