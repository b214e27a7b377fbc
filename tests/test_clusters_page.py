"""The page on clusters holds: its file loads, its keys are those that there are."""

import re
from pathlib import Path

import pytest

from emu.catalog.schema import KINDS, WORDS, Table
from emu.cluster import Faults, load_cluster
from emu.report.drawing import draw_cluster

PAGE = (Path(__file__).parent.parent / "docs" / "clusters.md").read_text(encoding="utf-8")


def test_the_file_on_the_page_is_a_cluster(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(re.search(r"```toml\n(.*?)```", PAGE, re.S)[1])
    cluster = load_cluster(str(path))
    assert (cluster.size, cluster.gpu(0).memory_bytes, cluster.speed(3)) == (24, 79e9, 0.5)
    assert cluster.fabric_summary() == "leaf-spine: 3 leaves of 4 down, 2 up, 2 spines, 2:1, ecmp"
    assert "rank 3 at 0.5 of its speed" in draw_cluster(cluster)


def documented(table):
    row = next(line for line in PAGE.splitlines() if line.startswith("|") and f"`[{table}]`" in line.split("|")[1])
    return set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`]*)`", row.split("|", 2)[2]))))


@pytest.mark.parametrize("kind", ["gpus", "cpus", "links", "nodes", "fabrics", "clusters"])
def test_every_key_is_on_the_page(kind):
    keys = {key for key, field in KINDS[kind].items() if not isinstance(field, Table) or kind == "clusters"}
    missing = keys - set(WORDS) - documented(f"{kind}.NAME") - {"fp64_matrix", "fp32_matrix", "name"}
    assert not missing


@pytest.mark.parametrize("part", ["pcie", "scaleup", "nic"])
def test_every_key_of_a_nodes_parts_is_on_the_page(part):
    assert set(KINDS["nodes"][part].keys) <= documented(f"nodes.NAME.{part}")


@pytest.mark.parametrize("kind", ["slow", "degrade", "flap", "pause", "death", "jitter"])
def test_the_faults_on_the_page_are_read(kind):
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{kind}`"))
    for text in re.findall(r'"([^"]*)"', row):
        assert Faults.from_table({kind: text}, kind) != Faults()
