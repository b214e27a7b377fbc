import math

import numpy as np
import pytest
from engine_kit import (
    Link,
    PathCluster,
    Route,
    Transport,
    compute,
    elapsed,
    recv,
    ring_trace,
    rows,
    send,
    star,
    trace,
    wait,
)
from reference import finish_times

from emu.engine.resolve import resolve
from emu.errors import ConfigError, DeadlockError
from emu.trace import COLLECTIVE, Op, Template


@pytest.mark.parametrize("templated", [True, False])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8])
def test_a_ring_all_reduce_takes_its_closed_form(p, templated):
    n = p * 40_000
    raw = resolve(ring_trace(p, n, templated=templated), star(p, 12e9, 3e-6))
    assert raw.end_s == pytest.approx(2 * (p - 1) * (3e-6 + n / p / 12e9), rel=1e-9)
    assert raw.counters["messages"] == 2 * (p - 1) * p
    assert raw.routes[0] is None
    assert raw.link_bytes.sum() == 2 * 2 * (p - 1) * n


def test_a_lone_message_takes_overheads_latency_and_its_bytes():
    cluster = star(2, 1e9, 5e-6, transports={"plain": Transport("plain", "rdma", 2e-6, 3e-6, 1 << 20)})
    t = trace([send(1, 1000), wait(1)], [recv(0, 1000), wait(1)])
    raw = resolve(t, cluster, profile="mpi")
    assert raw.rank_end_s == pytest.approx([2e-6 + 1e-6, 2e-6 + 5e-6 + 1e-6 + 3e-6], rel=1e-12)


def test_a_cap_bounds_a_lone_flow():
    cluster = PathCluster((Link("l", 1e9),), {(0, 1): Route((0,), 1e-6, cap_bytes_per_s=1e8)}, 2)
    raw = resolve(trace([send(1, 1000), wait(1)], [recv(0, 1000), wait(1)]), cluster)
    assert raw.end_s == pytest.approx(1e-6 + 1e-5, rel=1e-12)


@pytest.mark.parametrize(("eager", "start"), [(1 << 20, 0.0), (0, 1.0)])
def test_a_rendezvous_waits_for_the_receiver_and_an_eager_message_does_not(eager, start):
    cluster = star(2, 1000.0, 0.5, transports={"plain": Transport(eager_bytes=eager)})
    t = trace([send(1, 250), wait(1)], [elapsed(1.0), recv(0, 250), wait(1)])
    raw = resolve(t, cluster, profile="mpi", detail="flows")
    assert raw.flows["start_s"][0] == start
    assert raw.rank_end_s == pytest.approx([start + 0.25, max(1.0, start + 0.75)])


@pytest.mark.parametrize("n", [0, 1])
def test_a_message_of_no_bytes_takes_the_latency(n):
    raw = resolve(trace([send(1, n), wait(1)], [recv(0, n), wait(1)]), star(2, 1e9, 1e-6))
    assert raw.end_s == pytest.approx(1e-6 + n / 1e9, rel=1e-12)


def test_a_message_to_oneself_takes_no_time():
    raw = resolve(trace([recv(0, 100), send(0, 100), wait(2)]), star(1))
    assert raw.end_s == 0.0


def test_three_flows_on_two_links_share_them_max_min():
    # Flow A takes both links, B the first (10), C the second (4): A and C get 2, B gets 8.
    links = (Link("x", 10.0), Link("y", 4.0))
    paths = {(0, 3): Route((0, 1), 0.0), (1, 4): Route((0,), 0.0), (2, 5): Route((1,), 0.0)}
    t = trace(*[[send(3 + r, 16), wait(1)] for r in range(3)], *[[recv(r, 16), wait(1)] for r in range(3)])
    raw = resolve(t, PathCluster(links, paths, 6), detail="flows")
    ends = {int(f["src"]): float(f["end_s"]) for f in raw.flows}
    assert ends == pytest.approx({0: 8.0, 1: 2.0, 2: 8.0})


