"""All-gather and reduce-scatter in two levels, so that every NIC of a node carries its part.

    gather    over the rail (the GPUs of the same number in each node), then within the node
    scatter   within the node, then over the rail

A rank's part is number `local × nodes + node`, so that both levels work on contiguous blocks: `reordered` makes a
communicator in that order. A rail's NIC carries n/g bytes for n bytes in all and g GPUs a node; a flat ring pushes
nearly n through one NIC.
Cost of each: α-terms of both levels + n(m-1)/(gm)/B_rail + n(g-1)/g/B_node with m nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emu.collectives import find
from emu.errors import ConfigError


@dataclass(frozen=True)
class TwoLevels:
    """The communicator in the order of parts, and its two levels."""

    comm: Any
    node: Any
    rail: Any

    def all_gather(self, comm: Any, x: Any, out: Any) -> None:
        """Make out everybody's x, in the order of parts."""
        each = out.size // self.node.size
        block = out[self.node.rank * each : (self.node.rank + 1) * each]
        _gather(self.rail)(self.rail, x, block)
        _gather(self.node)(self.node, block, out)

    def reduce_scatter(self, comm: Any, x: Any, out: Any) -> None:
        """Leave my part of the sum of everybody's x in out."""
        each = x.size // self.node.size
        block = comm.empty(each, x.dtype, like=x)
        _scatter(self.node)(self.node, x, block)
        _scatter(self.rail)(self.rail, block, out)


def two_levels(world: Any, comm: Any, number: int = 0) -> TwoLevels | None:
    """Return the two levels of a communicator by its cluster's nodes; None where there is one.

    Collective over `world`, whose ranks are each in one such communicator, of its `number`. Raise ConfigError where
    nodes hold different numbers of its ranks.
    """
    cluster = world.cluster
    nodes = [cluster.node_of(rank) for rank in comm.group]
    names = sorted(set(nodes))
    if len(names) == 1 or len(names) == comm.size:
        return None
    counts = {name: nodes.count(name) for name in names}
    if len(set(counts.values())) > 1:
        raise ConfigError(
            f"algorithm hierarchical: as many ranks on every node are expected, got {list(counts.values())}; use ring"
        )
    mine = nodes[comm.rank]
    node, local = names.index(mine), nodes[: comm.rank].count(mine)
    each = world.size
    ordered = world.split(number, local * len(names) + node)
    return TwoLevels(ordered, world.split(number * each + node, local), world.split(number * each + local, node))


def _gather(comm: Any) -> Callable[..., Any]:
    return find("all_gather", "recursive_doubling" if _power(comm.size) else "ring")


def _scatter(comm: Any) -> Callable[..., Any]:
    return find("reduce_scatter", "recursive_halving" if _power(comm.size) else "ring")


def _power(n: int) -> bool:
    return n & (n - 1) == 0
