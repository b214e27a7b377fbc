"""The emulated GPU: memory with a capacity, streams and events, kernels with their costs."""

from emu.comm.dry import DryArray
from emu.gpu.device import Cost, Event, Gpu
from emu.gpu.memory import Memory

__all__ = ["Cost", "DryArray", "Event", "Gpu", "Memory"]