def test_a_parking_lot_is_shared_max_min_as_flows_end():
    # One long flow over three unit links, one short flow on each: 1/2 each until the short ones end.
    links = tuple(Link(f"l{i}", 1.0) for i in range(3))
    paths = {(0, 4): Route((0, 1, 2), 0.0)} | {(1 + i, 5 + i): Route((i,), 0.0) for i in range(3)}
    sizes = [4, 1, 2, 3]
    t = trace(*[[send(4 + r, sizes[r]), wait(1)] for r in range(4)],
              *[[recv(r, sizes[r]), wait(1)] for r in range(4)])
    raw = resolve(t, PathCluster(links, paths, 8), detail="flows")
    ends = {int(f["src"]): float(f["end_s"]) for f in raw.flows}
    assert ends == pytest.approx({0: 7.0, 1: 2.0, 2: 4.0, 3: 6.0})


def test_staggered_fan_in_is_shared_by_who_is_there():
    t = trace([recv(1, 100), recv(2, 100), wait(2)], [send(0, 100), wait(1)], [elapsed(50.0), send(0, 100), wait(1)])
    raw = resolve(t, star(3, 1.0, 0.0), detail="flows")
    assert sorted(raw.flows["end_s"]) == pytest.approx([150.0, 200.0])


def random_case(seed):
    rng = np.random.default_rng(seed)
    links, flows = int(rng.integers(1, 9)), int(rng.integers(1, 15))
    rates = rng.choice([1.0, 2.0, 5.0, 10.0], links) * rng.choice([1.0, rng.uniform(0.5, 2)], links)
    paths = [tuple(rng.choice(links, size=int(rng.integers(1, min(links, 4) + 1)), replace=False).tolist())
             for _ in range(flows)]
    caps = np.where(rng.random(flows) < 0.3, rng.uniform(0.1, 5.0, flows), math.inf)
    starts = rng.choice([0.0, 1.0, 2.5], flows) + (rng.random(flows) if seed % 2 else 0.0)
    sizes = rng.integers(1, 100, flows)
    return rates, paths, caps, starts, sizes


def fan_case(seed):
    """Many flows into few links, most of them alone elsewhere, with a stranger now and then."""
    rng = np.random.default_rng(seed)
    flows, hubs = int(rng.integers(8, 40)), int(rng.integers(1, 4))
    rates = np.concatenate([rng.uniform(5, 20, hubs), rng.choice([50.0, 100.0, 1.0], flows, p=[0.6, 0.3, 0.1])])
    tail = tuple(range(int(rng.integers(1, hubs + 1))))
    paths = [(hubs + f, *tail) for f in range(flows)]
    for f in range(flows):
        if rng.random() < 0.04:
            paths[f] = (hubs + int(rng.integers(flows)), *tail[:1])
    caps = np.where(rng.random(flows) < 0.05, rng.uniform(0.1, 5.0, flows), math.inf)
    starts = rng.uniform(0, 30, flows) * rng.integers(0, 2, flows)
    return rates, paths, caps, starts, rng.integers(1, 100, flows)


@pytest.mark.parametrize("block", range(5))
def test_fans_end_when_the_slow_reference_says(block):
    for seed in range(20 * block, 20 * block + 20):
        check_against_reference(*fan_case(seed), seed)


@pytest.mark.parametrize("block", range(10))
def test_random_flows_end_when_the_slow_reference_says(block):
    for seed in range(40 * block, 40 * block + 40):
        check_against_reference(*random_case(seed), seed)


def check_against_reference(rates, paths, caps, starts, sizes, seed):
    k = len(paths)
    cluster = PathCluster(
        tuple(Link(f"l{i}", float(r)) for i, r in enumerate(rates)),
        {(f, k + f): Route(paths[f], 0.25, cap_bytes_per_s=float(caps[f])) for f in range(k)}, 2 * k)
    t = trace(*[[elapsed(starts[f]), send(k + f, sizes[f]), wait(1)] for f in range(k)],
              *[[recv(f, sizes[f]), wait(1)] for f in range(k)])
    raw = resolve(t, cluster, detail="flows")
    got = np.empty(k)
    got[raw.flows["src"]] = raw.flows["end_s"]
    want = finish_times(paths, caps, rates, starts, sizes)
    assert got == pytest.approx(want, rel=2e-12), f"seed {seed}"
    assert raw.link_bytes.sum() == sum(int(n) * len(path) for n, path in zip(sizes, paths, strict=True))


