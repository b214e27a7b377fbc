"""The host beside a GPU, as far as an offloaded optimizer needs it: its share of memory and of memory bandwidth.

An update on the CPU takes as long as its bytes take through this GPU's share of the node's memory bandwidth.
Source: Ren et al., "ZeRO-Offload", USENIX ATC 2021.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from emu.errors import ConfigError, DeviceOutOfMemory
from emu.gpu import Cost, DryArray, Gpu, Memory
from emu.gpu.arrays import dtype_of


class Host:
    """What layers and optimizers use of a device, on the CPU."""

    xp: Any = np

    def __init__(self, gpu: Gpu) -> None:
        cluster = gpu.comm.cluster
        if cluster is None:
            raise ConfigError("offload: a run with a cluster is expected; start the program with emu.run")
        spec = cluster.node(cluster.node_of(gpu.rank)).spec
        self.gpu, self.dry = gpu, gpu.dry
        capacity = spec.memory_bytes / spec.gpus if spec.memory_bytes else float("inf")
        self.memory = Memory(capacity, f"host memory of rank {gpu.rank} (1/{spec.gpus} of {spec.name}'s)")
        self.bandwidth_bytes_per_s = spec.cpu.memory_bytes_per_s * spec.sockets / spec.gpus
        gpu.decisions["host memory bandwidth of a GPU's share"] = self.bandwidth_bytes_per_s

    def empty(self, shape: Any, dtype: Any = "float32", purpose: str = "activations") -> Any:
        """Allocate in host memory. Raise DeviceOutOfMemory where this rank's share is used up."""
        dtype = dtype_of(dtype)
        made: Any = DryArray.of(shape, dtype) if self.dry else np.empty(shape, dtype)
        try:
            self.memory.take(made.nbytes, purpose)
        except DeviceOutOfMemory as error:
            raise DeviceOutOfMemory(
                f"{str(error).rsplit(': ', 1)[0]}; use more GPUs, so that each keeps less, or leave --offload out"
            ) from None
        self.memory.watch(made, made.nbytes, purpose)
        return made

    def zeros(self, shape: Any, dtype: Any = "float32", purpose: str = "activations") -> Any:
        """Allocate zeros in host memory."""
        made = self.empty(shape, dtype, purpose)
        made.fill(0)
        return made

    def launch(self, kernel: Callable[..., Any], *arrays: Any, cost: Cost, name: str | None = None) -> None:
        """Run on the CPU, while the current stream waits."""
        self.gpu.host_work(lambda: kernel(*arrays), cost.bytes / self.bandwidth_bytes_per_s, name or kernel.__name__)

    def fetch(self, array: Any, name: str) -> Any:
        """Return a copy of a GPU's array in host memory."""
        made = self.empty(array.shape, array.dtype, "gradients")
        self.gpu.pass_host(array, "d2h", name)
        if not self.dry:
            made[...] = array if isinstance(array, np.ndarray) else self.gpu.xp.asnumpy(array)
        return made

    def give(self, made: Any, array: Any, name: str) -> None:
        """Copy an array of the host's into one of the GPU's."""
        self.gpu.pass_host(array, "h2d", name)
        if not self.dry:
            array[...] = self.gpu.xp.asarray(made)
