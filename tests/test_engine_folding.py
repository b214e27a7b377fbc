import numpy as np
import pytest
from engine_kit import Transport, elapsed, recv, ring_rows, rows, send, star, trace, wait

from emu.engine.resolve import resolve
from emu.trace import STEP, Op, Template


def training(p, steps, uneven=0.0, extra=0.0):
    """Steps of computation with a ring on another stream; the last one may be longer."""
    group = tuple(range(p))
    logs = []
    for r in range(p):
        entries = [elapsed(0.1 * r)]
        for k in range(steps):
            more = extra if k == steps - 1 else 0.0
            entries += [
                (Op.BEGIN, 0, k, 0, 0, 0.0, 0, STEP), elapsed(1.0 + uneven * r + more), (Op.RECORD,),
                (Op.AWAIT, 1, 0, 0, 0, 0.0, 1), (Op.CALL, 0, 0, 0, 4000 * p, 0.0, 1), (Op.RECORD, 0, 0, 0, 0, 0.0, 1),
                elapsed(0.5), send((r + 1) % p, 500), recv((r - 1) % p, 500), wait(2), (Op.AWAIT, 1), (Op.END,)]
        logs.append(rows(*entries))
    return trace(*logs, labels=("step", "b", "c"), templates=(Template("ring", p, ring_rows(p, 4000 * p)),),
                 groups=(group,))


@pytest.mark.parametrize("profile", ["ideal", "mpi"])
@pytest.mark.parametrize(("uneven", "extra"), [(0.0, 0.0), (0.07, 0.0), (0.07, 2.0)])
def test_folded_steps_take_the_times_of_timed_ones(uneven, extra, profile):
    t = training(4, 30, uneven, extra)
    cluster = star(4, 1e4, 0.01, transports={"plain": Transport("plain", "rdma", 1e-3, 2e-3, 1000)})
    plain = resolve(t, cluster, profile, detail="flows", fold=False)
    folded = resolve(t, cluster, profile, detail="flows", fold=True)
    assert folded.counters["messages_folded"] > 0.5 * plain.counters["messages"]
    assert folded.counters["messages"] + folded.counters["messages_folded"] == plain.counters["messages"]
    for name in ("start_s", "end_s"):
        assert folded.spans[name] == pytest.approx(plain.spans[name], rel=1e-9, abs=1e-9)
    for name in ("rank", "stream", "op", "label", "index", "row", "depth"):
        assert np.array_equal(folded.spans[name], plain.spans[name])
    assert len(folded.flows) == len(plain.flows)
    assert np.sort(folded.flows["end_s"]) == pytest.approx(np.sort(plain.flows["end_s"]), rel=1e-9)
    assert folded.link_bytes == pytest.approx(plain.link_bytes)
    assert folded.rank_end_s == pytest.approx(plain.rank_end_s, rel=1e-12)


def test_steps_that_never_repeat_are_all_timed():
    t = training(3, 12)
    for log in t.ranks:
        log["x"][log["op"] == Op.ELAPSED] *= 1 + 0.01 * np.arange((log["op"] == Op.ELAPSED).sum())
    raw = resolve(t, star(3, 1e4, 0.01))
    assert raw.counters["messages_folded"] == 0


def test_jitter_is_never_folded():
    raw = resolve(training(3, 12), star(3, 1e4, 0.01), network_jitter=0.1)
    assert raw.counters["messages_folded"] == 0
