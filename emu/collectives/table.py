"""The table of all algorithms. To add one: a function, its line here, its formula; tests, bench and CLI pick it up.

`time_s` holds for idle links with full-duplex ports and no overheads. It is exact where p is a power of two
and chunks are equal (for many algorithms at any p), and a bound at other p. It is near where ranks are folded
into a power of two (recursive doubling and halving, Rabenseifner, swing), and where `estimate` says so.
`messages` and `bytes_sent` count all ranks together, exactly. v-variants have no formulas: they depend on the
counts; nor has what is placed on a cluster's links.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from emu.collectives import formulas as f
from emu.collectives.all_gather import (
    bruck_all_gather,
    linear_all_gather,
    neighbour_all_gather,
    recursive_doubling_all_gather,
    ring_all_gather,
)
from emu.collectives.all_reduce_central import (
    direct_all_reduce,
    naive_all_reduce,
    parameter_server_all_reduce,
)
from emu.collectives.all_reduce_channels import channel_ring_all_reduce, channel_tree_all_reduce
from emu.collectives.all_reduce_halving import (
    halving_doubling_all_reduce,
    rabenseifner_all_reduce,
    recursive_doubling_all_reduce,
    swing_all_reduce,
)
from emu.collectives.all_reduce_hierarchical import hierarchical_all_reduce
from emu.collectives.all_reduce_ring import SEGMENT_BYTES, ring_all_reduce, segmented_ring_all_reduce
from emu.collectives.all_reduce_switch import in_switch_all_reduce, in_switch_tree_all_reduce
from emu.collectives.all_reduce_tree import SEGMENT_BYTES as TREE_SEGMENT_BYTES
from emu.collectives.all_reduce_tree import double_tree_all_reduce, tree_all_reduce
from emu.collectives.all_to_all import (
    bruck_all_to_all,
    linear_all_to_all,
    linear_all_to_all_v,
    pairwise_all_to_all,
    pairwise_all_to_all_v,
)
from emu.collectives.barrier import dissemination_barrier, linear_barrier, tree_barrier
from emu.collectives.broadcast import (
    CHAIN_SEGMENT_BYTES,
    binomial_broadcast,
    chain_broadcast,
    linear_broadcast,
    scatter_all_gather_broadcast,
)
from emu.collectives.gather import binomial_gather, binomial_gather_v, linear_gather, linear_gather_v
from emu.collectives.gather_channels import channel_ring_all_gather, channel_ring_reduce_scatter
from emu.collectives.reduce import binomial_reduce, chain_reduce, linear_reduce, scatter_gather_reduce
from emu.collectives.reduce_scatter import (
    bruck_reduce_scatter,
    neighbour_reduce_scatter,
    pairwise_reduce_scatter,
    recursive_halving_reduce_scatter,
    ring_reduce_scatter,
)
from emu.collectives.rooted_channels import channel_chain_broadcast, channel_chain_reduce
from emu.collectives.scatter import binomial_scatter, binomial_scatter_v, linear_scatter, linear_scatter_v


@dataclass(frozen=True)
class Algorithm:
    """One algorithm and what it costs. Formulas take p ranks and n bytes; see `formulas`."""

    function: Callable[..., None]
    time_s: f.Time  # (p, n, alpha, bandwidth, gamma) -> s
    messages: f.Count  # (p, n, itemsize) -> messages of all ranks
    bytes_sent: f.Count  # (p, n, itemsize) -> bytes of all ranks
    estimate: bool = False
    central: bool = False  # all messages go from or to one rank

    @property
    def source(self) -> str:
        """Where the algorithm is from, as its docstring says."""
        return (self.function.__doc__ or "").split("Source:")[-1].strip()


def _twice(p: int, n: int) -> int:
    return 2 * (p - 1) * n


def _once(p: int, n: int) -> int:
    return (p - 1) * n


def _chunks(p: int, n: int) -> int:
    return (p - 1) * (n // p)


_each = f.fixed(lambda p: p - 1)
_all = f.fixed(lambda p: p * (p - 1))
_logs = f.fixed(lambda p: p * f.log_up(p))
_lg, _part = f.log_up, f.part

ALL_REDUCE = {
    "naive": Algorithm(
        naive_all_reduce,
        f.time_of(lambda p: 2, lambda p: 2 * (p - 1), lambda p: p - 1),
        f.fixed(lambda p: 2 * (p - 1)),
        f.volume(_twice),
        central=True,
    ),
    "parameter_server": Algorithm(
        parameter_server_all_reduce,
        f.time_of(lambda p: 2, lambda p: 2 * (p - 1), lambda p: p - 1),
        f.server_messages,
        f.volume(_twice),
        central=True,
    ),
    "direct": Algorithm(
        direct_all_reduce,
        f.time_of(lambda p: 2, lambda p: 2 * _part(p), _part),
        f.fixed(lambda p: 2 * p * (p - 1)),
        f.volume(_twice),
    ),
    "ring": Algorithm(
        ring_all_reduce,
        f.time_of(lambda p: 2 * (p - 1), lambda p: 2 * _part(p), _part),
        f.fixed(lambda p: 2 * p * (p - 1)),
        f.volume(_twice),
    ),
    "segmented_ring": Algorithm(
        segmented_ring_all_reduce,
        f.segmented_ring_time_s(SEGMENT_BYTES),
        f.segmented_messages(lambda p: p, lambda p: 2 * p * (p - 1), SEGMENT_BYTES),
        f.volume(_twice),
    ),
    "tree": Algorithm(
        tree_all_reduce,
        f.time_of(lambda p: 2 * _lg(p), lambda p: 2 * _lg(p), _lg),
        f.fixed(lambda p: 2 * (p - 1)),
        f.volume(_twice),
    ),
    "double_tree": Algorithm(
        double_tree_all_reduce,
        f.double_tree_time_s(TREE_SEGMENT_BYTES),
        f.segmented_messages(lambda p: 2, lambda p: 4 * (p - 1), TREE_SEGMENT_BYTES),
        f.volume(_twice),
        estimate=True,
    ),
    "recursive_doubling": Algorithm(
        recursive_doubling_all_reduce,
        f.folded(f.log_down, f.log_down, f.log_down, lambda p: 3, lambda p: 1),
        f.exchange_messages(1),
        f.volume(lambda p, n: ((p - f.excess(p)) * f.log_down(p) + 2 * f.excess(p)) * n),
    ),
    "rabenseifner": Algorithm(
        rabenseifner_all_reduce,
        f.folded(lambda q: 2 * f.log_down(q), lambda q: 2 * _part(q), _part, lambda p: 2.5, lambda p: 1),
        f.exchange_messages(2),
        f.volume(_twice),
    ),
    "halving_doubling": Algorithm(
        halving_doubling_all_reduce,
        f.halving_doubling_time_s,
        f.halving_doubling_messages,
        f.volume(_twice),
    ),
    "swing": Algorithm(
        swing_all_reduce,
        f.folded(lambda q: 2 * f.log_down(q), lambda q: 2 * _part(q), _part, lambda p: 2.5, lambda p: 1),
        f.exchange_messages(2),
        f.volume(_twice),
    ),
    "in_switch": Algorithm(
        in_switch_all_reduce,
        f.time_of(lambda p: 2, lambda p: 1 + 1 / p),
        f.fixed(lambda p: 2 * p if p > 1 else 0),
        lambda p, n, itemsize=1, **_: p * (n + _first_chunk(p, n, itemsize)) if p > 1 else 0,
    ),
    "hierarchical": Algorithm(
        hierarchical_all_reduce,
        f.hierarchical_time_s,
        f.hierarchical_messages,
        f.volume(_twice),
        estimate=True,
    ),
}

BROADCAST = {
    "linear": Algorithm(
        linear_broadcast, f.time_of(lambda p: 1, lambda p: p - 1), _each, f.volume(_once), central=True
    ),
    "binomial": Algorithm(binomial_broadcast, f.time_of(_lg, _lg), _each, f.volume(_once)),
    "scatter_all_gather": Algorithm(
        scatter_all_gather_broadcast,
        f.time_of(lambda p: _lg(p) + p - 1, lambda p: 2 * _part(p)),
        f.fixed(lambda p: (p + 1) * (p - 1)),
        lambda p, n, itemsize=1, **_: (p - 1) * n + _spread_bytes(p, n, itemsize),
        estimate=True,
    ),
    "chain": Algorithm(
        chain_broadcast,
        f.chain_time_s(CHAIN_SEGMENT_BYTES, summed=False),
        f.segmented_messages(lambda p: 1, lambda p: p - 1, CHAIN_SEGMENT_BYTES),
        f.volume(_once),
    ),
}

REDUCE = {
    "linear": Algorithm(
        linear_reduce,
        f.time_of(lambda p: 1, lambda p: p - 1, lambda p: p - 1),
        _each,
        f.volume(_once),
        central=True,
    ),
    "binomial": Algorithm(binomial_reduce, f.time_of(_lg, _lg, _lg), _each, f.volume(_once)),
    "scatter_gather": Algorithm(
        scatter_gather_reduce,
        f.time_of(lambda p: p, lambda p: 2 * _part(p), _part),
        f.fixed(lambda p: (p + 1) * (p - 1)),
        lambda p, n, itemsize=1, **_: (p - 1) * n + n - _first_chunk(p, n, itemsize),
    ),
    "chain": Algorithm(
        chain_reduce,
        f.chain_time_s(CHAIN_SEGMENT_BYTES, summed=True),
        f.segmented_messages(lambda p: 1, lambda p: p - 1, CHAIN_SEGMENT_BYTES),
        f.volume(_once),
    ),
}

ALL_GATHER = {
    "ring": Algorithm(ring_all_gather, f.time_of(lambda p: p - 1, _part), _all, f.volume(_once)),
    "linear": Algorithm(linear_all_gather, f.time_of(lambda p: 1, _part), _all, f.volume(_once)),
    "recursive_doubling": Algorithm(
        recursive_doubling_all_gather,
        f.folded(f.log_down, _part, lambda q: 0, lambda p: 1 + 3 / p, lambda p: 0),
        f.exchange_messages(1),
        f.folded_gather_bytes,
    ),
    "bruck": Algorithm(bruck_all_gather, f.time_of(_lg, _part), _logs, f.volume(_once)),
    "neighbour": Algorithm(
        neighbour_all_gather,
        f.neighbour_time_s(reduces=False),
        f.fixed(lambda p: (p - p % 2) * (p // 2) + (2 if p % 2 and p > 1 else 0)),
        f.neighbour_bytes,
    ),
}

REDUCE_SCATTER = {
    "ring": Algorithm(ring_reduce_scatter, f.time_of(lambda p: p - 1, _part, _part), _all, f.volume(_once)),
    "pairwise": Algorithm(
        pairwise_reduce_scatter, f.time_of(lambda p: p - 1, _part, _part), _all, f.volume(_once)
    ),
    "recursive_halving": Algorithm(
        recursive_halving_reduce_scatter,
        f.folded(f.log_down, _part, _part, lambda p: 1.5 + 3 / p, lambda p: 1 + 2 / p),
        f.exchange_messages(1),
        f.folded_scatter_bytes,
    ),
    "bruck": Algorithm(bruck_reduce_scatter, f.time_of(_lg, _part, _part), _logs, f.volume(_once)),
    "neighbour": Algorithm(
        neighbour_reduce_scatter,
        f.neighbour_time_s(reduces=True),
        f.fixed(lambda p: (p - p % 2) * (p // 2) + (2 if p % 2 and p > 1 else 0)),
        f.neighbour_bytes,
    ),
}

SCATTER = {
    "linear": Algorithm(
        linear_scatter, f.time_of(lambda p: 1, _part), _each, f.volume(_chunks), central=True
    ),
    "binomial": Algorithm(binomial_scatter, f.time_of(_lg, _part), _each, f.scatter_bytes),
}

GATHER = {
    "linear": Algorithm(linear_gather, f.time_of(lambda p: 1, _part), _each, f.volume(_chunks), central=True),
    "binomial": Algorithm(binomial_gather, f.time_of(_lg, _part), _each, f.scatter_bytes),
}

ALL_TO_ALL = {
    "linear": Algorithm(linear_all_to_all, f.time_of(lambda p: 1, _part), _all, f.volume(_once)),
    "pairwise": Algorithm(pairwise_all_to_all, f.time_of(lambda p: p - 1, _part), _all, f.volume(_once)),
    "bruck": Algorithm(
        bruck_all_to_all, f.time_of(_lg, f.bruck_all_to_all_share), _logs, f.bruck_all_to_all_bytes
    ),
}

BARRIER = {
    "dissemination": Algorithm(
        dissemination_barrier, f.time_of(_lg, lambda p: 0), _logs, f.volume(lambda p, n: 0)
    ),
    "tree": Algorithm(
        tree_barrier,
        f.time_of(lambda p: 2 * _lg(p), lambda p: 0),
        f.fixed(lambda p: 2 * (p - 1)),
        f.volume(lambda p, n: 0),
    ),
    "linear": Algorithm(
        linear_barrier,
        f.time_of(lambda p: 2, lambda p: 0),
        f.fixed(lambda p: 2 * (p - 1)),
        f.volume(lambda p, n: 0),
        central=True,
    ),
}

TABLE: dict[str, dict[str, Algorithm]] = {
    "all_reduce": ALL_REDUCE,
    "broadcast": BROADCAST,
    "reduce": REDUCE,
    "all_gather": ALL_GATHER,
    "reduce_scatter": REDUCE_SCATTER,
    "scatter": SCATTER,
    "gather": GATHER,
    "all_to_all": ALL_TO_ALL,
    "barrier": BARRIER,
}

UNEVEN: dict[str, dict[str, Callable[..., Any]]] = {
    "scatter_v": {"linear": linear_scatter_v, "binomial": binomial_scatter_v},
    "gather_v": {"linear": linear_gather_v, "binomial": binomial_gather_v},
    "all_to_all_v": {"linear": linear_all_to_all_v, "pairwise": pairwise_all_to_all_v},
}

# Algorithms that lie on a cluster's links as those are: what they cost is for the engine to say, not for a formula.
PLACED: dict[str, dict[str, Callable[..., Any]]] = {
    "all_reduce": {
        "channel_ring": channel_ring_all_reduce,
        "channel_tree": channel_tree_all_reduce,
        "in_switch_tree": in_switch_tree_all_reduce,
    },
    "broadcast": {"channel_chain": channel_chain_broadcast},
    "reduce": {"channel_chain": channel_chain_reduce},
    "all_gather": {"channel_ring": channel_ring_all_gather},
    "reduce_scatter": {"channel_ring": channel_ring_reduce_scatter},
}


def _first_chunk(p: int, n: int, itemsize: int) -> int:
    return -(-(n // itemsize) // p) * itemsize


def _spread_bytes(p: int, n: int, itemsize: int) -> int:
    cut = f.even_cuts(n // itemsize, p)
    return sum(r.bit_count() * (cut[r + 1] - cut[r]) for r in range(p)) * itemsize
