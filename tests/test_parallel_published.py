"""Emulated training against published measurements, and the shape of what a bucket's size does."""

import numpy as np
import pytest

from emu.cluster import load_cluster
from emu.parallel.training import Plan, train
from emu.program import replay, run_here

# Megatron-LM, 2020, weak scaling: width, heads, layers, parts, iteration in s, FLOP/s a GPU in T. Each system's
# efficiency is the one at which its single GPU takes the published time; it is in no other row.
MEGATRON = {
    ("dgx-2", 8, 0.623): [
        (1920, 15, 24, 1, 1.121, 71.9), (2304, 18, 30, 2, 1.093, 64.2), (3072, 24, 36, 4, 1.238, 58.5),
        (4096, 32, 42, 8, 1.407, 52.2),
    ],
    ("dgx-a100", 16, 0.531): [
        (1920, 15, 24, 1, 1.076, 149.8), (2304, 18, 30, 2, 1.026, 136.8), (3072, 24, 36, 4, 1.162, 124.7),
        (4096, 32, 42, 8, 1.343, 109.3),
    ],
}  # fmt: skip


# The same with 128 replicas on a DGX A100 cluster, parts: iteration in s, scaling in %. NCCL's overheads count here.
REPLICAS = {1: (1.153, 93.3), 2: (1.101, 85.5)}


def iteration_s(tmp_path, system, batch, efficiency, width, heads, layers, parts, replicas=1):
    file = tmp_path / f"gpt-{width}.toml"
    file.write_text(
        f'[model]\nfamily = "gpt"\nlayers = {layers}\nwidth = {width}\nheads = {heads}\n'
        "length = 1024\nvocabulary = 51200\n"
    )
    profile, algorithm = ("nccl", "hierarchical") if replicas > 1 else ("ideal", "ring")
    plan = Plan(model=str(file), batch=batch * replicas, steps=1, dtype="float16", tp=parts, recompute=True,
                algorithm=algorithm)  # fmt: skip
    ranks = parts * replicas
    cluster = load_cluster(system, {"gpu.flops_efficiency": str(efficiency)}, max(2, ranks))
    trace = run_here(lambda gpu: train(gpu, plan), cluster, ranks, dry=True, profile=profile)[1]
    return replay(trace, cluster, detail="spans", profile=profile).steps()[-1]["time_s"]


def flops(batch, width, layers):
    """Return the paper's FLOPs of an iteration, recomputation included."""
    return 96 * batch * 1024 * layers * width**2 * (1 + 1024 / (6 * width) + 51200 / (16 * layers * width))


@pytest.mark.parametrize("system", MEGATRON)
def test_tensor_parallel_weak_scaling_is_megatrons(system, tmp_path):
    name, batch, efficiency = system
    rates, published = [], []
    for width, heads, layers, parts, _, rate in MEGATRON[system]:
        time_s = iteration_s(tmp_path, name, batch, efficiency, width, heads, layers, parts)
        rates.append(flops(batch, width, layers) / time_s / parts / 1e12)
        published.append(rate)
    rates, published = np.array(rates), np.array(published)
    assert np.mean(np.abs(rates / published - 1)[1:]) < 0.05
    scaling, stated = 100 * rates / rates[0], 100 * published / published[0]
    assert np.abs(scaling - stated).max() < 4.5


@pytest.mark.parametrize("parts", REPLICAS)
def test_128_replicas_of_it_are_megatrons(parts, tmp_path):
    (_, batch, efficiency), (single, *_) = ("dgx-a100", 16, 0.531), MEGATRON["dgx-a100", 16, 0.531]
    row = next(row for row in MEGATRON["dgx-a100", 16, 0.531] if row[3] == parts)
    published, scaling = REPLICAS[parts]
    system = f"dgx-a100:{16 * parts}"
    time_s = iteration_s(tmp_path, system, batch, efficiency, *row[:4], replicas=128)
    assert time_s == pytest.approx(published, rel=0.06)
    rate = flops(batch, row[0], row[2]) / time_s / parts / 1e12
    assert 100 * rate / single[5] == pytest.approx(scaling, abs=6)


def sweep(sizes, overlap=True):
    """Return steps by bucket size: GPT-2 on two nodes with a slow network that takes time for every message."""
    cluster = load_cluster("dgx-a100:2", {"nic.bandwidth": "40 Gb/s", "transport.latency": "300 us"}, 2 * 8)
    found = []
    for size in sizes:
        plan = Plan(model="gpt2", batch=16, steps=1, dtype="float32", bucket_bytes=size << 10, overlap=overlap,
                    first_bucket_bytes=min(size, 1 << 10) << 10, algorithm="hierarchical")  # fmt: skip
        trace = run_here(lambda gpu, plan=plan: train(gpu, plan), cluster, 16, dry=True)[1]
        found.append(replay(trace, cluster, detail="spans").steps()[-1])
    return found


def test_the_best_bucket_is_neither_the_smallest_nor_the_largest():
    steps = sweep([1, 1 << 10, 25 << 10, 100 << 10, 1000 << 10])
    times = [step["time_s"] for step in steps]
    best = int(np.argmin(times))
    assert 0 < best < len(times) - 1
    assert times[0] > 1.02 * times[best] and times[-1] > 1.02 * times[best]


def test_overlap_lowers_exposed_communication():
    (overlapped,), (plain,) = sweep([25 << 10]), sweep([25 << 10], overlap=False)
    assert overlapped["exposed_communication_s"] < 0.6 * plain["exposed_communication_s"]
