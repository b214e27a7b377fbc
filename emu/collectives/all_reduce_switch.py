"""All-reduce by a switch that adds, as NVLink SHARP does. In place. n is the length of x in bytes.

Ranks are GPUs; a switch is none, and has no memory here. So the sums are made by the ranks, straight from each other's
buffers, and what is recorded in their place is what crosses each GPU's port in either direction when the
switch adds: its x, then the sum of a chunk. This is the one algorithm whose record is not its own messages.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from emu.collectives.all_reduce_central import pull, push_sum, push_sum_pull
from emu.collectives.all_reduce_tree import Tree
from emu.collectives.among import Among
from emu.collectives.channels import deepest, heads, tree_place
from emu.collectives.cuts import even_cuts, segment_count, segments
from emu.collectives.network import reduces_in_switch, reduces_in_switches
from emu.collectives.ops import finish, local_op
from emu.comm.calls import collective
from emu.errors import ConfigError

CHUNK_BYTES = 128 * 1024  # of one tree; from memory, as NCCL's
MOST_SEGMENTS = 1024
TURNS = 8  # that a message may take between nodes: as many steps as NCCL's buffer has


@collective("all_reduce", "in_switch")
def in_switch_all_reduce(comm: Any, x: Any, op: str = "sum") -> None:
    """Each rank has the switch add its chunk of everybody's x and give the sum to all.

    Needs a switch that reduces between all ranks, where the cluster is known; raises ConfigError otherwise.
    Cost: 2α + (1 + 1/p)n/B, no sums on GPUs; a port carries (1 + 1/p)n each way, in two messages, so that
    bus bandwidth exceeds the link's by up to 2(p-1)/(p+1).
    Source: Klenk et al., An in-network architecture for accelerating shared-memory multiprocessor
    collectives, 2020; NCCL's NVLS (multimem.ld_reduce, then multimem.st).
    """
    p, r, plain = comm.size, comm.rank, local_op(op)
    cluster = getattr(comm, "cluster", None)
    if cluster is not None and p > 1 and not reduces_in_switch(cluster, comm.group):
        raise ConfigError(
            f"in_switch_all_reduce: a switch that reduces between all {p} ranks is expected, and {cluster.name} "
            "has none; choose another algorithm, or a cluster such as dgx-h100 with the ranks on one node"
        )
    cut = even_cuts(x.size, p)
    with _unrecorded(comm):
        push_sum_pull(comm, [x[cut[q] : cut[q + 1]] for q in range(p)], plain)
    for nbytes in (x.nbytes, cut[1] * x.itemsize) if p > 1 else ():
        right, left = comm.group[(r + 1) % p], comm.group[(r - 1) % p]
        comm.log.exchange(left, nbytes, right, nbytes, 0, comm.context)
    finish(comm, x, op, p)


def in_switch_tree_all_reduce(
    comm: Any, x: Any, op: str = "sum", nodes: Sequence[Sequence[int]] | None = None,
    chains: Sequence[Sequence[int]] = (), segment_bytes: int = CHUNK_BYTES,
) -> None:
    """Have each node's switch add, heads of trees sum between nodes, and the switches give the sums to all.

    `nodes` lists the ranks of each node; the first places of `chains` are a node's heads. None: as the cluster has
    them, a head for each NIC. Needs a switch that reduces in every node, where the cluster is known; raises
    ConfigError otherwise. Cost for nodes of g GPUs with h heads: about (1 + 1/h)n/B in a port, beside n/h up and
    down two trees a head, in segments.
    Source: NCCL's NVLSTree.
    """  # fmt: skip
    cluster = getattr(comm, "cluster", None)
    if nodes is None:
        if cluster is not None and comm.size > 1 and not reduces_in_switches(cluster, comm.group):
            raise ConfigError(
                f"in_switch_tree_all_reduce: a switch that reduces in every node is expected, and {cluster.name} has "
                "none; choose another algorithm, or a cluster such as dgx-h100:2"
            )
        nodes, chains = heads(cluster, getattr(comm, "group", range(comm.size)))
    lanes = tuple(chain[0] for chain in chains)
    _in_switch_tree(comm, x, op, tuple(tuple(node) for node in nodes), lanes, segment_bytes)


@collective("all_reduce", "in_switch_tree")
def _in_switch_tree(
    comm: Any, x: Any, op: str, nodes: Sequence[Sequence[int]], lanes: Sequence[int], segment_bytes: int
) -> None:
    plain, node = local_op(op), next(node for node in nodes if comm.rank in node)
    lanes = lanes[: min(len(each) for each in nodes)]
    order = (*[node[lane] for lane in lanes], *[r for i, r in enumerate(node) if i not in lanes])
    inside, cut = Among(comm, order), even_cuts(x.size, len(lanes))
    parts = [x[cut[h] : cut[h + 1]] for h in range(len(lanes))]
    with _unrecorded(comm):
        push_sum(inside, parts, plain)
    k = segment_count(cut[1], x.itemsize, max(2 * segment_bytes, cut[1] * x.itemsize // MOST_SEGMENTS))
    trees = _trees(comm, nodes, lanes, inside.rank, parts, k) if inside.rank < len(lanes) else []
    for turn in range(k + max([1 + tree.falls_at for tree in trees], default=0)):
        if turn < k and inside.size > 1:
            _cross(comm, inside, order, cut, x.itemsize, k)
        for tree in trees:
            tree.up(turn - 1 - tree.rises_at, plain)
        for tree in trees:
            tree.down(turn - 1 - tree.falls_at)
    for tree in trees:
        tree.drain()
    with _unrecorded(comm):
        pull(inside, parts)
    finish(comm, x, op, comm.size)


def _trees(
    comm: Any, nodes: Sequence[Sequence[int]], lanes: Sequence[int], head: int, parts: Sequence[Any], k: int
) -> list[Tree]:
    """Return the two trees that a head is in: over the same head of every node, with half of its part each."""
    across = [(node[lanes[head]],) for node in nodes]
    half = even_cuts(parts[head].size, 2)
    trees = []
    for t in (0, 1) if len(nodes) > 1 else ():
        pieces = [parts[head][a:b] for a, b in segments(half[t], half[t + 1], k)]
        place, depth = tree_place(across, comm.rank, (0,), t)
        trees.append(Tree(comm, pieces, t, place, depth, deepest(across, t), TURNS))
    return trees


def _cross(comm: Any, inside: Among, order: Sequence[int], cut: Sequence[int], itemsize: int, k: int) -> None:
    """Record what crosses the ports in a turn: a segment of everybody's x, and of a head's part the sum."""
    n, heads_there = cut[-1] * itemsize // k, len(cut) - 1
    sums = -(-cut[1] * itemsize // k)

    def crossing(place: int) -> int:
        return n + (sums if place < heads_there else 0)

    right, left = (inside.rank + 1) % inside.size, (inside.rank - 1) % inside.size
    there, here = comm.group[order[left]], comm.group[order[right]]
    comm.log.exchange(there, crossing(left), here, crossing(inside.rank), 0, comm.context)


@contextmanager
def _unrecorded(comm: Any) -> Iterator[None]:
    """Move bytes and leave no trace of it, not even in the count of requests."""
    log = comm.log
    muted, posted = log.muted, log.posted[log.stream]
    log.muted = True
    try:
        yield
    finally:
        log.muted, log.posted[log.stream] = muted, posted
