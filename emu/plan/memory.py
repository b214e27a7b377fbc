"""Memory of a model's training state by component, for no sharding and each ZeRO stage, and what fits where.

    bytes a GPU with N of them, for P parameters in 2 bytes, gradients in 2, and K = 12 bytes of Adam in float32:
    none 16P    stage 1 4P + 12P/N    stage 2 2P + 14P/N    stage 3 16P/N

Activations, buffers and what a stage 3 gathers come on top; a dry run counts them.
Source: Rajbhandari et al., "ZeRO", SC 2020, section 3 and table 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emu.errors import ConfigError

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Precision:
    """Bytes a parameter of weights, gradients and optimizer state (with the master copy of the weights)."""

    name: str
    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        """Bytes a parameter in all."""
        return self.weights + self.gradients + self.optimizer


PRECISIONS = {
    "mixed": Precision("16-bit weights and gradients, float32 Adam with master weights", 2, 2, 12),
    "fp32": Precision("float32 throughout, Adam", 4, 4, 8),
}


@dataclass(frozen=True)
class State:
    """Bytes on each GPU, by component."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """Bytes in all."""
        return self.weights + self.gradients + self.optimizer


def state(parameters: int, gpus: int, stage: int, precision: Precision = PRECISIONS["mixed"]) -> State:
    """Return what one of so many GPUs holds.

    >>> state(7_500_000_000, 64, 2).total / 1e9
    16.640625
    """
    if stage not in STAGES:
        raise ConfigError(f"stage: one of 0, 1, 2, 3 is expected, got {stage}")
    parts = [precision.weights, precision.gradients, precision.optimizer]
    shared = (stage >= 3, stage >= 2, stage >= 1)
    return State(*(parameters * each / (gpus if split else 1) for each, split in zip(parts, shared, strict=True)))


def fewest(
    parameters: int, stage: int, capacity_bytes: float, precision: Precision = PRECISIONS["mixed"]
) -> int | None:
    """Return the smallest number of GPUs on which a stage's state fits, None where no number does.

    >>> fewest(175_000_000_000, 3, 80e9), fewest(175_000_000_000, 2, 80e9)
    (35, None)
    """
    if state(parameters, 1 << 60, stage, precision).total >= capacity_bytes:
        return 1 if stage == 0 and parameters * precision.total <= capacity_bytes else None
    whole = state(parameters, 1 << 60, stage, precision).total
    shared = parameters * precision.total - whole
    gpus = max(1, int(shared // (capacity_bytes - whole)) - 1)
    while state(parameters, gpus, stage, precision).total > capacity_bytes:
        gpus += 1
    return gpus


@dataclass(frozen=True)
class Row:
    """One stage on one number of GPUs."""

    stage: int
    gpus: int
    state: State
    fits: bool


def table(
    parameters: int, gpus: Sequence[int], capacity_bytes: float, precision: Precision = PRECISIONS["mixed"]
) -> list[Row]:
    """Return every stage on every number of GPUs."""
    rows = []
    for stage in STAGES:
        for count in gpus:
            held = state(parameters, count, stage, precision)
            rows.append(Row(stage, count, held, held.total <= capacity_bytes))
    return rows


def quoted(parameters: int) -> list[tuple[float, str]]:
    """Return figures that people quote for a model's memory, in bytes, and what each assumes."""
    return [
        (2.0 * parameters, "weights in 16 bits, nothing else: enough to load them, for inference"),
        (4.0 * parameters, "weights in float32, or 16-bit weights and gradients: no optimizer"),
        (4.6 * parameters, "4.6 bytes a parameter, the often quoted 'at least 800 GB' of GPT-3: float32 weights and "
                           "little more; no training with Adam fits it"),
        (16.0 * parameters, "training with mixed-precision Adam: 2 + 2 + 4 + 4 + 4 bytes a parameter, no activations"),
        (18.0 * parameters, "the same with gradients in float32 as well"),
    ]  # fmt: skip
