"""The memory of an emulated GPU: what is allocated, for what purpose, how much at most.

An array counts from its allocation until nothing refers to it any more, views included.
"""

from __future__ import annotations

import weakref
from typing import Any

from emu.errors import DeviceOutOfMemory
from emu.units import format_bytes

PURPOSES = ("weights", "gradients", "optimizer state", "activations", "buffers")


class Memory:
    """The ledger of one GPU of `capacity_bytes`: live and peak bytes by purpose."""

    def __init__(self, capacity_bytes: float, name: str = "gpu") -> None:
        self.capacity_bytes = capacity_bytes
        self.name = name
        self.live_bytes = 0
        self.peak_bytes = 0
        self.live: dict[str, int] = {}
        self.peak: dict[str, int] = {}  # by purpose, each at its own highest
        self.at_peak: dict[str, int] = {}  # by purpose, at the moment of the highest total
        self._arrays: dict[int, weakref.ref] = {}

    def take(self, nbytes: int, purpose: str) -> None:
        """Count an allocation that is about to be made. Raise DeviceOutOfMemory if it does not fit."""
        if self.live_bytes + nbytes > self.capacity_bytes:
            raise DeviceOutOfMemory(self._refusal(nbytes, purpose))
        self.live_bytes += nbytes
        now = self.live[purpose] = self.live.get(purpose, 0) + nbytes
        if now > self.peak.get(purpose, 0):
            self.peak[purpose] = now
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes = self.live_bytes
            self.at_peak = dict(self.live)

    def give(self, nbytes: int, purpose: str) -> None:
        """Count an allocation that is gone."""
        self.live_bytes -= nbytes
        self.live[purpose] -= nbytes

    def watch(self, array: Any, nbytes: int, purpose: str) -> None:
        """Give the bytes back once nothing refers to the array any more."""
        key = id(array)

        def gone(_: Any) -> None:
            self._arrays.pop(key, None)
            self.give(nbytes, purpose)

        self._arrays[key] = weakref.ref(array, gone)

    def _refusal(self, nbytes: int, purpose: str) -> str:
        held = sorted(((b, p) for p, b in self.live.items() if b), reverse=True)
        parts = ", ".join(f"{p} {format_bytes(b)}" for b, p in held) or "nothing"
        missing = self.live_bytes + nbytes - self.capacity_bytes
        return (
            f"{self.name}: at most {format_bytes(int(self.capacity_bytes))} fit, got {format_bytes(self.live_bytes)} "
            f"live ({parts}) and {format_bytes(nbytes)} more for {purpose}; {format_bytes(int(missing))} too much: "
            f"{_advice(held, purpose)}"
        )


def _advice(held: list[tuple[int, str]], purpose: str) -> str:
    largest = max([(b, p) for b, p in held], default=(0, purpose))[1]
    return {
        "activations": "use a smaller batch, recompute activations, or more GPUs",
        "optimizer state": "shard the optimizer state over the ranks (ZeRO stage 1), or take a larger GPU",
        "gradients": "shard the gradients over the ranks (ZeRO stage 2), or take a larger GPU",
        "weights": "shard the weights over the ranks (ZeRO stage 3) or split the model, or take a larger GPU",
    }.get(largest, "use smaller buckets, or take a larger GPU")