def dense_trace(p, seed, messages=40):
    """Each rank sends to others at random, receives what they send it, and computes in between."""
    rng = np.random.default_rng(seed)
    logs = [[] for _ in range(p)]
    for _ in range(messages):
        a, b = rng.choice(p, 2, replace=False)
        n = int(rng.integers(1, 5000))
        logs[a] += [elapsed(float(rng.random()) * 1e-6), send(int(b), n)]
        logs[b] += [recv(int(a), n)]
        if rng.random() < 0.3:
            logs[b] += [wait(1)]
    return trace(*logs)


def test_the_same_trace_gives_the_same_bits():
    first = resolve(dense_trace(6, 1), star(6), detail="flows")
    again = resolve(dense_trace(6, 1), star(6), detail="flows")
    assert first.flows.tobytes() == again.flows.tobytes()
    assert first.spans.tobytes() == again.spans.tobytes()


@pytest.mark.parametrize("seed", range(5))
def test_twice_the_rates_and_half_the_latencies_take_half_the_time(seed):
    slow = resolve(dense_trace(5, seed), star(5, 1e9, 2e-6))
    t = dense_trace(5, seed)
    for log in t.ranks:
        log["x"] /= 2
    fast = resolve(t, star(5, 2e9, 1e-6))
    assert fast.rank_end_s == pytest.approx(slow.rank_end_s / 2, rel=1e-9)


def test_computation_takes_the_roofline_and_spans_say_when():
    t = trace([compute(flops=2e12, n=100, label=1), compute(flops=1.0, n=int(3e12), label=2)])
    raw = resolve(t, star(1))
    assert raw.spans["start_s"].tolist() == [0.0, 2.0]
    assert raw.spans["end_s"].tolist() == [2.0, 5.0]
    assert raw.spans["label"].tolist() == [1, 2]


def test_streams_overlap_and_events_order_them():
    t = trace([compute(1e12), (Op.RECORD,), compute(4e12), (Op.AWAIT, 1, 0, 0, 0, 0.0, 1), compute(2e12, stream=1),
               (Op.SYNC,), compute(1e12, stream=2)])
    raw = resolve(t, star(1))
    by_row = {int(s["row"]): (float(s["start_s"]), float(s["end_s"])) for s in raw.spans}
    assert by_row == {0: (0, 1), 2: (1, 5), 3: (0, 1), 4: (1, 3), 6: (5, 6)}


def test_spans_nest_and_know_their_label_and_depth():
    t = trace([(Op.BEGIN, 0, 7), (Op.BEGIN, 1, -1), elapsed(1.0, label=2), (Op.END,), elapsed(2.0, label=2), (Op.END,)])
    raw = resolve(t, star(1))
    found = [
        (int(s["op"]), int(s["label"]), int(s["index"]), int(s["depth"]), float(s["start_s"]), float(s["end_s"]))
        for s in raw.spans]
    assert found == [(9, 0, 7, 0, 0, 3), (9, 1, -1, 1, 0, 1), (2, 2, -1, 2, 0, 1), (2, 2, -1, 1, 1, 3)]


def test_a_call_is_one_span_with_its_templates_name():
    raw = resolve(ring_trace(4, 4000, calls=2), star(4))
    assert len(raw.spans) == 8
    assert {raw.labels[i] for i in raw.spans["label"]} == {"ring_all_reduce"}
    assert raw.spans["end_s"][0] == raw.spans["start_s"][1]


def test_calls_on_two_streams_match_stream_by_stream():
    part = rows(recv(1, 100), send(1, 100), wait(2))
    part["flag"] = COLLECTIVE
    first = [(Op.CALL, 0, 0, 5, 100, 0.0, 1), (Op.CALL, 0, 0, 5, 100, 0.0, 2)]
    t = trace(first, first[::-1], templates=(Template("swap", 2, part),), groups=((0, 1),))
    raw = resolve(t, star(2, 100.0, 0.0))
    assert raw.end_s == pytest.approx(2.0)


