"""All-reduce through one rank or straight to owners. In place. n is the length of x in bytes."""

from typing import Any

from emu.collectives.broadcast import linear_broadcast
from emu.collectives.cuts import even_cuts
from emu.collectives.ops import finish, local_op
from emu.collectives.protocol import Peers
from emu.collectives.reduce import collect
from emu.comm.calls import collective
from emu.errors import ConfigError


@collective("all_reduce", "naive", planned=True)
def naive_all_reduce(comm: Peers, x: Any, op: str = "sum") -> None:
    """Gather all x on rank 0, add, and send the sum to everybody: rank 0's port carries it all.

    Cost: 2α + 2(p-1)n/B + (p-1)γn; 2(p-1) messages of n bytes, all from or to rank 0.
    Source: Open MPI coll/basic, linear (reduce, then broadcast).
    """
    collect(comm, x, 0, local_op(op))
    if comm.rank == 0:
        finish(comm, x, op, comm.size)
    linear_broadcast(comm, x)


@collective("all_reduce", "parameter_server", planned=True)
def parameter_server_all_reduce(comm: Peers, x: Any, op: str = "sum", servers: int = 1) -> None:
    """Push x to the servers, which sum, then pull the sum. Ranks 0 to servers-1 serve a shard each and work too.

    Cost: 2α + 2(p-1)n/(sB) + (p-1)γn/s with s servers, for a server's port; 2s(p-1) messages,
    2(p-1)n bytes in all. With s = p it moves no more than a ring, in two steps.
    Source: Li et al., Scaling distributed machine learning with the parameter server, 2014; BytePS.
    """
    p = comm.size
    plain = local_op(op)
    if not 1 <= servers <= p:
        raise ConfigError(
            f"parameter_server_all_reduce: servers must be from 1 to {p}, got {servers}; take at most one a rank"
        )
    cut = even_cuts(x.size, servers)
    shards = [x[cut[s] : cut[s + 1]] for s in range(servers)]
    push_sum_pull(comm, shards, plain)
    finish(comm, x, op, p)


@collective("all_reduce", "direct", planned=True)
def direct_all_reduce(comm: Peers, x: Any, op: str = "sum") -> None:
    """Send chunk q straight to rank q, which adds in the order of ranks; send the sum straight back to all.

    Cost: 2α + 2(p-1)/p·n/B + (p-1)γn/p; 2(p-1) messages a rank in two steps.
    Source: a parameter server with p shards; the two-shot all-reduce of TensorRT-LLM and MSCCL++.
    """
    cut = even_cuts(x.size, comm.size)
    push_sum_pull(comm, [x[cut[q] : cut[q + 1]] for q in range(comm.size)], local_op(op))
    finish(comm, x, op, comm.size)


def push_sum_pull(comm: Peers, shards: list[Any], plain: str) -> None:
    """Sum shard s of everybody on rank s, then give it to all."""
    push_sum(comm, shards, plain)
    pull(comm, shards)


def push_sum(comm: Peers, shards: list[Any], plain: str) -> None:
    """Sum shard s of everybody on rank s; the receives stand before the sends."""
    p, r = comm.size, comm.rank
    others = [(r + i) % p for i in range(1, p)]
    mine = shards[r] if r < len(shards) else None
    received = [comm.empty_like(mine) for _ in others] if mine is not None else []
    pushed = [comm.irecv(got, q) for got, q in zip(received, reversed(others), strict=True)] if received else []
    leaving = [comm.isend(shards[q], q) for q in others if q < len(shards)]
    for got, request in zip(received, pushed, strict=True):
        comm.waitall([request])
        comm.reduce(plain, mine, got)
    comm.waitall(leaving)


def pull(comm: Peers, shards: list[Any]) -> None:
    """Give shard s of rank s to all."""
    p, r = comm.size, comm.rank
    others = [(r + i) % p for i in range(1, p)]
    pulled = [comm.irecv(shards[q], q) for q in reversed(others) if q < len(shards)]
    if r < len(shards):
        pulled += [comm.isend(shards[r], q) for q in others]
    comm.waitall(pulled)
