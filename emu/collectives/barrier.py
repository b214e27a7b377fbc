"""Barrier: no rank goes on before every rank has come. Messages are empty."""

from typing import Any

from emu.collectives.protocol import Peers
from emu.collectives.walks import binomial_node
from emu.comm.calls import collective


@collective("barrier", "dissemination", planned=True)
def dissemination_barrier(comm: Peers) -> None:
    """Tell the rank 1, 2, 4, ... further on that I and those I heard of are here.

    Cost: ⌈log₂p⌉α; ⌈log₂p⌉ messages a rank.
    Source: Hensgen, Finkel, Manber, Two algorithms for barrier synchronization, 1988.
    """
    p, r = comm.size, comm.rank
    for hop in (1 << s for s in range((p - 1).bit_length())):
        comm.sendrecv(_nothing(comm), (r + hop) % p, _nothing(comm), (r - hop) % p)


@collective("barrier", "tree", planned=True)
def tree_barrier(comm: Peers) -> None:
    """Report up a binomial tree, release down the same tree.

    Cost: 2⌈log₂p⌉α; 2(p-1) messages in all.
    Source: Mellor-Crummey and Scott, Algorithms for scalable synchronization, 1991 (a combining tree).
    """
    node = binomial_node(comm.size, comm.rank)
    comm.waitall([comm.irecv(_nothing(comm), child) for child in node.children])
    if node.parent is not None:
        comm.waitall([comm.isend(_nothing(comm), node.parent)])
        comm.waitall([comm.irecv(_nothing(comm), node.parent)])
    comm.waitall([comm.isend(_nothing(comm), child) for child in node.children])


@collective("barrier", "linear", planned=True)
def linear_barrier(comm: Peers) -> None:
    """Report to rank 0, which releases everybody.

    Cost: 2α; 2(p-1) messages in all, through rank 0's port.
    Source: Open MPI coll/basic, linear.
    """
    others = range(1, comm.size)
    if comm.rank == 0:
        comm.waitall([comm.irecv(_nothing(comm), q) for q in others])
        comm.waitall([comm.isend(_nothing(comm), q) for q in others])
    else:
        comm.waitall([comm.isend(_nothing(comm), 0)])
        comm.waitall([comm.irecv(_nothing(comm), 0)])


def _nothing(comm: Peers) -> Any:
    return comm.empty(0, "uint8")
