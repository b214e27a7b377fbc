import pytest

from emu.catalog import builtin
from emu.cluster import load_cluster
from emu.report.drawing import draw_cluster

WORKSTATION = """\
workstation: 1 node, 4 GPUs

node0: workstation
  4 x GPU rtx3090-24: 24 GB at 936 GB/s, float32 35.58 TFLOPS, bfloat16 71.2 TFLOPS
  1 x CPU xeon-e5-2698v4: 20 cores, 40 PCIe lanes, memory 76.8 GB/s; 128 GB of host memory
  pcie3, GPUs read each other within a socket, else through host memory
  cpu0
   ├─ gpu0  x16 13.23 GB/s
   └─ gpu1 to gpu3  x8 6.617 GB/s each

a lone message of n bytes takes, overheads apart
  gpu0 ─▶ gpu1  pcie        500 ns + n / (5.514 GB/s)
  host ─▶ gpu0  pcie        250 ns + n / (13.23 GB/s)
"""


def test_a_cluster_is_drawn():
    assert draw_cluster(load_cluster("workstation")) == WORKSTATION


@pytest.mark.parametrize("name", builtin().names("clusters"))
def test_every_cluster_is_drawn_in_lines_that_fit(name):
    cluster = load_cluster(name)
    text = draw_cluster(cluster)
    assert all(len(line) <= 120 for line in text.splitlines())
    assert cluster.gpu(0).name in text
    assert str(cluster.closed_form(0, cluster.size - 1)) in text


def test_what_hangs_under_a_switch_is_drawn_under_it():
    lines = draw_cluster(load_cluster("dgx-2")).splitlines()
    root, switch, gpus = (
        next(i for i, line in enumerate(lines) if word in line) for word in ("root0", "sw0", "gpu0, gpu1")
    )
    assert (switch, gpus) == (root + 1, root + 2)
    assert lines[root].index("root0") < lines[switch].index("sw0") < lines[gpus].index("gpu0")


def test_the_cube_mesh_is_a_matrix():
    assert "    gpu0   -  2  1  1  2  .  .  .\n" in draw_cluster(load_cluster("dgx-1"))


def test_leaves_show_their_ports_and_far_routes_their_cost():
    text = draw_cluster(load_cluster("dgx-a100:24"))
    assert "leaf0 ─ node0.nic0, node1.nic0, … node19.nic0 (20 ports)" in text
    assert "… 8 more" in text
    assert "gpu0 ─▶ gpu8  infiniband" in text


def test_six_thousand_gpus_fit_a_page():
    assert len(draw_cluster(load_cluster("dgx-a100:760")).splitlines()) < 60


def test_faults_are_listed():
    settings = {"slow": "3:0.5", "degrade": "node0.nic0:0.25@1 ms..2 ms", "death": "1@5 s", "jitter": "0.1",
                "pause": "2@1 s+1 ms", "flap": "node0.nic1:1 s/1 ms"}  # fmt: skip
    text = draw_cluster(load_cluster("dgx-a100", settings))
    assert text.endswith(
        "faults\n"
        "  rank 3 at 0.5 of its speed\n"
        "  node0.nic0 at 0.25 of its bandwidth from 1 ms to 2 ms\n"
        "  node0.nic1 down 1 ms of every 1 s\n"
        "  rank 2 pauses at 1 s for 1 ms\n"
        "  rank 1 dies at 5 s\n"
        "  jitter: 0.1 of computation, 0 of latency, seed 0\n"
    )
