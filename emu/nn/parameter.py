"""A model's parameters: shape, initial values that depend on seed and name alone, and their gradients."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .kernel import Array, Cost, Device, Kernel, launch

Initialiser = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw nothing: all zeros."""
    return np.zeros(shape, np.float32)


def ones(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw nothing: all ones."""
    return np.ones(shape, np.float32)


def normal(deviation: float) -> Initialiser:
    """Return an initialiser that draws from N(0, deviation²)."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        values = rng.standard_normal(shape, dtype=np.float32)
        values *= np.float32(deviation)
        return values

    return draw


def uniform(bound: float) -> Initialiser:
    """Return an initialiser that draws from [-bound, bound)."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        values = rng.random(shape, dtype=np.float32)
        values -= np.float32(0.5)
        values *= np.float32(2 * bound)
        return values

    return draw


def he_uniform(fan_in: int) -> Initialiser:
    """Return the initialiser that keeps the variance through a layer followed by ReLU.

    Source: He et al., "Delving Deep into Rectifiers", ICCV 2015, eq. 10 (variance 2 / fan_in).
    """
    return uniform(math.sqrt(6 / fan_in) if fan_in else 0.0)


@dataclass(eq=False)
class Parameter:
    """One tensor that training changes.

    `data` and `grad` may be rebound to views of flat buffers, to a shard, or to None while they are not
    on the GPU. A Parameter shared by several layers is tied: its gradient is the sum over its uses. One that is
    a part of a larger tensor has `whole_shape`, and `cut` takes its initial values from the whole's.
    """

    name: str
    shape: tuple[int, ...]
    init: Initialiser = zeros
    dtype: str = "float32"
    requires_grad: bool = True
    data: Array | None = None
    grad: Array | None = None
    whole_shape: tuple[int, ...] | None = None
    cut: Callable[[np.ndarray], np.ndarray] | None = field(default=None, repr=False)
    _written: bool = field(default=False, repr=False)
    _uses_left: int = field(default=0, repr=False)
    _ready: Callable[[Parameter], None] | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor in its dtype."""
        return self.size * _itemsize(self.dtype)

    def initial(self, seed: int) -> np.ndarray:
        """Return the initial values: the same for a seed and name, on any rank and in any precision."""
        rng = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        if self.cut is None:
            return self.init(rng, self.shape)
        return self.cut(self.init(rng, self.whole_shape or self.shape))

    def expect(self, uses: int, accumulate: bool, ready: Callable[[Parameter], None] | None) -> None:
        """Prepare for a backward pass that adds to the gradient `uses` times, then calls `ready`.

        With `accumulate` the pass adds to the gradient that is there; else its first use overwrites it.
        """
        self._written = accumulate and self._written
        self._uses_left = uses
        self._ready = ready

    @property
    def has_gradient(self) -> bool:
        """Whether a backward pass has written `grad` since it was last expected afresh."""
        return self._written

    @property
    def uses_left(self) -> int:
        """How many times the backward pass has yet to add to the gradient."""
        return self._uses_left

    def pass_over(self, gpu: Device) -> None:
        """Count a use that did not come about: nothing is added, and the first one leaves zeros."""
        if self.grad is not None and not self.has_gradient:
            launch(gpu, _clear, self.grad, cost=Cost(0, self.nbytes, self.dtype), name="no gradient")
        self._count_use()

    def _count_use(self) -> None:
        self._written = True
        self._uses_left -= 1
        if self._uses_left == 0 and self._ready is not None:
            self._ready(self)


def _itemsize(dtype: str) -> int:
    return 2 if dtype in ("float16", "bfloat16") else np.dtype(dtype).itemsize


def allocate(gpu: Device, parameters: Iterable[Parameter]) -> None:
    """Give each parameter without data an uninitialised array of its own in the GPU's memory."""
    for parameter in parameters:
        if parameter.data is None:
            parameter.data = gpu.empty(parameter.shape, parameter.dtype, purpose="weights")


def initialise(gpu: Device, parameters: Iterable[Parameter], seed: int) -> None:
    """Write each parameter's initial values into its data (allocated where there is none)."""
    for parameter in parameters:
        allocate(gpu, [parameter])
        cost = Cost(flops=0, bytes=parameter.nbytes, dtype=parameter.dtype)
        launch(gpu, _fill, parameter.data, cost=cost, name="initialise", parameter=parameter, seed=seed)


def _fill(xp: Any, out: Array, parameter: Parameter, seed: int) -> None:
    out[...] = xp.asarray(parameter.initial(seed))


def add_gradient(
    gpu: Device, parameter: Parameter, kernel: Kernel, *inputs: Array, cost: Cost, name: str, **constants: Any
) -> None:
    """Launch `kernel(xp, *inputs, grad, **constants)`, which overwrites `grad`, as one use of a parameter.

    A frozen parameter launches nothing. A later use adds (a matrix product with β = 1: `grad` is read
    once more), and the last one tells whoever waits for the gradient.
    """
    if not parameter.requires_grad:
        return
    if parameter.grad is None:
        parameter.grad = gpu.empty(parameter.shape, parameter.dtype, purpose="gradients")
    if parameter.has_gradient:
        cost = Cost(cost.flops + parameter.size, cost.bytes + parameter.nbytes, cost.dtype)
        constants = dict(constants, write=kernel)
        kernel = _accumulate
    launch(gpu, kernel, *inputs, parameter.grad, cost=cost, name=name, **constants)
    parameter._count_use()


def _clear(xp: Any, grad: Array) -> None:
    grad[...] = 0


def _accumulate(xp: Any, *arrays: Array, write: Kernel, **constants: Any) -> None:
    *inputs, grad = arrays
    addend = xp.empty_like(grad)
    write(xp, *inputs, addend, **constants)
    xp.add(grad, addend, out=grad)
