"""Slow GPUs, jitter, degraded and flapping links, pauses, deaths: how they are written and what they become."""

import math

import pytest

from emu.cluster import Faults, LinkChange, LinkFlap, load_cluster
from emu.cluster.faults import Death, Degradation, Flap, Jitter, Pause, Slow
from emu.errors import ConfigError

WRITTEN = [
    ("slow", "3:0.5", "slow", (Slow(3, 3, 0.5),)),
    ("slow", "0-3:0.9; 7:2", "slow", (Slow(0, 3, 0.9), Slow(7, 7, 2.0))),
    ("slow", {"3": 0.5, "4-5": "80 %"}, "slow", (Slow(3, 3, 0.5), Slow(4, 5, 0.8))),
    ("slow", [{"rank": 3, "factor": 0.5}], "slow", (Slow(3, 3, 0.5),)),
    ("degrade", "node0.nic0:0.25", "degradations", (Degradation("node0.nic0", 0.25),)),
    ("degrade", "node0.nic0:0.25@1 ms..5 ms", "degradations", (Degradation("node0.nic0", 0.25, 1e-3, 5e-3),)),
    ("degrade", "node0.nic0:0.25@1 ms", "degradations", (Degradation("node0.nic0", 0.25, 1e-3, math.inf),)),
    (
        "degrade",
        {"link": "node0.nic0", "factor": 0.25, "start": "0 s", "end": "5 ms"},
        "degradations",
        (Degradation("node0.nic0", 0.25, 0.0, 5e-3),),
    ),
    ("flap", "node0.nic0:100 ms/10 ms", "flaps", (Flap("node0.nic0", 0.1, 0.01),)),
    ("flap", "node0.nic0:100 ms/10 ms@1 s", "flaps", (Flap("node0.nic0", 0.1, 0.01, 1.0),)),
    ("flap", {"link": "a", "period": "1 s", "down": "1 ms"}, "flaps", (Flap("a", 1.0, 1e-3),)),
    ("pause", "3@10 ms+5 ms", "pauses", (Pause(3, 0.01, 5e-3),)),
    ("pause", [{"rank": 3, "at": "10 ms", "for": "5 ms"}], "pauses", (Pause(3, 0.01, 5e-3),)),
    ("death", "3@10 ms, 4@0 s", "deaths", (Death(3, 0.01), Death(4, 0.0))),
    ("death", {"rank": 3, "at": "10 ms"}, "deaths", (Death(3, 0.01),)),
    ("jitter", 0.05, "jitter", Jitter(0.05)),
    ("jitter", "5 %", "jitter", Jitter(0.05)),
    ("jitter", "compute=0.05, latency=0.1, seed=7", "jitter", Jitter(0.05, 0.1, 7)),
    ("jitter", {"latency": 0.1, "seed": 7}, "jitter", Jitter(0.0, 0.1, 7)),
]


@pytest.mark.parametrize(("kind", "written", "field", "value"), WRITTEN)
def test_each_fault_is_read_from_a_string_or_a_table(kind, written, field, value):
    assert getattr(Faults.from_table({kind: written}, "faults"), field) == value


@pytest.mark.parametrize(
    ("kind", "written", "words"),
    [
        ("slow", "3", "must be such as 3:0.5"),
        ("slow", "3:0", "a rank that stops is a death"),
        ("slow", "3:-1", "must be above zero"),
        ("slow", "3:fast", "must be a number"),
        ("slow", "x:0.5", "must be a number"),
        ("slow", "5-3:0.5", "must rise"),
        ("slow", 3, "must be a string, a table or a list"),
        ("slow", [{"rank": 3}], "needs the key 'factor'"),
        ("degrade", "node0.nic0", "must be such as node0.nic0:0.25"),
        ("degrade", "node0.nic0:1.5", "at most 1"),
        ("degrade", "node0.nic0:0", "above 0"),
        ("degrade", "node0.nic0:0.5@5 ms..1 ms", "must end after it starts"),
        ("degrade", "node0.nic0:0.5@5", "has no unit"),
        ("degrade", [{"link": "a", "factr": 1}], "unknown key 'factr'; did you mean 'factor'?"),
        ("flap", "node0.nic0:10 ms", "must be such as node0.nic0:100 ms/10 ms"),
        ("flap", "node0.nic0:10 ms/10 ms", "up for a part of each period"),
        ("pause", "3@10 ms", "must be such as 3@10 ms"),
        ("pause", "3@10 ms+0 ms", "must be above zero"),
        ("death", "3", "must be such as 3@10 ms"),
        ("death", "-3@10 ms", "at least 0"),
        ("jitter", "1.5", "below 1"),
        ("jitter", "noise=0.1", "unknown key 'noise'"),
        ("slwo", "3:0.5", "unknown fault 'slwo'; did you mean 'slow'?"),
    ],
)
def test_a_fault_that_cannot_be_read_is_an_error(kind, written, words):
    with pytest.raises(ConfigError) as error:
        Faults.from_table({kind: written}, "faults")
    assert words in str(error.value)


