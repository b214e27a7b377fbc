"""The grid of ranks: DP replicas × PP stages × TP parts, and each rank's communicators along its three axes.

Parts of one layer talk most, so they are next to each other; then replicas; stages are furthest apart.
Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from emu.nn.parameter import Parameter
from emu.parallel.two_levels import TwoLevels, two_levels


@dataclass(frozen=True)
class Grid:
    """One rank's place: `data`, `pipeline` and `tensor` are communicators of the ranks that share the others."""

    world: Any
    data: Any
    pipeline: Any
    tensor: Any
    levels: TwoLevels | None = None  # of `data`, where its collectives go in two levels

    @property
    def comms(self) -> list[Any]:
        """Every communicator, the one of all ranks first."""
        levels = self.levels
        found = [self.world, self.data, self.pipeline, self.tensor]
        found += [levels.comm, levels.node, levels.rail] if levels else []
        return [comm for i, comm in enumerate(found) if comm is not None and comm not in found[:i]]

    @property
    def stage(self) -> int:
        """Which part of the layers this rank has."""
        return self.pipeline.rank if self.pipeline else 0

    @property
    def stages(self) -> int:
        """How many parts of the layers there are."""
        return self.pipeline.size if self.pipeline else 1

    @property
    def part(self) -> int:
        """Which part of each layer this rank has."""
        return self.tensor.rank if self.tensor else 0

    @property
    def parts(self) -> int:
        """How many parts of each layer there are."""
        return self.tensor.size if self.tensor else 1

    @property
    def across(self) -> tuple[Any, ...]:
        """The communicators whose ranks hold different parameters of one replica."""
        return tuple(comm for comm in (self.tensor, self.pipeline) if comm is not None)

    def counts(self, parameter: Parameter) -> bool:
        """Say whether this rank counts a parameter in the global norm: every part once, what is whole on one rank."""
        return parameter.cut is not None or self.part == 0


def make_grid(comm: Any, tp: int, pp: int, hierarchical: bool = False) -> Grid:
    """Place this rank. Collective; `tp × pp` divides the ranks. `hierarchical` collectives have two levels."""
    if tp == pp == 1:
        return Grid(comm, comm, None, None, two_levels(comm, comm) if hierarchical else None)
    dp = comm.size // (tp * pp)
    rest, part = divmod(comm.rank, tp)
    stage, replica = divmod(rest, dp)
    tensor = comm.split(stage * dp + replica, part) if tp > 1 else None
    data = comm.split(stage * tp + part, replica)
    pipeline = comm.split(replica * tp + part, stage) if pp > 1 else None
    return Grid(comm, data, pipeline, tensor, two_levels(comm, data, stage * tp + part) if hierarchical else None)
