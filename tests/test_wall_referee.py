"""The referee alone, without processes: who may go on, at what time, and what moves the origin."""

import json
import pickle
import struct

import pytest

from emu.cluster import link_cluster
from emu.comm.wire import Call
from emu.engine.live import Live
from emu.errors import DeadlockError, MismatchError, RankError
from emu.trace import ROW_FORMAT, Op
from emu.wall import frames as F
from emu.wall.governor import MOST, WINDOW, Governor
from emu.wall.lateness import summarise
from emu.wall.referee import Referee
from emu.wall.run import read_pace

N = 1_000_000
ALPHA_S, RATE = 1e-5, 1e9
OWN_S = ALPHA_S + N / RATE


def row(op, a=0, b=0, n=0, x=0.0):
    return struct.pack(ROW_FORMAT, op, 0, 0, a, b, 0, n, x)


class Table:
    """Ranks whose words a test speaks; what they are told is kept."""

    def __init__(self, ranks, dilation=10.0):
        cluster = link_cluster(f"latency={ALPHA_S * 1e6} us, bandwidth={RATE / 1e9} GB/s", ranks)
        self.referee = Referee(Live(cluster, ranks, "ideal"), ranks, dilation)
        self.told = [bytearray() for _ in range(ranks)]
        self.lanes = [self.referee.join(r, 0, self.told[r].extend) for r in range(ranks)]
        for rank in range(ranks):
            self.say(rank, (F.ENTER, 100.0, b""))

    def say(self, rank, *words):
        for kind, stamp, payload in words:
            self.referee.hear(self.lanes[rank], F.Said(kind, 0, stamp, 0, payload))
        self.referee.settle()

    def send(self, rank, to, stamp=100.0):
        self.say(rank, (F.ROWS, stamp, row(Op.SEND, to, 0, N)), (F.ROWS, 0.0, row(Op.WAIT, 1, 1)), (F.ASK, 0.0, b""))

    def recv(self, rank, source, stamp=100.0):
        words = (F.ROWS, stamp, row(Op.RECV, source, 0, N)), (F.ROWS, 0.0, row(Op.WAIT, 1, 1)), (F.ASK, 0.0, b"")
        self.say(rank, *words)

    def heard(self, rank):
        return F.take_told(self.told[rank])


def test_a_lone_message_is_answered_when_both_sides_have_spoken():
    table = Table(2)
    table.recv(1, 0)
    assert table.heard(1) == []
    table.send(0, 1)
    (sent,), (received,) = table.heard(0), table.heard(1)
    assert sent.time_s == pytest.approx(N / RATE)
    assert received.time_s == pytest.approx(OWN_S)
    assert received.origin_s == 100.0


def test_nobody_is_answered_while_another_could_still_change_it():
    table = Table(3)
    table.send(0, 2)
    table.say(2, (F.ROWS, 100.0, row(Op.RECV, 0, 0, N) + row(Op.RECV, 1, 0, N)), (F.ROWS, 0.0, row(Op.WAIT, 2, 2)),
              (F.ASK, 0.0, b""))  # fmt: skip
    assert table.heard(0) == []  # rank 1 works, and may send through the same port at time 0
    table.send(1, 2)
    assert table.heard(0)[0].time_s == pytest.approx(2 * N / RATE)
    assert table.heard(2)[0].time_s == pytest.approx(ALPHA_S + 2 * N / RATE)


def test_computation_lets_the_others_go_on_ahead():
    table = Table(3)
    table.say(2, (F.ROWS, 0.0, row(Op.ELAPSED, x=1.0)), (F.ASK, 0.0, b""))
    table.recv(1, 0)
    table.send(0, 1)
    assert table.heard(1)[0].time_s == pytest.approx(OWN_S)


