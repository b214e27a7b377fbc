"""The closed forms of the algorithms, against the engine, on idle full-duplex links without overheads."""

import pytest

from emu.cluster import link_cluster
from emu.collectives import TABLE
from emu.comm import run_dry
from emu.engine import resolve
from emu.verify.contract import CONTRACTS

ALPHA_S, BANDWIDTH = 5e-6, 12e9
CHUNK = 107520  # bytes; a multiple of every number of ranks and segments below
EXACT_AT_ANY_P = [
    ("all_reduce", a) for a in ("naive", "parameter_server", "direct", "ring", "segmented_ring", "in_switch")
] + [("broadcast", "linear"), ("broadcast", "chain"), ("reduce", "linear"), ("reduce", "scatter_gather"),
     ("reduce", "chain"), ("all_gather", "ring"), ("all_gather", "linear"), ("all_gather", "bruck"),
     ("reduce_scatter", "ring"), ("reduce_scatter", "pairwise"), ("reduce_scatter", "bruck"),
     ("scatter", "linear"), ("gather", "linear"), ("all_to_all", "linear"), ("all_to_all", "pairwise"),
     ("all_to_all", "bruck"), ("barrier", "dissemination"), ("barrier", "linear")]  # fmt: skip
ALGORITHMS = [(c, a) for c, table in TABLE.items() for a in table]
EXACT = [(c, a) for c, a in ALGORITHMS if not TABLE[c][a].estimate]
FOLDED = [("all_reduce", "recursive_doubling"), ("all_reduce", "rabenseifner"), ("all_reduce", "swing"),
          ("all_gather", "recursive_doubling"), ("reduce_scatter", "recursive_halving")]  # fmt: skip
BOUNDED = [(c, a) for c, a in EXACT if (c, a) not in EXACT_AT_ANY_P + FOLDED]


def emulated_s(collective, algorithm, p, n, **options):
    """Time one call on an idle cluster; n elements of 4 bytes a chunk."""
    contract = CONTRACTS[collective]

    def main(comm):
        x = comm.empty(contract.input_size(p, n), "float32")
        out = comm.empty(contract.output_size(p, n), "float32")
        contract.call(TABLE[collective][algorithm].function, comm, x, out, 0, "sum", options)

    cluster = link_cluster("latency=5 us, bandwidth=12 GB/s", p)
    return float(resolve(run_dry(main, p)[1], cluster, profile="ideal", detail="totals").rank_end_s.max())


def both_s(collective, algorithm, p):
    """Return the emulated time and the formula's, for chunks of CHUNK bytes."""
    contract = CONTRACTS[collective]
    n = CHUNK // 4 * (p if contract.total_size(p, 1) == 1 and p > 1 else 1)
    if contract.total_size(p, n) > n:
        n = CHUNK // 4
    nbytes = contract.total_size(p, n) * 4
    return emulated_s(collective, algorithm, p, n), TABLE[collective][algorithm].time_s(
        p, nbytes, ALPHA_S, BANDWIDTH, 0.0
    )


@pytest.mark.parametrize("collective, algorithm", EXACT)
@pytest.mark.parametrize("p", (1, 2, 4, 8))
def test_closed_forms_are_exact_for_powers_of_two(collective, algorithm, p):
    time_s, formula_s = both_s(collective, algorithm, p)
    assert time_s == pytest.approx(formula_s, rel=1e-9)


@pytest.mark.parametrize("collective, algorithm", EXACT_AT_ANY_P)
@pytest.mark.parametrize("p", (3, 5, 7))
def test_closed_forms_are_exact_at_any_p(collective, algorithm, p):
    time_s, formula_s = both_s(collective, algorithm, p)
    assert time_s == pytest.approx(formula_s, rel=1e-9)


@pytest.mark.parametrize("collective, algorithm", BOUNDED)
@pytest.mark.parametrize("p", (3, 5, 6, 7, 13))
def test_closed_forms_are_bounds_at_other_p(collective, algorithm, p):
    time_s, formula_s = both_s(collective, algorithm, p)
    assert 0.4 * formula_s < time_s <= formula_s * (1 + 1e-9)


@pytest.mark.parametrize("collective, algorithm", FOLDED)
@pytest.mark.parametrize("p", (3, 5, 6, 7, 11, 13))
def test_closed_forms_with_a_fold_are_near(collective, algorithm, p):
    """Messages of ranks that need no fold come early and share a port with those of the fold."""
    time_s, formula_s = both_s(collective, algorithm, p)
    assert 0.7 * formula_s < time_s < 1.35 * formula_s


@pytest.mark.parametrize("p", (2, 3, 4, 7, 8))
@pytest.mark.parametrize("n", (1, 1000, 10007))
def test_a_ring_is_timed_by_its_largest_chunk(p, n):
    time_s = emulated_s("all_reduce", "ring", p, n)
    assert time_s == pytest.approx(2 * (p - 1) * (ALPHA_S + 4 * -(-n // p) / BANDWIDTH), rel=1e-9)


@pytest.mark.parametrize("p, servers", [(4, 1), (4, 2), (5, 5), (8, 4)])
def test_servers_share_the_work(p, servers):
    n = 27720
    time_s = emulated_s("all_reduce", "parameter_server", p, n, servers=servers)
    assert time_s == pytest.approx(2 * (ALPHA_S + (p - 1) * 4 * n / servers / BANDWIDTH), rel=1e-9)


@pytest.mark.parametrize("p", (4, 8, 13, 16))
def test_a_double_tree_flows_in_both_trees(p):
    """With many segments it takes 2n/B and little more: twice as fast as one tree's pipeline could be."""
    n = 1 << 24
    time_s = emulated_s("all_reduce", "double_tree", p, n)
    assert time_s == pytest.approx(2 * 4 * n / BANDWIDTH, rel=0.15)


@pytest.mark.parametrize("p", (3, 8))
def test_a_segmented_ring_hides_latency(p):
    n = 1 << 22
    plain_s, segmented_s = emulated_s("all_reduce", "ring", p, n), emulated_s("all_reduce", "segmented_ring", p, n)
    assert plain_s - segmented_s == pytest.approx((2 * p - 3) * ALPHA_S, rel=0.01)
