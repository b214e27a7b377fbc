"""The automatic choice: by size, ranks and cluster, the same on all ranks, and noted."""

import numpy as np
import pytest

import emu
from emu.cluster import load_cluster
from emu.collectives import TABLE, all_reduce, find
from emu.collectives.choose import choose, predicted_s
from emu.collectives.network import network_of
from emu.comm import run_local
from emu.errors import ConfigError

UNKNOWN = network_of(None, range(8))


@pytest.mark.parametrize("collective", TABLE)
@pytest.mark.parametrize("p", (1, 2, 3, 8, 13))
@pytest.mark.parametrize("nbytes", (0, 8, 10**6, 10**9))
def test_the_choice_is_what_the_formulas_call_fastest(collective, p, nbytes):
    network = network_of(None, range(p))
    chosen = choose(collective, p, nbytes, network)
    times = {name: predicted_s(collective, name, p, nbytes, network) for name in TABLE[collective]}
    assert times[chosen] == min(times.values())


def test_small_messages_take_few_steps_and_large_ones_few_bytes():
    small, large = choose("all_reduce", 64, 8, UNKNOWN), choose("all_reduce", 64, 10**9, UNKNOWN)
    few_bytes = TABLE["all_reduce"][large].bytes_sent(64, 6400)
    assert small == "recursive_doubling" and few_bytes == 2 * 63 * 6400


def test_nodes_with_fast_links_reduce_inside_first():
    cluster = load_cluster("dgx-a100:4", {}, 32)
    network = network_of(cluster, range(32))
    assert network.node_sizes == (8, 8, 8, 8) and network.levels == 2
    assert network.inside.alone_bytes_per_s > 2 * network.between.alone_bytes_per_s
    assert predicted_s("all_reduce", "hierarchical", 32, 10**9, network) < predicted_s(
        "all_reduce", "ring", 32, 10**9, network
    )


def test_a_group_inside_one_node_has_one_level():
    network = network_of(load_cluster("dgx-a100:4", {}, 32), range(8, 16))
    assert network.levels == 1 and network.node_sizes == (8,)


def test_all_ranks_choose_alike_and_the_choice_is_noted():
    def main(gpu):
        x = gpu.full(1000, gpu.rank)
        all_reduce(gpu.comm, x)
        return float(x[0])

    run = emu.run(main, cluster="dgx-a100:2", ranks=16)
    assert run.results == [120.0] * 16
    assert list(run.trace.header["decisions"]) == ["all_reduce of 4000 bytes on 16 ranks"]


def test_hierarchical_takes_the_nodes_of_the_cluster():
    def main(gpu):
        x = gpu.full(10, gpu.rank)
        find("all_reduce", "hierarchical")(gpu.comm, x)
        return float(x[3])

    assert emu.run(main, cluster="dgx-a100:2", ranks=12).results == [66.0] * 12


def test_a_switch_that_reduces_beats_the_link():
    def main(gpu):
        x = gpu.full(1 << 20, gpu.rank, purpose="gradients")
        find("all_reduce", "in_switch")(gpu.comm, x)
        return float(x[-1])

    run = emu.run(main, cluster="dgx-h100", ranks=8)
    assert run.results == [28.0] * 8
    network = network_of(load_cluster("dgx-h100", {}, 8), range(8))
    assert network.reduces and choose("all_reduce", 8, 1 << 28, network) == "in_switch"
    time_s = TABLE["all_reduce"]["in_switch"].time_s(8, 1e9, 0, network.inside.alone_bytes_per_s)
    assert 1e9 / time_s * 7 / 4 > 1.5 * network.inside.alone_bytes_per_s


@pytest.mark.parametrize("cluster, ranks", [("dgx-a100", 8), ("dgx-h100:2", 16)])
def test_without_a_switch_that_reduces_between_all_ranks_there_is_an_error(cluster, ranks):
    with pytest.raises(ConfigError, match="a switch that reduces between all"):
        emu.run(lambda gpu: find("all_reduce", "in_switch")(gpu.comm, gpu.zeros(4)), cluster=cluster, ranks=ranks)


@pytest.mark.parametrize("collective", TABLE)
def test_auto_is_an_algorithm_of_every_collective(collective):
    assert callable(find(collective, "auto"))


def test_auto_sums():
    def main(comm):
        held = []
        for n in (0, 1, 100, 100_000):
            x = np.full(n, comm.rank + 1.0)
            all_reduce(comm, x)
            held.append(set(x.tolist()))
        return held

    assert run_local(main, 5)[0] == [[set(), {15.0}, {15.0}, {15.0}]] * 5
