"""Several rings, or several pairs of trees, at once: each over links of its own. Nothing here communicates.

Where GPUs have several ways out (the lines of a cube mesh, one NIC each), one ring or tree uses one of them. As many
as there are ways, each with its part of the data, use all.
"""

from collections.abc import Sequence
from typing import Any

from emu.collectives.walks import TreeNode, binary_tree_node

MOST_MESSAGES = 4_000_000  # of one all-reduce; beyond, fewer rings carry the data


def ring_orders(cluster: Any, group: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the rings through the ranks `group` of a cluster, as places in the group.

    In a node whose GPUs have direct links: as many as share none, both ways round. Between nodes: one a NIC, which
    leaves a node by the NIC by which it enters the next one. Else one.
    """
    if cluster is None or len(group) < 3:
        return (tuple(range(len(group))),)
    place = {rank: i for i, rank in enumerate(group)}
    nodes = _nodes(cluster, group)
    if len(nodes) == 1:
        rings = cluster.rings(group) if hasattr(cluster, "rings") else (tuple(group),)
        both = [ring[:1] + ring[:0:-1] for ring in rings] if _direct(cluster, rings) else []
        return tuple(tuple(place[rank] for rank in ring) for ring in (*rings, *both))
    lanes = _lanes(cluster, group, nodes)
    cycles = _cycles(cluster, group, nodes[0])
    nics = _nics(cluster, group, nodes[0])
    return tuple(_through(nodes, _broken(cycles, lane, i, nics)) for i, lane in enumerate(lanes))


def _nodes(cluster: Any, group: Sequence[int]) -> list[list[int]]:
    """List the places in the group of each node's ranks, nodes in the order of their first rank."""
    members: dict[int, list[int]] = {}
    for place, rank in enumerate(group):
        members.setdefault(cluster.node_of(rank), []).append(place)
    return list(members.values())


def _direct(cluster: Any, rings: Sequence[Sequence[int]]) -> bool:
    """Whether every hop of the rings has a link of its own."""
    hops = [hop for ring in rings for hop in zip(ring, (*ring[1:], ring[0]), strict=True)]
    return all(len(cluster.route(a, b).links) == 1 for a, b in hops) and len(rings[0]) > 2


def _lanes(cluster: Any, group: Sequence[int], nodes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the GPUs, by their places in a node, that rings or trees enter a node at: one a NIC, as many as fit."""
    if len({len(node) for node in nodes}) > 1:
        return (0,)
    own: dict[int, int] = {}
    for place, nic in enumerate(_nics(cluster, group, nodes[0])):
        own.setdefault(nic, place)
    fit = max(1, MOST_MESSAGES // (2 * len(group) ** 2))
    return tuple(own.values())[:fit]


def _nics(cluster: Any, group: Sequence[int], node: Sequence[int]) -> tuple[int, ...]:
    """Return the NIC of each GPU of a node; all have the same where the cluster knows none."""
    return tuple(cluster.nic_of(group[i]) if hasattr(cluster, "nic_of") else 0 for i in node)


def _cycles(cluster: Any, group: Sequence[int], node: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return rings through one node's GPUs, by their places in it: over direct links where it has such."""
    if not hasattr(cluster, "rings") or len(node) < 3:
        return (tuple(range(len(node))),)
    rings = cluster.rings([group[i] for i in node])
    if not _direct(cluster, rings):
        return (tuple(range(len(node))),)
    place = {group[i]: at for at, i in enumerate(node)}
    return tuple(tuple(place[rank] for rank in ring) for ring in rings)


def _broken(
    cycles: Sequence[Sequence[int]], lane: int, number: int, nics: Sequence[int]
) -> tuple[int, ...]:
    """Break a ring at GPU `lane`: it comes first, and last a neighbour, of the same NIC if one has that."""
    found = []
    for cycle in (*cycles[number % len(cycles) :], *cycles[: number % len(cycles)]):
        turned = _rotated(cycle, lane)
        found += [turned[:1] + turned[:0:-1], turned]
    return next((path for path in found if nics[path[-1]] == nics[lane]), found[0])


def _through(nodes: Sequence[Sequence[int]], path: Sequence[int]) -> tuple[int, ...]:
    """Order the ranks so that nodes are passed along `path`, places in a node, forwards and backwards in turns."""
    order: list[int] = []
    for number, node in enumerate(nodes):
        if len(node) != len(path):
            path = tuple(range(len(node)))
        order += [node[place] for place in (path if number % 2 == 0 else reversed(path))]
    return tuple(order)


def heads(cluster: Any, group: Sequence[int]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Return the nodes of a group, as places in it, and the chains that hang from a node's heads of trees.

    A chain lists places in a node, its head first: one for each NIC, or one on a single node.
    """
    if cluster is None:
        return (tuple(range(len(group))),), (tuple(range(len(group))),)
    nodes = _nodes(cluster, group)
    lanes = (0,) if len(nodes) == 1 else _lanes(cluster, group, nodes)
    cycles = _cycles(cluster, group, nodes[0])
    chains = tuple(_rotated(cycles[i % len(cycles)], lane) for i, lane in enumerate(lanes))
    return tuple(tuple(node) for node in nodes), chains


def tree_place(nodes: Sequence[Sequence[int]], r: int, chain: Sequence[int], number: int) -> tuple[TreeNode, int]:
    """Return rank r's place in tree `number` (0 or 1) of those that hang from a chain's head, and its depth.

    A binary tree joins the nodes' heads; from a head the chain runs through the other GPUs of its node.
    Source: NCCL's trees.
    """
    here = next(i for i, node in enumerate(nodes) if r in node)
    ranks = _along(nodes[here], chain)
    at = ranks.index(r)
    below = ranks[at + 1 : at + 2]
    if at > 0:
        return TreeNode(ranks[at - 1], below), _depth(len(nodes), here, number) + at
    above = binary_tree_node(len(nodes), here, number)
    children = tuple(_along(nodes[child], chain)[0] for child in above.children)
    parent = None if above.parent is None else _along(nodes[above.parent], chain)[0]
    return TreeNode(parent, (*children, *below)), _depth(len(nodes), here, number)


def deepest(nodes: Sequence[Sequence[int]], number: int) -> int:
    """Return the depth of the lowest rank of tree `number`."""
    return max(_depth(len(nodes), i, number) + len(node) - 1 for i, node in enumerate(nodes))


def _along(node: Sequence[int], chain: Sequence[int]) -> tuple[int, ...]:
    """Return a node's ranks in the order of a chain, or of its own from the same head, if it has another size."""
    if len(node) != len(chain):
        chain = _rotated(range(len(node)), chain[0] % len(node))
    return tuple(node[place] for place in chain)


def _rotated(cycle: Sequence[int], first: int) -> tuple[int, ...]:
    at = list(cycle).index(first)
    return (*cycle[at:], *cycle[:at])


def _depth(m: int, node: int, number: int) -> int:
    depth, parent = 0, binary_tree_node(m, node, number).parent
    while parent is not None:
        depth, parent = depth + 1, binary_tree_node(m, parent, number).parent
    return depth
