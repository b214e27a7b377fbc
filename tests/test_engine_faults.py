import dataclasses
from dataclasses import dataclass

import pytest
from engine_kit import PathCluster, compute, elapsed, recv, ring_trace, send, star, trace, wait

from emu.cluster import LinkChange, LinkFlap
from emu.cluster.faults import Death, Faults, Jitter, Pause
from emu.engine.resolve import resolve
from emu.errors import DeadlockError


@dataclass(frozen=True)
class FaultyCluster(PathCluster):
    faults: Faults = Faults()
    link_changes: tuple[LinkChange, ...] = ()
    link_flaps: tuple[LinkFlap, ...] = ()


def faulty(p, bandwidth=100.0, latency=0.0, **faults):
    base = star(p, bandwidth, latency)
    return FaultyCluster(**{f.name: getattr(base, f.name) for f in dataclasses.fields(base)}, **faults)


def one_message(n=1000):
    return trace([send(1, n), wait(1)], [recv(0, n), wait(1)])


def test_a_degraded_link_slows_the_flow_that_is_on_it():
    cluster = faulty(2, link_changes=(LinkChange(4.0, 3, 0.5), LinkChange(8.0, 3, 1.0)))
    # 400 bytes until 4 s, 200 until 8 s, the other 400 in 4 s.
    assert resolve(one_message(), cluster).end_s == pytest.approx(12.0)


def test_a_link_may_be_degraded_from_the_start():
    assert resolve(one_message(), faulty(2, link_changes=(LinkChange(0.0, 0, 0.25),))).end_s == pytest.approx(40.0)


def test_a_change_of_a_link_reaches_flows_that_others_held_back():
    cluster = faulty(3, link_changes=(LinkChange(1.0, 1, 0.1),))
    t = trace([recv(2, 100), wait(1)], [elapsed(0.0), send(2, 50), wait(1)],
              [send(0, 100), recv(1, 50), wait(2)])
    raw = resolve(t, cluster, detail="flows")
    assert sorted(raw.flows["end_s"]) == pytest.approx([0.5, 1.0])


def test_a_flapping_link_carries_nothing_while_it_is_down_and_the_run_still_ends():
    cluster = faulty(2, link_flaps=(LinkFlap(0, 2.0, 1.0, 0.0),))
    assert resolve(one_message(300), cluster).end_s == pytest.approx(6.0)


def test_a_paused_rank_starts_nothing_new():
    cluster = faulty(1, faults=Faults(pauses=(Pause(0, 0.5, 2.0),)))
    raw = resolve(trace([compute(1e12), compute(1e12)]), cluster)
    assert raw.spans["start_s"].tolist() == [0.0, 2.5]


def test_a_rank_that_dies_leaves_the_others_waiting():
    cluster = faulty(2, faults=Faults(deaths=(Death(0, 1.0),)))
    t = trace([elapsed(2.0), send(1, 10), wait(1)], [recv(0, 10), wait(1)])
    with pytest.raises(DeadlockError, match="rank 1 in no span: receives from rank 0 .*died at 1 s"):
        resolve(t, cluster)
    alone = resolve(trace([elapsed(2.0), elapsed(1.0)], []), cluster)
    assert alone.rank_end_s[0] == 1.0


def test_jitter_is_seeded_and_keeps_the_mean():
    t = trace([compute(1e12)] * 2000)
    once, again, other = (
        resolve(t, faulty(1, faults=Faults(jitter=Jitter(compute=0.1, seed=seed)))).spans for seed in (1, 1, 2))
    lasts = once["end_s"] - once["start_s"]
    assert once.tobytes() == again.tobytes() != other.tobytes()
    assert lasts.mean() == pytest.approx(1.0, rel=0.01)
    assert lasts.std() == pytest.approx(0.1, rel=0.05)


def test_latency_jitter_slows_a_ring():
    noisy = faulty(8, 1e9, 1e-5, faults=Faults(jitter=Jitter(latency=0.3, seed=3)))
    assert resolve(ring_trace(8, 8000), noisy).end_s > resolve(ring_trace(8, 8000), faulty(8, 1e9, 1e-5)).end_s
