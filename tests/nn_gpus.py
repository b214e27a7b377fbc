"""Single GPUs for the tests of layers: real bytes, dry, and one whose arrays refuse to become numpy's, as cupy's do."""

from __future__ import annotations

from typing import Any

import numpy as np

from emu.comm.local import World, world_comm
from emu.comm.recording import Log, Tables
from emu.gpu import Cost, Gpu, Memory
from emu.gpu.arrays import arrays_of, dtype_of


class TapeGpu(Gpu):
    """A Gpu that also remembers its launches."""

    def __init__(self, arrays: Any, dry: bool = False) -> None:
        super().__init__(world_comm(World(1, dry), Log(0, Tables())), arrays, Memory(float("inf")))
        self.tape: list[tuple[str, Cost]] = []

    def launch(self, kernel: Any, *arrays: Any, cost: Cost, name: str | None = None) -> None:
        self.tape.append((name or "", cost))
        super().launch(kernel, *arrays, cost=cost, name=name)

    def flops(self) -> float:
        return sum(cost.flops for _, cost in self.tape)


def real_gpu() -> TapeGpu:
    return TapeGpu(arrays_of("numpy"))


def dry_gpu() -> TapeGpu:
    return TapeGpu(arrays_of("numpy", dry=True), dry=True)


def strict_gpu() -> TapeGpu:
    return TapeGpu(StrictArrays())


class DeviceArray:
    """What cupy.ndarray offers to layers, and its refusal to become a numpy array silently."""

    def __init__(self, host: np.ndarray) -> None:
        self._host = host

    shape = property(lambda self: self._host.shape)
    dtype = property(lambda self: self._host.dtype)
    size = property(lambda self: self._host.size)
    nbytes = property(lambda self: self._host.nbytes)
    T = property(lambda self: DeviceArray(self._host.T))

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("implicit conversion to a numpy array is not allowed")

    def __getitem__(self, index: Any) -> DeviceArray:
        return wrap(self._host[unwrap(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self._host[unwrap(index)] = unwrap(value)

    def fill(self, value: float) -> None:
        self._host.fill(value)

    def set(self, host: np.ndarray) -> None:
        self._host[...] = host

    def get(self) -> np.ndarray:
        return self._host.copy()


def unwrap(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        raise TypeError("unsupported type numpy.ndarray")
    if isinstance(value, DeviceArray):
        return value._host
    if isinstance(value, tuple):
        return tuple(unwrap(item) for item in value)
    return value


def wrap(value: Any) -> Any:
    return DeviceArray(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


def _method(name: str) -> Any:
    def call(self: DeviceArray, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._host, name)(*map(unwrap, args), **kwargs)
        return self if result is self._host else wrap(result)

    return call


_OPERATORS = "add radd sub rsub mul rmul truediv rtruediv gt ge lt eq and or invert neg iadd isub imul iand"
for _name in ["reshape", "transpose", "swapaxes", "astype", *(f"__{name}__" for name in _OPERATORS.split())]:
    setattr(DeviceArray, _name, _method(_name))


class StrictModule:
    """The functions of numpy that cupy has too and layers use, on DeviceArrays alone."""

    __name__ = "strict"
    inf, float32, float64 = np.inf, np.float32, np.float64
    FUNCTIONS = frozenset(
        "add subtract multiply divide maximum matmul exp log sqrt tanh cos sin sum mean max argmax take einsum triu "
        "full where zeros ones empty empty_like zeros_like ones_like arange dot".split()
    )

    def __getattr__(self, name: str) -> Any:
        if name not in self.FUNCTIONS:
            raise AttributeError(f"layers may not rely on xp.{name}")
        return _Function(getattr(np, name))

    def asarray(self, host: np.ndarray) -> DeviceArray:
        return DeviceArray(np.array(host))


class _Function:
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kwargs = {key: unwrap(value) for key, value in kwargs.items()}
        result = self.function(*map(unwrap, args), **kwargs)
        return wrap(result)

    def at(self, *args: Any) -> None:
        self.function.at(*map(unwrap, args))


class StrictArrays:
    """Allocates DeviceArrays."""

    xp = StrictModule()
    dtype = staticmethod(dtype_of)

    def empty(self, shape: Any, dtype: np.dtype) -> DeviceArray:
        return DeviceArray(np.full(shape, 77).astype(dtype))  # whoever reads before writing will notice

    def to_device(self, array: DeviceArray, data: Any) -> None:
        array.set(data)

    def to_host(self, array: DeviceArray) -> np.ndarray:
        return array.get()

    def ready(self) -> None:
        pass
