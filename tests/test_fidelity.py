"""The benchmark against published measurements: its figures, and that its aims hold at the ends of each table."""

import pytest

from bench.fidelity import MIB, _cluster_of, _interior, _rank_correlation, all_reduce_s, collective_s, measure
from bench.published import E1_NVLINK, E1_PCIE, E4, E6, E10, rows_of
from bench.published_elsewhere import RUNS
from emu.engine.profiles import NCCL_LAUNCH_S


@pytest.mark.parametrize("table, rows", [(E1_NVLINK, 21), (E1_PCIE, 21), (E4, 12), (E6, 20), (E10, 20)])
def test_tables_are_read_by_column(table, rows):
    read = rows_of(table)
    assert len(read) == rows
    assert all(float(value) > 0 for row in read for value in row.values())


@pytest.mark.parametrize(
    "cluster, p, mib, measured_us, percent",
    [
        ("dgx-a100", 2, 64, 404.7, 10),
        ("dgx-a100", 3, 64, 500.3, 10),
        ("dgx-a100", 8, 1024, 8193.0, 10),
        ("hgx-h200", 8, 64, 338.9, 10),
        ("hgx-h200", 8, 16384, 62340.8, 10),
        ("a3-mega:2", 16, 256, 2360.9, 15),
        ("a3-mega:2", 16, 1024, 6759.0, 15),
    ],
)
def test_large_all_reduces_take_what_was_measured(cluster, p, mib, measured_us, percent):
    seconds, spread = all_reduce_s(cluster, p, mib * MIB)
    assert seconds * 1e6 == pytest.approx(measured_us, rel=percent / 100)
    assert spread < 1e-6


@pytest.mark.parametrize(
    "system, collective, percent",
    [
        ("2 x 8 V100, DGX-1, 4 EDR", "all_reduce", 1),
        ("2 x 8 H100, 16 x 200 Gb/s RoCE", "all_reduce", 2),
        ("2 x 8 A100, the same with NCCL 2.29", "all_reduce", 2),
        ("2 x 8 B200, GCP A4", "all_reduce", 11),
        ("2 x 8 H100, GCP A3 Mega", "all_gather", 3),
        ("8 H800", "broadcast", 2),
        ("2 x 8 B200, 8 NDR", "sendrecv", 13),
    ],
)
def test_the_largest_sizes_elsewhere_take_about_what_was_measured(system, collective, percent):
    each = next(run for run in RUNS if (run.system, run.collective) == (system, collective))
    nbytes, measured_us = [(n, us) for n, us in each.times_us if n <= 1024 * MIB][-1]
    seconds, _ = collective_s(_cluster_of(each), each.ranks, collective, nbytes, runs=0)
    assert seconds * 1e6 == pytest.approx(measured_us, rel=percent / 100)


def test_every_row_says_what_it_compares():
    result = measure("E6")
    assert {"table", "row", "measured", "emulated", "error_pct", "spread_pct"} <= set(result["rows"][0])
    assert {mean["table"] for mean in result["means"]} == {"E6", "E6 by GPUs"}
    assert all(result["checks"].values())


def test_the_launch_comes_from_the_table_that_the_output_names_and_no_aim_is_in():
    result = measure("none")
    beyond = sorted(row["beyond_us"] for row in result["calibration_rows"])
    assert result["calibration"].startswith("SMALL")
    assert result["launch_us"] == pytest.approx(beyond[len(beyond) // 2], abs=0.5)
    assert NCCL_LAUNCH_S * 1e6 == result["launch_us"]


def test_a_spread_is_measured_or_says_why_not():
    for row in measure("F10")["rows"]:
        assert row["spread_pct"] is not None or row["note"]


def test_a_sweep_s_best_bucket_is_between_its_ends():
    assert _interior([{"emulated": t} for t in (3, 2, 1, 2, 4, 1, 2, 3)])
    assert not _interior([{"emulated": t} for t in (1, 2, 3, 4)])


def test_rank_correlation_is_spearmans():
    assert _rank_correlation([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert _rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1)
    assert _rank_correlation([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1)
