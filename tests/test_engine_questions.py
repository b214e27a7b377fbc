import numpy as np
import pytest
from engine_kit import Transport, elapsed, recv, rows, send, star, trace, wait
from test_engine import dense_trace

from emu.engine.questions import Question
from emu.engine.resolve import Engine, resolve
from emu.errors import DeadlockError
from emu.trace import Op


def run_in_pieces(t, cluster, size, profile="ideal"):
    """Feed each rank's log piece by piece; a rank asks for the time before it goes on."""
    engine = Engine(cluster, t.world_size, detail="flows", profile=profile)
    engine.declare(t.labels, t.templates, t.groups)
    left = {r: log for r, log in enumerate(t.ranks)}

    def go_on(r):
        piece, left[r] = left[r][:size], left[r][size:]
        engine.extend(r, piece)
        if not len(left[r]):
            del left[r]

    for r in list(left):
        go_on(r)
    while left:
        asking = [Question(r) for r in sorted(left)]
        which, answer = engine.advance(asking)
        assert answer.time_s >= engine.now_s
        go_on(asking[which].rank)
    return engine.finish()


@pytest.mark.parametrize("profile", ["ideal", "mpi"])
@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("seed", range(4))
def test_pieces_give_the_same_bits_as_the_whole(seed, size, profile):
    t = dense_trace(5, seed, messages=80)
    cluster = star(5, transports={"plain": Transport("plain", "rdma", 1e-7, 2e-7, 2000)})
    whole = resolve(t, cluster, profile, detail="flows")
    pieces = run_in_pieces(t, cluster, size, profile)
    assert pieces.flows.tobytes() == whole.flows.tobytes()
    assert pieces.spans.tobytes() == whole.spans.tobytes()
    assert pieces.rank_end_s.tobytes() == whole.rank_end_s.tobytes()


def test_pieces_that_synchronize_streams_give_the_same_bits():
    def part(me):
        other = 1 - me
        step = [elapsed(0.3 + me, stream=0), recv(other, 100, stream=1, tag=1), send(other, 100, stream=1, tag=1),
                wait(2, stream=1), (Op.RECORD, 0, 0, 0, 0, 0.0, 1), (Op.AWAIT, 1), elapsed(0.1, stream=2), (Op.SYNC,)]
        return rows(*step * 5)

    t = trace(part(0), part(1))
    whole = resolve(t, star(2, 90.0, 0.1), detail="flows")
    pieces = run_in_pieces(t, star(2, 90.0, 0.1), 8)
    assert pieces.spans.tobytes() == whole.spans.tobytes()
    assert pieces.flows.tobytes() == whole.flows.tobytes()


def engine_of(*logs, cluster=None):
    engine = Engine(cluster or star(len(logs), 10.0, 0.5), len(logs))
    for r, log in enumerate(logs):
        if log:
            engine.extend(r, rows(*log))
    return engine


def test_now_is_the_time_at_the_end_of_the_streams_rows():
    engine = engine_of([elapsed(2.0)], [elapsed(1.0)])
    asked = [Question(0), Question(1)]
    assert engine.advance(asked)[0] == 1
    which, answer = engine.advance(asked[:1])
    assert (which, answer.time_s) == (0, 2.0)


def test_waitany_names_the_first_request_to_complete():
    engine = engine_of([recv(1, 10), recv(2, 10)], [elapsed(3.0), send(0, 10)], [elapsed(1.0), send(0, 10)])
    _, answer = engine.advance([Question(0, requests=(2, 1), need=1)])
    assert (answer.done, answer.sources, answer.time_s) == ((1,), (2,), 2.5)


def test_test_tells_what_is_complete_now_and_waits_for_nothing():
    engine = engine_of([recv(1, 10), elapsed(1.0)], [elapsed(0.1), send(0, 10)])
    _, answer = engine.advance([Question(0, requests=(1,))])
    assert (answer.done, answer.time_s) == ((), 1.0)
    engine.extend(0, rows(elapsed(1.0)))
    _, answer = engine.advance([Question(0, requests=(1,))])
    assert (answer.done, answer.time_s) == ((0,), 2.0)


def test_a_deadline_answers_what_is_complete_by_then():
    engine = engine_of([recv(1, 10)], [elapsed(9.0), send(0, 10)])
    _, answer = engine.advance([Question(0, requests=(1,), need=1, deadline_s=4.0)])
    assert (answer.done, answer.time_s) == ((), 4.0)


def test_a_receive_from_any_source_names_it():
    engine = engine_of([recv(-1, 10, tag=-1)], [elapsed(1.0), send(0, 10, tag=7)], [elapsed(2.0), send(0, 10)])
    _, answer = engine.advance([Question(0, requests=(1,), need=1)])
    assert (answer.sources, answer.tags, answer.time_s) == ((1,), (7,), 2.5)


def test_a_probe_finds_the_first_envelope():
    engine = engine_of([elapsed(0.25)], [elapsed(1.0), send(0, 10, tag=7)])
    _, answer = engine.advance([Question(0, probe=(-1, -1, 0))])
    assert (answer.sources, answer.tags, answer.sizes) == ((1,), (7,), (10,))
    assert answer.time_s == 1.5


def test_an_earlier_answer_may_change_a_later_one():
    # Rank 1 is told the time at 1 and then sends; rank 0's receive from any source must see that.
    engine = engine_of([recv(-1, 10)], [elapsed(1.0)], [elapsed(5.0), send(0, 10)])
    asked = [Question(0, requests=(1,), need=1), Question(1)]
    which, answer = engine.advance(asked)
    assert (which, answer.time_s) == (1, 1.0)
    engine.extend(1, rows(send(0, 10)))
    _, answer = engine.advance(asked[:1])
    assert (answer.sources, answer.time_s) == ((1,), 2.5)


def test_a_question_that_nobody_can_answer_is_a_deadlock():
    engine = engine_of([recv(1, 10)], [])
    with pytest.raises(DeadlockError, match="rank 0"):
        engine.advance([Question(0, requests=(1,), need=1)])


def test_a_server_that_takes_who_comes_first_is_answered_in_order():
    p, rounds = 5, 6
    engine = Engine(star(p, 10.0, 0.1), p)
    gaps = np.random.default_rng(3).random((p, rounds)) * 5
    for r in range(1, p):
        engine.extend(r, rows(*[row for k in range(rounds) for row in (elapsed(gaps[r, k]), send(0, 10), wait(1))]))
    order, times = [], []
    for _ in range(rounds * (p - 1)):
        engine.extend(0, rows(recv(-1, 10)))
        _, answer = engine.advance([Question(0, requests=(1,), need=1)])
        engine.extend(0, rows(wait(1)))
        order.append(answer.sources[0])
        times.append(answer.time_s)
    assert sorted(times) == times
    assert np.bincount(order).tolist() == [0, *[rounds] * (p - 1)]
    engine.finish()
