"""Plans: what a collective does to memory, found without doing it; and memory that processes of a host share."""

import numpy as np
import pytest

from emu.collectives import TABLE
from emu.comm import run_local
from emu.comm.board import NUMBER_BITS, Board, Boards
from emu.comm.mailbox import SLOTS, Incoming, Outgoing
from emu.comm.plan import Exchange, Local, Post, Wait, sends_waited_late, sketch, taken_late, waits_by_kind
from emu.comm.shared import Arena


def plans_of(function, size, ranks, dtype="float32"):
    """Return the plan of function(comm, x) on every rank."""
    return run_local(lambda comm: sketch(comm, function, (np.zeros(size, dtype),), {}), ranks)[0]


def late_of(plan):
    plan = sends_waited_late(waits_by_kind(plan, lambda step: False))
    return plan, taken_late(plan)


def test_a_sketch_finds_the_steps_and_moves_nothing():
    plan = plans_of(TABLE["all_reduce"]["recursive_doubling"].function, 10, 2)[0]
    exchange, total = plan.steps
    assert isinstance(exchange, Exchange) and (exchange.to, exchange.out.nbytes, exchange.into.base) == (1, 40, 1)
    assert isinstance(total, Local) and (total.kind, total.into.base, total.other.base) == ("reduce", 0, 1)
    assert (plan.arguments, plan.scratch, plan.requests) == (1, (40,), 2)


@pytest.mark.parametrize("algorithm", sorted({*TABLE["all_reduce"]} - {"in_switch", "hierarchical"}))
@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_every_algorithm_has_a_plan(algorithm, ranks):
    assert None not in plans_of(TABLE["all_reduce"][algorithm].function, 17, ranks)


@pytest.mark.parametrize(
    "body", [lambda x: x.__iadd__(1), lambda x: x.__setitem__(0, 1), lambda x: np.sum(x), lambda x: np.concatenate([x])]
)
def test_a_function_that_works_on_values_has_none(body):
    assert plans_of(lambda comm, x: body(x), 4, 1) == [None]


def test_what_a_ring_receives_is_added_where_the_sender_has_it():
    plan, late = late_of(plans_of(TABLE["all_reduce"]["ring"].function, 12, 3)[0])
    receives = [step for step in plan.steps if isinstance(step, Post) and not step.sends]
    assert [step.number in late for step in receives] == [True, True, False, False]  # the sums, then the gathering


def test_a_sum_that_writes_what_is_being_sent_waits():
    plan, late = late_of(plans_of(TABLE["all_reduce"]["recursive_doubling"].function, 10, 2)[0])
    wait, total = plan.steps[-2:]
    assert isinstance(wait, Wait) and isinstance(total, Local) and not late


def test_a_receive_that_is_read_again_keeps_its_buffer():
    def function(comm, x):
        got = comm.empty_like(x)
        comm.sendrecv(x[:0], 0, got[:0], 0)
        comm.waitall([comm.irecv(got, 0)])
        comm.reduce("sum", x, got)
        comm.copy(x, got)

    assert not late_of(plans_of(function, 4, 1)[0])[1]


def test_a_mailbox_gives_messages_in_order_until_it_is_full():
    memory = memoryview(bytearray(64 + SLOTS * (64 + 4096)))
    sender, receiver = Outgoing(memory), Incoming(memory)
    for round_ in range(3):
        for i in range(SLOTS):
            assert sender.put(7, i, 3, 0, 0, np.full(3, 10 * round_ + i, np.uint8))
        assert not sender.put(7, 9, 0, 0, 0)
        for i in range(SLOTS):
            assert receiver.there() and receiver.header() == (7, i, 3, 0, 0)
            assert receiver.data()[:3].tolist() == [10 * round_ + i] * 3
            receiver.release()
        assert not receiver.there()


def test_an_arena_uses_again_what_no_view_refers_to():
    arena = Arena()
    first, second = arena.empty(100_000, "float32"), arena.empty((100, 1000), "float32")
    places = [each.__array_interface__["data"][0] for each in (first, second)]
    view = first[5:]
    del first
    assert arena.empty(100_000, "float32").__array_interface__["data"][0] not in places
    del view
    assert arena.empty(100_000, "float32").__array_interface__["data"][0] == places[0]
    assert not arena.holds(arena.empty(10, "int8").__array_interface__["data"][0])


def members_of(boards, size):
    memory = boards.memory()
    return [Board(memory, rank, size) for rank in range(size)]


def all_meet(members, hashes):
    """Let members tell their calls in turn; return what each of them then finds."""
    for member, each in zip(members, hashes, strict=True):
        member.tell(each)
    return [member.same() for member in members if member.complete()]


@pytest.mark.parametrize("size", [2, 3, 64])
def test_a_board_finds_calls_that_differ_and_goes_on(size):
    members = members_of(Boards(Arena()), size)
    for different in (0, 1, 0, 0, 1):
        told = [1 << 62] * (size - 1) + [(1 << 62) + different]
        assert all_meet(members, told) == [not different] * size


def test_a_board_waits_for_who_is_a_call_behind_also_when_the_numbers_begin_again():
    first, second = members_of(Boards(Arena()), 2)
    for call in range((1 << NUMBER_BITS) + 5):
        first.tell(7)
        assert not first.complete() and not first.same(), call
        second.tell(7)
        assert second.complete() and second.same()


@pytest.mark.parametrize("theirs", [3, 4])
def test_who_meets_at_a_board_gives_way_until_all_are_there(theirs):
    first, second = members_of(Boards(Arena()), 2)
    assert first.meet(3, lambda looks: second.tell(theirs) if looks == 5 else None) == (theirs == 3)


def test_a_boards_memory_is_used_again_when_all_have_left_it():
    boards = Boards(Arena())
    members = members_of(boards, 3)
    all_meet(members, [1, 1, 1])
    for member in members[:2]:
        member.leave()
    boards.give_back(members[0])
    assert boards.memory() is not members[0].memory
    members[2].leave()
    again = boards.memory()
    assert again is members[0].memory and not again[:1000].any()