def test_a_late_program_moves_the_origin_and_not_its_message():
    table = Table(2)
    table.recv(1, 0)
    table.send(0, 1)
    table.heard(0), table.heard(1)
    late = 100.0 + 10.0 * OWN_S + 3.0
    table.recv(1, 0, stamp=late)
    table.send(0, 1, stamp=100.0 + 10.0 * N / RATE)
    (told,) = table.heard(1)
    assert told.origin_s == pytest.approx(103.0)
    assert told.stood_still_s == pytest.approx(3.0)
    assert told.origin_s + 10.0 * told.time_s >= late + 10.0 * (told.time_s - OWN_S) - 1e-9


def test_a_kernel_that_took_too_long_on_its_host_makes_time_stand_still():
    table = Table(2)
    table.say(0, (F.ROWS, 100.0, row(Op.ELAPSED, x=1.0)), (F.ASK, 0.0, b""))
    assert table.heard(0)[0].time_s == 1.0  # due at 110.0
    table.say(0, (F.ROWS, 114.0, row(Op.ELAPSED, x=1.0)), (F.ASK, 0.0, b""))
    (told,) = table.heard(0)
    assert (told.time_s, told.stood_still_s) == (2.0, pytest.approx(4.0))
    assert told.origin_s == pytest.approx(104.0)


def test_values_meet_at_the_time_of_the_last():
    table = Table(2)
    table.say(0, (F.ROWS, 0.0, row(Op.ELAPSED, x=2.0)))
    for rank in range(2):
        table.say(rank, (F.EXCHANGE, 0.0, pickle.dumps(("key", (0, 1), pickle.dumps(rank)))))
    for rank in range(2):
        (told,) = table.heard(rank)
        assert told.time_s == 2.0
        assert [pickle.loads(value) for value in pickle.loads(told.payload)] == [0, 1]


def error_of(table, rank):
    (told,) = table.heard(rank)
    assert told.kind == F.ERROR
    return pickle.loads(told.payload)


def test_calls_that_differ_are_told_to_all():
    table = Table(2)
    for rank, what in enumerate(("ring_all_reduce", "tree_all_reduce")):
        call = Call(what, (), f"program.py:{rank}", 0)
        table.say(rank, (F.ENTER, 100.0, pickle.dumps(("key", 2, call))))
    for rank in range(2):
        error = error_of(table, rank)
        assert isinstance(error, MismatchError) and "ring_all_reduce" in str(error) and "tree_all_reduce" in str(error)


def test_waiting_for_each_other_is_a_deadlock():
    table = Table(2)
    table.recv(0, 1)
    table.recv(1, 0)
    assert isinstance(error_of(table, 0), DeadlockError)


def test_a_rank_that_goes_without_a_word_has_died():
    table = Table(2)
    table.recv(0, 1)
    table.referee.leave(table.lanes[1])
    error = error_of(table, 0)
    assert isinstance(error, RankError) and "rank 1" in str(error)


def test_the_governor_takes_what_is_needed_and_comes_down_again():
    governor, dilation = Governor(), 1.0
    for _ in range(20 * WINDOW):
        dilation = governor.take(1e-3, 1e-4, dilation)  # 0.1 ms late on 1 ms: 10 are enough
    assert 10 <= dilation <= 20
    for _ in range(5 * WINDOW):
        dilation = governor.take(1e-3, 1.0, dilation)
    assert dilation == MOST
    for _ in range(30 * WINDOW):
        dilation = governor.take(1e-3, 1e-4, dilation)
    assert 10 <= dilation <= 25
    assert Governor().take(0.0, 1.0, 7.0) == 7.0


def test_the_governor_finds_its_dilation_within_a_few_messages():
    governor, dilation = Governor(), 1.0
    for _ in range(20):
        dilation = governor.take(1e-3, 5e-3, dilation)  # 500 are enough
    assert 500 <= dilation <= 1000