def test_a_slow_gpu_has_its_speed_and_no_other_changes():
    cluster = load_cluster("dgx-a100", {"slow": "3:0.5, 3-4:0.5"})
    assert [cluster.speed(rank) for rank in range(8)] == [1, 1, 1, 0.25, 0.5, 1, 1, 1]


def rates(cluster):
    return {link.name: link.bandwidth_bytes_per_s for link in cluster.links}


def test_a_degraded_nic_has_a_quarter_of_its_rate_in_both_directions():
    whole, part = rates(load_cluster("dgx-a100:2")), rates(load_cluster("dgx-a100:2", {"degrade": "node0.nic0:0.25"}))
    changed = {name for name in whole if whole[name] != part[name]}
    assert changed == {"node0.nic0.up", "node0.nic0.down"}
    assert part["node0.nic0.up"] == whole["node0.nic0.up"] / 4


def test_a_glob_names_many_links():
    part = rates(load_cluster("dgx-a100:2", {"degrade": "*.nic0.up:0.5"}))
    whole = rates(load_cluster("dgx-a100:2"))
    assert {name for name in whole if whole[name] != part[name]} == {"node0.nic0.up", "node1.nic0.up"}


def test_a_fault_in_time_becomes_changes_in_order():
    cluster = load_cluster("tcp-10g:2", {"degrade": "node1.nic0.up:0.5@1 ms..5 ms, node0.nic0.up:0.25@2 ms"})
    numbers = {link.name: i for i, link in enumerate(cluster.links)}
    assert cluster.link_changes == (
        LinkChange(1e-3, numbers["node1.nic0.up"], 0.5),
        LinkChange(2e-3, numbers["node0.nic0.up"], 0.25),
        LinkChange(5e-3, numbers["node1.nic0.up"], 1.0),
    )
    assert rates(cluster) == rates(load_cluster("tcp-10g:2"))


def test_a_flapping_link_is_found_by_name():
    cluster = load_cluster("tcp-10g:2", {"flap": "node1.nic0.down:100 ms/10 ms@1 s"})
    number = [link.name for link in cluster.links].index("node1.nic0.down")
    assert cluster.link_flaps == (LinkFlap(number, 0.1, 0.01, 1.0),)


@pytest.mark.parametrize("kind", ["degrade", "flap"])
def test_an_unknown_link_names_the_nearest(kind):
    written = {"degrade": "node0.nic9:0.5", "flap": "node0.nic9:100 ms/10 ms"}[kind]
    with pytest.raises(ConfigError, match="unknown link 'node0.nic9'; did you mean .*'node0.nic0'"):
        load_cluster("tcp-10g:2", {kind: written})


@pytest.mark.parametrize(("kind", "written"), [("slow", "0-8:0.5"), ("pause", "8@1 ms+1 ms"), ("death", "8@1 ms")])
def test_a_rank_beyond_the_cluster_is_an_error(kind, written):
    with pytest.raises(ConfigError, match=f"{kind}: the cluster has ranks 0 to 7, got 8"):
        load_cluster("dgx-a100", {kind: written})


def test_settings_replace_the_files_own_faults_of_that_kind(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text('[cluster]\nbase = "dgx-a100"\n[cluster.faults]\nslow = { "1" = 0.5 }\njitter = "0.1"\n')
    cluster = load_cluster(str(path), {"slow": "2:0.5"})
    assert (cluster.speed(1), cluster.speed(2)) == (1.0, 0.5)
    assert cluster.faults.jitter == Jitter(0.1)
