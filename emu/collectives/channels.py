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
    return tuple(_through(nodes, lane) for lane in range(lanes))


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


def _lanes(cluster: Any, group: Sequence[int], nodes: Sequence[Sequence[int]]) -> int:
    """Return how many rings fit: as many as a node has NICs, and GPUs."""
    if not hasattr(cluster, "nic_of") or len({len(node) for node in nodes}) > 1:
        return 1
    nics = len({cluster.nic_of(group[i]) for i in nodes[0]})
    fit = MOST_MESSAGES // (2 * len(group) ** 2)
    return max(1, min(nics, len(nodes[0]), fit))


def _through(nodes: Sequence[Sequence[int]], lane: int) -> tuple[int, ...]:
    """Order the ranks so that nodes are left and entered at GPU `lane` and the one after it, in turns."""
    order: list[int] = []
    for number, node in enumerate(nodes):
        g = len(node)
        if number % 2 == 0:
            order += [node[(lane - i) % g] for i in range(g)]
        else:
            order += [node[(lane + 1 + i) % g] for i in range(g)]
    return tuple(order)


def heads(cluster: Any, group: Sequence[int]) -> tuple[tuple[tuple[int, ...], ...], int]:
    """Return the nodes of a group, as places in it, and how many of a node's GPUs head a pair of trees."""
    if cluster is None:
        return (tuple(range(len(group))),), 1
    nodes = _nodes(cluster, group)
    lanes = 1 if len(nodes) == 1 else _lanes(cluster, group, nodes)
    return tuple(tuple(node) for node in nodes), lanes


def tree_place(nodes: Sequence[Sequence[int]], r: int, lane: int, number: int) -> tuple[TreeNode, int]:
    """Return rank r's place in tree `number` (0 or 1) of a lane, and its depth.

    A binary tree joins the nodes' heads, GPU `lane` of each; from a head a chain runs through the other GPUs of
    its node. Source: NCCL's trees.
    """
    here = next(i for i, node in enumerate(nodes) if r in node)
    chain = _chain(nodes[here], lane)
    at = chain.index(r)
    below = chain[at + 1 : at + 2]
    if at > 0:
        return TreeNode(chain[at - 1], below), _depth(len(nodes), here, number) + at
    above = binary_tree_node(len(nodes), here, number)
    children = tuple(_chain(nodes[child], lane)[0] for child in above.children)
    parent = None if above.parent is None else _chain(nodes[above.parent], lane)[0]
    return TreeNode(parent, (*children, *below)), _depth(len(nodes), here, number)


def deepest(nodes: Sequence[Sequence[int]], number: int) -> int:
    """Return the depth of the lowest rank of tree `number`."""
    return max(_depth(len(nodes), i, number) + len(node) - 1 for i, node in enumerate(nodes))


def _chain(node: Sequence[int], lane: int) -> tuple[int, ...]:
    return tuple(node[(lane + i) % len(node)] for i in range(len(node)))


def _depth(m: int, node: int, number: int) -> int:
    depth, parent = 0, binary_tree_node(m, node, number).parent
    while parent is not None:
        depth, parent = depth + 1, binary_tree_node(m, parent, number).parent
    return depth
