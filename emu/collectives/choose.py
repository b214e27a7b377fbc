"""The choice of an algorithm: by name, or the fastest by formula for a size, a number of ranks and a cluster."""

from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from emu.collectives.channels import ring_orders
from emu.collectives.formulas import two_level_time_s
from emu.collectives.network import Network, network_of
from emu.collectives.table import PLACED, TABLE, UNEVEN
from emu.engine import nccl
from emu.engine.nccl_graph import graph_of
from emu.errors import ConfigError

NEIGHBOURLY = ("ring", "segmented_ring", "chain", "naive_ring")  # one flow crosses from node to node


def algorithm_named(collective: str, algorithm: str) -> Callable[..., Any]:
    """Return the function of an algorithm; raise ConfigError, listing what there is, if there is none."""
    table: dict[str, Any] = {**TABLE, **UNEVEN}
    _known("collective", collective, table)
    placed = PLACED.get(collective, {})
    _known(f"{collective} algorithm", algorithm, [*table[collective], *placed], "auto")
    if algorithm in placed:
        return placed[algorithm]
    entry = table[collective][algorithm]
    return entry if collective in UNEVEN else entry.function


@lru_cache(maxsize=4096)
def choose(collective: str, p: int, nbytes: int, network: Network) -> str:
    """Name the algorithm that the formulas call fastest; the first in the table wins a tie."""
    _known("collective", collective, TABLE)
    times = {name: predicted_s(collective, name, p, nbytes, network) for name in TABLE[collective]}
    return min(times, key=lambda name: times[name])


def predicted_s(collective: str, algorithm: str, p: int, nbytes: int, network: Network) -> float:
    """Return an algorithm's time by its formula on `network`, with the slower level's links throughout.

    To that comes what messages cost the rank that handles most of them.
    """
    inside, between, gamma = network.inside, network.between, network.gamma_s_per_byte
    if algorithm == "hierarchical":
        if network.levels == 1:
            return float("inf")
        sizes = network.node_sizes
        ways = (inside.alpha_s, inside.shared_bytes_per_s), (between.alpha_s, between.shared_bytes_per_s)
        return two_level_time_s(len(sizes), min(sizes), nbytes, *ways, gamma)
    if algorithm == "in_switch" and not network.reduces:
        return float("inf")
    bandwidth = between.alone_bytes_per_s if algorithm in NEIGHBOURLY else between.shared_bytes_per_s
    if algorithm in NEIGHBOURLY and network.levels == 2:
        bandwidth = min(bandwidth, inside.shared_bytes_per_s)
    entry = TABLE[collective][algorithm]
    busiest = entry.messages(p, nbytes) / (1 if entry.central else p)
    return entry.time_s(p, nbytes, between.alpha_s, bandwidth, gamma) + busiest * network.overhead_s


def chosen(comm: Any, collective: str, algorithm: str, nbytes: int) -> Callable[..., Any]:
    """Return the function to call: the one that was asked for, or what `choose` says, noted as a decision."""
    if algorithm != "auto":
        return algorithm_named(collective, algorithm)
    cluster, group = getattr(comm, "cluster", None), getattr(comm, "group", range(comm.size))
    if getattr(comm, "profile", "") == "nccl" and cluster is not None and collective in nccl.COLLECTIVES:
        name = as_nccl(collective, nbytes, cluster, group)
    else:
        name = choose(collective, comm.size, nbytes, network_of(cluster, group))
    if hasattr(comm, "decisions"):
        comm.decisions[f"{collective} of {nbytes} bytes on {comm.size} ranks"] = name
    return algorithm_named(collective, name)


def as_nccl(collective: str, nbytes: int, cluster: Any, group: Sequence[int]) -> str:
    """Name the algorithm that NCCL's model takes for a size and the ranks `group` of a cluster."""
    if len(group) < 2:
        return "ring" if collective not in ("broadcast", "reduce") else "chain"
    family = nccl.choice(graph_of(cluster, group), collective, nbytes)[0]
    if family == "tree":
        return "channel_tree"
    if family == "nvls":
        return "in_switch"
    if family == "nvls_tree":
        return "in_switch_tree"
    shape = "chain" if collective in ("broadcast", "reduce") else "ring"
    straight = ring_orders(cluster, group) == (tuple(range(len(group))),)
    return shape if straight else f"channel_{shape}"


def _known(what: str, name: str, there: Collection[str], *also: str) -> None:
    if name in there:
        return
    near = get_close_matches(name, there, 1)
    hint = f"did you mean {near[0]!r}?" if near else "choose one of these"
    raise ConfigError(f"{what}: must be one of {', '.join([*there, *also])}, got {name!r}; {hint}")