def test_the_governor_keeps_its_dilation_between_bursts_of_late_messages():
    governor, dilation, seen = Governor(), 1.0, []
    for _ in range(30):
        for k in range(4 * WINDOW):  # three in a row are late, then a calm time
            dilation = governor.take(1e-3, 5e-3 if k < 3 else 1e-6, dilation)
        seen.append(dilation)
    assert all(500 <= each <= 1000 for each in seen[-10:])
    assert len(set(seen[-10:])) <= 2


def test_the_governor_is_not_moved_by_messages_of_next_to_no_time():
    governor, dilation = Governor(), 1.0
    for _ in range(5 * WINDOW):
        dilation = governor.take(1e-3, 1e-4, dilation)
        dilation = governor.take(1e-9, 1e-4, dilation)
    assert 10 <= dilation <= 50


def test_the_governor_gives_work_a_twentieth_of_its_time():
    governor, dilation = Governor(), 1.0
    for _ in range(3 * WINDOW):
        dilation = governor.stand(1e-3, 5e-3, dilation)  # 100 are enough
    assert 100 <= dilation <= 250


def test_lateness_counts_what_is_late_by_its_own_time():
    found = [[(1e-3, 1e-4, 10.0)] * 99, [(1e-3, 5e-3, 10.0), (1e-3, 9.0, 2.0)]]
    told = summarise(found, 10.0, 0.0, 60.0)
    assert (told.messages, told.late, told.early, told.kept_up) == (100, 1, 0, True)
    assert told.worst_pct == pytest.approx(50)
    assert told.enough == 10
    assert not summarise(found, 10.0, 30.0, 60.0).kept_up
    assert "COULD NOT KEEP UP" in summarise([[(1e-3, 1.0, 10.0)]], 10.0, 0.0, 60.0).text()


def test_a_message_of_next_to_no_time_is_judged_by_the_mean_message():
    told = summarise([[(1e-3, 1e-4, 100.0)] * 50 + [(1e-9, 1e-4, 100.0)] * 50], 100.0, 0.0, 60.0)
    assert (told.late, told.late_of_own, told.kept_up) == (0, 50, True)
    assert told.enough == 20  # 0.1 ms is a hundredth of 20 times the mean, 0.5 ms
    assert "50 late by their own time alone" in told.text()


@pytest.mark.parametrize("stood_still_s", [0.0, 0.5, 3.0, 6.0, 50.0])
@pytest.mark.parametrize("late_s", [0.0, 2e-5, 1e-4, 1.1e-4, 1e-3])
def test_a_run_keeps_up_exactly_where_its_dilation_is_enough(stood_still_s, late_s):
    told = summarise([[(1e-3, 0.0, 10.0)] * 60 + [(1e-3, late_s, 10.0)] * 3], 10.0, stood_still_s, 60.0)
    assert told.kept_up == (told.enough <= 10)


def test_a_host_that_would_need_more_than_the_most_is_told_that_it_cannot():
    told = summarise([[(1e-6, 1e-3, 5000.0)] * 100], 5000.0, 0.0, 60.0)
    assert "enough: more than 5,000: this host, as busy as it is, cannot" in told.text()
    assert told.json()["enough"] is None and not told.json()["kept_up"]
    json.dumps(told.json(), allow_nan=False)


def test_a_short_run_asks_to_be_repeated_with_the_dilation_it_has_found():
    found = [[(1e-3, 1e-4, 20.0)] * 10]
    assert "repeat it with this dilation" in summarise(found, 20.0, 0.0, 60.0, auto=True).text()
    assert "repeat" not in summarise(found, 20.0, 0.0, 60.0).text()
    assert "since the dilation was settled" in summarise(found, 30.0, 0.0, 60.0, auto=True).text()


@pytest.mark.parametrize("text", ["0", "-3", "nan", "fast"])
def test_a_dilation_that_is_none_is_refused(text):
    from emu.errors import ConfigError

    with pytest.raises(ConfigError, match="dilation"):
        read_pace(text)
