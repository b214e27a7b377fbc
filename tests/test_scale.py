"""The benchmark at thousands of GPUs, at a few."""

from dataclasses import replace

import pytest

from bench.scale import out_of_memory, plan_of, ring_messages, timed_step
from emu.cluster import load_cluster
from emu.engine import Engine, resolve
from emu.program import replay

NODES, STAGES, MICRO_BATCHES = 4, 2, 2
REPLICAS = NODES // STAGES


@pytest.fixture(scope="module")
def small():
    """One step of a GPT of 1.3 billion parameters on 32 GPUs: its plan, cluster, row and trace."""
    cluster = load_cluster(f"dgx-a100-80:{NODES}")
    plan = plan_of("gpt3-1.3b", NODES, STAGES, MICRO_BATCHES, 16 << 20)
    row, trace = timed_step(plan, cluster)
    return plan, cluster, row, trace


def test_every_bucket_goes_round_its_ring_twice(small):
    _, cluster, row, trace = small
    buckets = [sum(1 for name in _gathers(trace, r)) for r in range(cluster.size)]
    assert row["ring_messages"] == sum(2 * (REPLICAS - 1) * n for n in buckets)
    assert row["buckets"] >= 10


def test_no_message_is_left_out(small):
    _, _, row, trace = small
    assert row["messages_folded"] == 0
    assert row["messages"] == resolve(trace, small[1], detail="totals", fold=False).counters["messages"]
    assert row["messages"] > row["ring_messages"] > 0


def test_the_step_takes_what_the_timeline_says(small):
    _, cluster, row, trace = small
    steps = replay(trace, cluster, detail="spans").steps()
    assert row["step_s"] == pytest.approx(steps[0]["time_s"], rel=1e-12)


@pytest.mark.parametrize("jitter", [0.0, 0.2])
def test_requests_within_calls_need_no_numbers_of_their_own(small, jitter):
    _, cluster, _, trace = small
    noise = {"compute_jitter": jitter, "network_jitter": jitter}
    asked = Engine(cluster, trace.world_size, any_source=True, **noise)
    asked.declare(trace.labels, trace.templates, trace.groups)
    asked.extend_all(trace.ranks)
    ends = resolve(trace, cluster, fold=False, **noise).rank_end_s
    assert (asked.finish().rank_end_s == ends).all()


def test_folded_steps_take_as_long_as_timed_ones(small):
    plan, cluster, row, _ = small
    plan = replace(plan, steps=9)
    folded, trace = timed_step(plan, cluster)
    timed = resolve(trace, cluster, detail="steps", fold=False)
    assert folded["messages_folded"] > 0
    assert folded["messages"] + folded["messages_folded"] == timed.counters["messages"]
    assert folded["step_s"] * plan.steps == pytest.approx(
        timed.spans["end_s"].max() - timed.spans["start_s"].min(), rel=1e-9)
    assert ring_messages(trace, REPLICAS) == 9 * row["ring_messages"]


def test_plain_data_parallel_of_gpt3_does_not_fit_a_gpu():
    cluster = load_cluster("dgx-a100-80:4")
    told = out_of_memory(plan_of("gpt3-175b", 4, 2, 1, 25 << 20), cluster)
    assert "at most 80 GB fit" in told
    assert "--strategy" in told


def _gathers(trace, rank):
    """Return the names of the all-gathers that a rank calls in its rings between the nodes."""
    from emu.trace import Op

    log = trace.ranks[rank]
    called = [trace.templates[a] for a in log["a"][log["op"] == Op.CALL]]
    return [t.name for t in called if t.name == "ring_all_gather" and t.group_size == REPLICAS]
