"""The fully connected layer.

With m rows, k inputs and n outputs: forward 2mkn FLOPs (+ mn for the bias), backward 2mkn for the
weight's gradient and 2mkn for the input's; each operand is touched once.
"""

from __future__ import annotations

from math import prod
from typing import Any

from .kernel import Array, Cost, Device, dtype_name, launch, rows
from .parameter import Initialiser, Parameter, add_gradient, he_uniform, zeros


class Linear:
    """y = x Wᵀ + b for x of shape (..., inputs); the weight has shape (outputs, inputs).

    `weight` ties the layer to a parameter that exists. `math` names the precision of the products where
    it isn't the arrays' own ("tf32"). A first layer needs no gradient of its input: `input_gradient=False`.
    """

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        bias: bool = True,
        *,
        init: Initialiser | None = None,
        dtype: str = "float32",
        math: str | None = None,
        weight: Parameter | None = None,
        input_gradient: bool = True,
    ) -> None:
        self.name = name
        self.inputs, self.outputs = inputs, outputs
        self.math = math
        self.input_gradient = input_gradient
        self.weight = weight or Parameter(f"{name}.weight", (outputs, inputs), init or he_uniform(inputs), dtype)
        self.bias = Parameter(f"{name}.bias", (outputs,), zeros, dtype) if bias else None

    def parameters(self) -> list[Parameter]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def forward(self, gpu: Device, x: Array) -> tuple[Array, Array]:
        y = gpu.empty((*x.shape[:-1], self.outputs), x.dtype, purpose="activations")
        operands = [x, self.weight.data] + ([self.bias.data] if self.bias else [])
        cost = self._cost(x, bias=self.bias is not None)
        launch(gpu, _forward, *operands, y, cost=cost, name=f"{self.name} forward")
        return y, x

    def backward(self, gpu: Device, saved: Array, dy: Array) -> Array | None:
        x, cost = saved, self._cost(saved)
        name = f"{self.name} backward"
        add_gradient(gpu, self.weight, _weight_gradient, x, dy, cost=cost, name=name)
        if self.bias is not None:
            bias_cost = Cost(dy.size, dy.nbytes + self.bias.nbytes, dtype_name(dy))
            add_gradient(gpu, self.bias, sum_rows, dy, cost=bias_cost, name=name)
        if not self.input_gradient:
            return None
        dx = gpu.empty(x.shape, x.dtype, purpose="activations")
        launch(gpu, _input_gradient, dy, self.weight.data, dx, cost=cost, name=name)
        return dx

    def _cost(self, x: Array, bias: bool = False) -> Cost:
        m = prod(x.shape[:-1])
        flops = 2 * m * self.inputs * self.outputs + (m * self.outputs if bias else 0)
        elements = m * self.inputs + self.inputs * self.outputs + m * self.outputs
        elements += self.outputs if bias else 0
        return Cost(flops, elements * x.dtype.itemsize, self.math or dtype_name(x))


def _forward(xp: Any, x: Array, weight: Array, *rest: Array) -> None:
    y = rows(rest[-1])
    xp.matmul(rows(x), weight.T, out=y)
    if len(rest) == 2:
        xp.add(y, rest[0], out=y)


def _weight_gradient(xp: Any, x: Array, dy: Array, grad: Array) -> None:
    xp.matmul(rows(dy).T, rows(x), out=grad)


def _input_gradient(xp: Any, dy: Array, weight: Array, dx: Array) -> None:
    xp.matmul(rows(dy), weight, out=rows(dx))


def sum_rows(xp: Any, dy: Array, grad: Array) -> None:
    """Sum the rows of `dy` into `grad`: the gradient of a bias."""
    xp.sum(rows(dy), axis=0, out=grad)
