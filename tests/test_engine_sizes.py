"""Sizes whose bytes take longer: of messages on the links, of kernels in memory."""

import numpy as np
import pytest

import emu
from emu.errors import ConfigError

CLUSTER = """
[gpus.here]
fp32 = "1000 TFLOPS"
memory = "64 GB"
memory_bandwidth = "100 GB/s"
pcie = "here"
memory_by_size = [["3 MB", 1], ["5 MB", 2.2]]
[links.here]
medium = "pcie"
bandwidth = "10 GB/s"
lanes = 16
latency = "1 us"
[transports.pcie]
by_size = [["1 MB", 1], ["3 MB", 2], ["6 MB", 3]]
[nodes.here]
base = "pcie4"
gpu = "here"
gpus = 3
pcie = { link = "here", ideal = true }
[cluster]
node = "here"
"""


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(CLUSTER)
    return emu.load_cluster(str(path))


def message(nbytes, sources=(0,), to=1):
    def main(gpu):
        x = np.zeros(nbytes, np.uint8)
        if gpu.rank in sources:
            gpu.comm.send(x, to)
        elif gpu.rank == to:
            gpu.comm.waitall([gpu.comm.irecv(x.copy(), source) for source in sources])

    return main


SIZES = [(500_000, 500_000), (1_000_000, 1_000_000), (2_000_000, 3_500_000), (9_000_000, 27_000_000)]


@pytest.mark.parametrize(("nbytes", "as_long_as"), SIZES)
def test_a_message_takes_what_its_size_says(cluster, nbytes, as_long_as):
    end_s = emu.run(message(nbytes), cluster, ranks=3).timeline.end_s
    assert end_s == pytest.approx(cluster.route(0, 1).latency_s + as_long_as / 10e9, rel=1e-9)
    assert end_s == pytest.approx(cluster.closed_form(0, 1).time_s(nbytes), rel=1e-9)


def test_two_long_messages_share_a_port_as_longer_ones_would(cluster):
    end_s = emu.run(message(3_000_000, (0, 2)), cluster, ranks=3).timeline.end_s
    assert end_s == pytest.approx(cluster.route(0, 1).latency_s + 2 * 6_000_000 / 10e9, rel=1e-9)


@pytest.mark.parametrize(("touched", "as_long_as"), [(3_000_000, 3_000_000), (4_000_000, 7_000_000)])
def test_a_kernel_takes_what_its_size_says(cluster, touched, as_long_as):
    def main(gpu):
        gpu.launch(lambda: None, cost=emu.Cost(bytes=touched))

    assert emu.run(main, cluster, ranks=1).timeline.end_s == pytest.approx(as_long_as / 100e9, rel=1e-9)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("3", "must be a list such as"),
        ('[["1 MB", 2], ["1 MB", 3]]', "sizes must grow"),
        ('[["1 MB", 4], ["2 MB", 1]]', "what they take must not shrink"),
        ('[["1 MB", 0]]', "must be above zero"),
    ],
)
def test_sizes_that_cannot_be_are_refused(tmp_path, value, words):
    path = tmp_path / "c.toml"
    path.write_text(f"[transports.pcie]\nby_size = {value}\n[cluster]\nnode = 'pcie4'\n")
    with pytest.raises(ConfigError, match=words):
        emu.load_cluster(str(path))
