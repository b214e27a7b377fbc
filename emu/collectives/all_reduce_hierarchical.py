"""All-reduce in nodes first, between nodes second. In place. n is the length of x in bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import index
from typing import Any

from emu.collectives.all_gather import ring_gather
from emu.collectives.all_reduce_halving import rabenseifner_all_reduce
from emu.collectives.all_reduce_ring import ring_all_reduce
from emu.collectives.all_reduce_tree import tree_all_reduce
from emu.collectives.among import Among, Line
from emu.collectives.cuts import even_cuts
from emu.collectives.ops import finish, local_op
from emu.collectives.protocol import Peers
from emu.collectives.reduce_scatter import ring_reduce
from emu.comm.at_once import Table
from emu.comm.calls import collective
from emu.errors import ConfigError

BETWEEN = {"ring": ring_all_reduce, "rabenseifner": rabenseifner_all_reduce, "tree": tree_all_reduce}


@collective("all_reduce", "hierarchical", planned=True)
def hierarchical_all_reduce(
    comm: Peers, x: Any, op: str = "sum", nodes: Sequence[int] | None = None, between: str = "ring"
) -> None:
    """Reduce-scatter in each node, all-reduce each chunk between nodes, all-gather in each node.

    `nodes` gives each rank's node (None: as the cluster has them). x is cut into as many chunks as the
    smallest node has ranks; a chunk crosses between nodes once, beside the others, and the ranks beyond
    that number help inside their node only.
    Cost: 2(g-1)(α + n/(gB)) + 2(m-1)(α' + n/(gmB')) + sums, for m nodes of g; 2(p-1)n bytes in all.
    Source: Horovod's hierarchical all-reduce; NCCL's and Open MPI HAN's levels.
    """
    plain = local_op(op)
    if between not in BETWEEN:
        raise ConfigError(
            f"hierarchical_all_reduce: between must be one of {', '.join(BETWEEN)}, got {between!r}; choose one"
        )
    by_node = sort_by_node(nodes_of(comm, nodes))
    node, lane = by_node.node[comm.rank], by_node.lane[comm.rank]
    size, lanes = index(by_node.sizes[node]), min(by_node.sizes)
    group = Among(comm, Line(by_node.ranks, Table(range(size)), by_node.first[node]), lane)
    cut = Table((*even_cuts(x.size, lanes), *[x.size] * (size - lanes)))
    ring_reduce(group, x, cut, plain)
    if lane < lanes:
        across = Among(comm, Line(by_node.ranks, by_node.first, lane), node)
        BETWEEN[between](across, x[cut[lane] : cut[lane + 1]], plain)
    ring_gather(group, x, cut)
    finish(comm, x, op, comm.size)


def nodes_of(comm: Any, nodes: Sequence[int] | None) -> tuple[int, ...]:
    """Return each rank's node, as given or as the cluster has them; raise ConfigError otherwise."""
    if nodes is None and getattr(comm, "cluster", None) is not None:
        return nodes_on(comm.cluster, comm.group)
    if nodes is None or len(nodes) != comm.size:
        raise ConfigError(
            f"hierarchical_all_reduce: nodes must name the node of each of {comm.size} ranks, got "
            f"{None if nodes is None else list(nodes)}; give one a rank, or run on a named cluster"
        )
    return tuple(nodes)


@lru_cache(maxsize=16)
def nodes_on(cluster: Any, group: tuple[int, ...]) -> tuple[int, ...]:
    """Return the node of each of these world ranks on a cluster."""
    return tuple(cluster.node_of(rank) for rank in group)


@dataclass(frozen=True)
class ByNode:
    """Ranks sorted by node: those of node i are `ranks[first[i]]` and the `sizes[i]` - 1 behind it.

    `node` and `lane` are each rank's node, by number, and its place there.
    """

    ranks: Table
    first: Table
    sizes: Table
    node: Table
    lane: Table


@lru_cache(maxsize=16)
def sort_by_node(nodes: tuple[int, ...]) -> ByNode:
    """Sort ranks by node, nodes in the order of their first rank.

    >>> sort_by_node((7, 7, 1, 7))
    ByNode(ranks=(0, 1, 3, 2), first=(0, 3), sizes=(3, 1), node=(0, 0, 1, 0), lane=(0, 1, 0, 2))
    """
    members: dict[int, list[int]] = {}
    lane = []
    for rank, node in enumerate(nodes):
        mine = members.setdefault(node, [])
        lane.append(len(mine))
        mine.append(rank)
    number = {node: i for i, node in enumerate(members)}
    sizes = [len(ranks) for ranks in members.values()]
    return ByNode(
        Table(rank for ranks in members.values() for rank in ranks),
        Table(accumulate(sizes[:-1], initial=0)),
        Table(sizes),
        Table(number[node] for node in nodes),
        Table(lane),
    )
