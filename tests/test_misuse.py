"""A program that misuses what it is given ends in one line that names the place, what is expected, and the value."""

from pathlib import Path

import numpy as np
import pytest

import emu
from emu.errors import ConfigError


def right(gpu):
    return (gpu.rank + 1) % gpu.size


MISUSED = {
    "an object": (lambda g: g.comm.send([1.0], right(g)), "message buffer: an array is expected, got list"),
    "of objects": (
        lambda g: g.comm.send(np.array([None]), right(g)),
        "message buffer: an array of numbers is expected, got dtype object",
    ),
    "in an exchange": (
        lambda g: g.comm.sendrecv(3.0, right(g), np.ones(1), right(g)),
        "message buffer: an array is expected, got float",
    ),
    "with gaps": (lambda g: g.comm.send(np.ones(6)[::2], right(g)), "a contiguous array is expected, got shape (3,)"),
    "a tag": (lambda g: g.comm.send(np.ones(1), right(g), tag=-1), "send: a tag from 0 on is expected, got -1"),
    "a list to sum": (
        lambda g: emu.ring_all_reduce(g.comm, [1.0]),
        "ring_all_reduce x: an array is expected, got list",
    ),
    "a list, any way": (lambda g: emu.all_reduce(g.comm, [1.0]), "collective: an array is expected, got list"),
    "strings to sum": (
        lambda g: emu.ring_all_reduce(g.comm, np.array(["a"])),
        "ring_all_reduce x: an array of numbers is expected, got dtype <U1",
    ),
    "a GPU for a communicator": (
        lambda g: emu.ring_all_reduce(g, np.ones(4)),
        "ring_all_reduce: a communicator is expected first, such as gpu.comm, got Gpu",
    ),
    "a size": (lambda g: g.empty((4, -1)), "array of activations: sizes from 0 on are expected, got (4, -1)"),
    "no event": (lambda g: g.wait(None), "wait: an event is expected, which gpu.record() returns, got NoneType"),
    "a cost": (lambda g: emu.Cost(flops=-1.0), "cost: finite FLOPs and bytes from 0 on are expected, got -1.0, 0"),
    "no number for a cost": (lambda g: emu.Cost(bytes=float("inf")), "got 0.0, inf"),
}


@pytest.mark.parametrize("name", MISUSED)
def test_a_rank_that_misuses_its_gpu_gets_one_line(name):
    program, words = MISUSED[name]
    with pytest.raises(ConfigError) as error:
        emu.run(program, "nvlink3", ranks=2)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("main", "cluster", "given", "words"),
    [
        (3, "nvlink3", {}, "main: a function of one Gpu is expected, got int"),
        (right, "nvlink3", {"ranks": 0}, "ranks: at least 1 is expected, got 0"),
        (right, None, {"ranks": 2}, "cluster: a name, the path of a file or a Cluster is expected, got NoneType"),
    ],
)
def test_a_run_that_cannot_start_gets_one_line(main, cluster, given, words):
    with pytest.raises(ConfigError) as error:
        emu.run(main, cluster, **given)
    assert words in str(error.value)


def test_settings_beside_a_cluster_that_is_made_are_refused_not_ignored():
    with pytest.raises(ConfigError, match="settings change one that is named, got nic"):
        emu.run(right, emu.load_cluster("dgx-a100"), ranks=2, nic="10 Gb/s")


def test_a_trace_is_replayed_from_its_file(tmp_path):
    run = emu.run(lambda g: emu.ring_all_reduce(g.comm, np.ones(8)), "nvlink3", ranks=2)
    run.trace.save(tmp_path / "t.emu")
    assert emu.replay(tmp_path / "t.emu", "nvlink3").end_s == run.timeline.end_s
    with pytest.raises(ConfigError, match="a Trace or the path of its file is expected, got dict"):
        emu.replay({}, "nvlink3")


def test_a_cluster_file_may_be_a_path(tmp_path):
    path = Path(tmp_path, "c.toml")
    path.write_text("[cluster]\nnode = 'nvlink3'\n")
    assert emu.run(right, path, ranks=2).results == [1, 0]
