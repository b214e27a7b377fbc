"""All-reduce by a switch that adds, as NVLink SHARP does. In place. n is the length of x in bytes.

Ranks are GPUs; a switch is none, and has no memory here. So the sums are made by the ranks, straight from each other's
buffers, and what is recorded in their place is what crosses each GPU's port in either direction when the
switch adds: its x, then the sum of a chunk. This is the one algorithm whose record is not its own messages.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from emu.collectives.all_reduce_central import push_sum_pull
from emu.collectives.cuts import even_cuts
from emu.collectives.network import reduces_in_switch
from emu.collectives.ops import finish, local_op
from emu.comm.calls import collective
from emu.errors import ConfigError


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
