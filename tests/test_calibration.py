"""Calibration: the fit, logs of nccl-tests, the cluster file, and the command on two ranks."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from emu.calibration.describe import Model, cluster_file, log_cluster_file
from emu.calibration.fit import Fit, fit_link, fit_sizes
from emu.calibration.nccl_log import read_log
from emu.cluster import load_cluster
from emu.errors import ConfigError

pytestmark = pytest.mark.alone
pytest_plugins = ("hosts",)

HEAD = """# nThread 1 nGpus 4 minBytes 1024 maxBytes 134217728 step: 2(factor)
#  Rank  0 Group  0 Pid 1 on host device  0 [0x07] GPU
#  Rank  1 Group  0 Pid 1 on host device  1 [0x0f] GPU
#  Rank  2 Group  0 Pid 1 on host device  2 [0x47] GPU
#  Rank  3 Group  0 Pid 1 on host device  3 [0x4e] GPU
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


def row(nbytes, seconds):
    counts = f"{nbytes:12d} {nbytes // 4:12d}"
    return f"{counts}     float     sum      -1   {seconds * 1e6:.2f}   1.0   1.0      0   1.0  1.0  1.0  0\n"


def test_a_fit_finds_latency_and_bandwidth_and_leaves_out_what_was_disturbed():
    sizes = 4.0 ** np.arange(13)
    times = 3e-6 + sizes / 8e9
    times[[2, 7]] *= 50
    found = fit_link(list(zip(sizes, times, strict=True)))
    assert found.latency_s == pytest.approx(3e-6, rel=0.02)
    assert found.bandwidth_bytes_per_s == pytest.approx(8e9, rel=0.02)
    assert found.median_error_pct < 1


def test_sizes_whose_bytes_take_longer_are_told_as_they_were_measured():
    sizes = 4.0 ** np.arange(13)
    slower = np.where(sizes > 2e6, 2.0, 1.0)
    found = fit_sizes(list(zip(sizes, 3e-6 + slower * sizes / 8e9, strict=True)))
    assert found.bandwidth_bytes_per_s == pytest.approx(4e9, rel=0.02)
    assert [found.time_s(n) for n in sizes] == pytest.approx(list(3e-6 + slower * sizes / 8e9), rel=0.02)


@pytest.mark.parametrize("points", [[], [(1e6, 1.0)], [(1e3, 2.0), (1e6, 1.0)]])
def test_what_cannot_be_fitted_is_refused(points):
    with pytest.raises(ConfigError, match="link"):
        fit_link(points)


@pytest.mark.parametrize(
    ("collective", "steps", "part"), [("all_reduce", 6, 4), ("all_gather", 3, 4), ("sendrecv", 1, 1)]
)
def test_a_log_of_nccl_tests_gives_back_the_link_that_made_it(tmp_path, collective, steps, part):
    path = tmp_path / "log.txt"
    rows = [row(n, steps * (2e-6 + n / part / 50e9)) for n in (1 << 10, 1 << 20, 1 << 27)]
    path.write_text(HEAD.replace("nThread", f"{collective}_perf nThread") + "".join(rows))
    log = read_log(str(path))
    assert (log.collective, log.gpus) == (collective, 4)
    output = tmp_path / "made.toml"
    output.write_text(log_cluster_file(log, "a test"))
    link = load_cluster(str(output), {}, 4).closed_form(0, 3)
    assert link.alpha_s == pytest.approx(2e-6, rel=0.02)
    assert link.bandwidth_bytes_per_s == pytest.approx(50e9, rel=0.02)


@pytest.mark.parametrize(("text", "says"), [("nothing\n", "table"), (HEAD + row(1024, 1e-5), "--collective")])
def test_a_log_that_does_not_tell_enough_is_refused(tmp_path, text, says):
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_log(str(path))


def test_a_cluster_file_says_what_was_measured(tmp_path):
    inside = Fit(1e-6, 10e9, 0.0, 0.0, ((1_000_000, 1.0), (4_000_000, 2.0)))
    between, memory = Fit(20e-6, 1e9, 0.0, 0.0), Fit(1e-6, 12e9, 0.0, 0.0, ((3_000_000, 1.5),))
    path = tmp_path / "here.toml"
    path.write_text(cluster_file(Model(2, 2, inside, between, 15e9, memory, 1e11), "a test"))
    made = load_cluster(str(path), {}, 4)
    assert made.size == 4
    near, far = made.closed_form(0, 1), made.closed_form(0, 2)
    assert (near.alpha_s, near.bandwidth_bytes_per_s) == (pytest.approx(1e-6), pytest.approx(10e9))
    assert far.bandwidth_bytes_per_s == pytest.approx(1e9)
    assert near.time_s(4_000_000) == pytest.approx(1e-6 + 2 * 4_000_000 / 10e9)
    assert far.time_s(4_000_000) == pytest.approx(20e-6 + 4_000_000 / 1e9)
    assert (made.gpu(0).memory_by_size, made.gpu(0).launch_overhead_s) == (((3_000_000, 1.5),), 1e-6)
    assert any(made.links[i].bandwidth_bytes_per_s == pytest.approx(15e9) for i in made.route(0, 1).links)


def test_the_command_measures_two_ranks_and_writes_a_cluster(run_job, tmp_path):
    output = tmp_path / "here.toml"
    job = run_job(["python", "-m", "emu", "calibrate", str(output), "--json"], ranks=2, limit_s=115)
    assert job.returncode == 0, job.output
    found = json.loads(job.stdout[job.stdout.index("{") :])
    assert found["inside"]["bandwidth_bytes_per_s"] > 1e7
    assert len(found["all_reduce"]) == 4
    assert load_cluster(str(output), {}, 2).size == 2


def test_between_hosts_a_collective_takes_what_its_calibrated_cluster_says(hosts, tmp_path):
    made, output = hosts(2), tmp_path / "there.toml"
    if shutil.which("tc") is None:
        pytest.skip("shaping needs the program tc (package iproute2)")
    for name in made.names:
        shape = f"tc -n {name} qdisc add dev eth0 root tbf rate 2gbit burst 128kb latency 100ms"
        subprocess.run(shape.split(), check=True)
    job = made.run([sys.executable, "-m", "emu", "calibrate", str(output), "--json"], ranks=2, slots=1, limit_s=100)
    assert job.returncode == 0, job.output
    found = json.loads(job.stdout[job.stdout.index("{") :])
    assert found["inside"] is None
    assert found["between"]["bandwidth_bytes_per_s"] <= 2e9 / 8 * 1448 / 1514  # the kernel's TCP, not memory
    assert [row["bytes"] for row in found["all_reduce"]] == [1 << 18, 1 << 20, 1 << 22, 1 << 24]
    # The shaper drops what both directions send at once, now more, now less; another link would be off by far more.
    assert min(abs(row["error_pct"]) for row in found["all_reduce"][1:]) <= 60, found["all_reduce"]