def test_sends_of_two_streams_match_in_the_order_of_the_program():
    # Rank 0's second send, on a stream that is free at once, overtakes the first; the receives do not swap.
    sender = rows(elapsed(5.0, stream=1), send(1, 100, stream=1), send(1, 700, stream=2), wait(1, stream=1),
                  wait(1, stream=2))
    t = trace(sender, [recv(0, 100), wait(1), (Op.BEGIN, 0), recv(0, 700), wait(1), (Op.END,)])
    raw = resolve(t, star(2, 100.0, 0.0), detail="flows")
    # The long one has the link alone until 5 s, half of it until 7 s, and ends at 8 s.
    assert raw.flows["bytes"].tolist() == [700, 100]
    assert raw.flows["end_s"].tolist() == pytest.approx([8.0, 7.0])
    waits = raw.spans[(raw.spans["rank"] == 1) & (raw.spans["op"] == Op.WAIT)]
    assert waits["end_s"][0] > 5.0


def test_copies_are_flows_to_the_host_and_share_its_links():
    links = (Link("pcie0", 100.0), Link("pcie1", 100.0), Link("memory", 150.0))
    host = {(r, d): Route((r, 2), 0.5) for r in range(2) for d in ("h2d", "d2h")}
    cluster = PathCluster(links, {}, 2, host=host)
    raw = resolve(trace(*[[(Op.COPY, 0, 1, 0, 150)]] * 2), cluster, detail="flows")
    assert raw.rank_end_s == pytest.approx([2.5, 2.5])
    assert raw.counters["copies"] == 2


def test_any_source_receives_take_the_first_that_comes():
    t = trace([recv(-1, 10), wait(1), (Op.BEGIN, 0), recv(-1, 10), wait(1), (Op.END,)],
              [elapsed(5.0), send(0, 10), wait(1)], [elapsed(1.0), send(0, 10), wait(1)])
    raw = resolve(t, star(3, 10.0, 0.0), detail="flows")
    assert raw.flows["src"].tolist() == [2, 1]
    assert raw.rank_end_s[0] == pytest.approx(6.0)


def test_a_deadlock_names_ranks_operations_spans_and_peers():
    def part(me, other):
        return [(Op.BEGIN, me), send(other, 10, tag=me), wait(1), recv(other, 10, tag=other), wait(1), (Op.END,)]

    cluster = star(2)
    with pytest.raises(DeadlockError) as error:
        resolve(trace(part(0, 1), part(1, 0), labels=("left", "right")), cluster, profile="mpi")
    text = str(error.value)
    for word in ("a cycle of 2", "rank 0 in 'left'", "sends 10 bytes to rank 1 with tag 0", "rank 1 in 'right'"):
        assert word in text


def test_a_receive_that_nobody_sends_is_told():
    with pytest.raises(DeadlockError, match="rank 0 in no span: receives from rank 1 with tag 3"):
        resolve(trace([recv(1, 10, tag=3), wait(1)], []), star(2))


def test_an_unknown_profile_or_too_many_ranks_are_told():
    with pytest.raises(ConfigError, match="profile: one of ideal"):
        resolve(trace([]), star(1), profile="magic")
    with pytest.raises(ConfigError, match="3 GPUs are needed, got 2"):
        resolve(trace([], [], []), star(2))


def test_many_requests_and_messages_at_once_fit():
    p, k = 3, 700
    t = trace([send(1, 10, tag=i % 3) for i in range(k)] + [wait(k)],
              [recv(0, 10, tag=i % 3) for i in range(k)] + [wait(k)], [])
    raw = resolve(t, star(p, 1000.0, 0.0))
    assert raw.end_s == pytest.approx(k * 10 / 1000.0)


def test_the_spread_tells_how_much_a_billionth_matters():
    calm = resolve(ring_trace(4, 4000), star(4), spread=3)
    assert calm.spread["runs"] == 3
    assert 0 < calm.spread["relative"] < 1e-8
    assert resolve(ring_trace(4, 4000), star(4)).spread == {}


def test_flows_name_their_route():
    cluster = star(5)
    raw = resolve(dense_trace(5, 3), cluster, detail="flows")
    for flow in raw.flows:
        assert raw.routes[flow["route"]] == cluster.route(int(flow["src"]), int(flow["dst"])) or (
            raw.routes[flow["route"]].links == cluster.route(int(flow["src"]), int(flow["dst"])).links)
