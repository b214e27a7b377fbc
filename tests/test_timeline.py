"""The accounting of a step on hand-worked timelines, where each part is known exactly."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hand_timelines import PIPELINE, RING, RankLog, timeline
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emu.errors import ConfigError, TraceError
from emu.timeline import stragglers, summarize
from emu.timeline.accounting import PART_NAMES
from emu.timeline.links import use_over_time
from emu.timeline.views import span_ends
from emu.trace import COLLECTIVE, ROW, Op


def spent(account, **expected):
    """Compare the parts that are not zero."""
    found = {name: account[name] for name in PART_NAMES if account[name]}
    assert found == {f"{name}_s": value for name, value in expected.items()}


def test_kernels_launches_copies_and_holes_are_told_apart():
    log = RankLog(0).begin(0).copy(0, 1).kernel(1, 4, launch=0.5).end(6)
    step = timeline(log).step
    spent(step, copy=1.0, launch_gap=0.5, compute=2.5, idle=2.0)
    assert step["time_s"] == 6.0


def test_the_later_rank_exposes_only_the_links_and_the_earlier_one_waits_for_it():
    early = RankLog(0).begin(0).kernel(0, 2).call(2, 9).end(9)
    late = RankLog(1).begin(0).kernel(0, 5).call(5, 9).end(9)
    found = timeline(early, late)
    spent(found.step_of(0), compute=2.0, straggler_wait=3.0, exposed_communication=4.0)
    spent(found.step_of(1), compute=5.0, exposed_communication=4.0)
    spent(found.step, compute=3.5, straggler_wait=1.5, exposed_communication=4.0)


@pytest.mark.parametrize(("group", "link"), [((0, 1), "nvlink"), ((0, 2), "rdma"), ((0, 1, 2, 3), "rdma")])
def test_a_collective_counts_for_the_slowest_link_class_of_its_members(group, link):
    logs = [RankLog(r) for r in range(max(group) + 1)]
    for rank in group:
        logs[rank].call(0, 1)
    found = timeline(*logs, group=group)
    exposed = found.step_of(group[0])["exposed_by_link"]
    assert {name for name, seconds in exposed.items() if seconds} == {link}


def test_communication_on_another_stream_is_exposed_only_where_the_default_stream_waits_for_it():
    def log(rank):
        made = RankLog(rank).begin(0).kernel(0, 2).record().wait_event(0, 2, stream=1)
        return made.call(2, 8, stream=1).record(stream=1).kernel(2, 5).wait_event(5, 8).kernel(8, 9).end(9)

    found = timeline(log(0), log(1))
    spent(found.step, compute=6.0, exposed_communication=3.0)
    assert found.communication_s(0) == 6.0
    assert found.overlap_fraction() == 0.5


def test_the_wait_for_a_slower_rank_counts_as_far_as_it_is_exposed():
    first = RankLog(0).kernel(0, 1).call(1, 8, stream=1).record(stream=1).kernel(1, 3).wait_event(3, 8)
    second = RankLog(1).kernel(0, 6).call(6, 8, stream=1).record(stream=1).wait_event(6, 8)
    found = timeline(first, second)
    spent(found.step_of(0), compute=3.0, straggler_wait=3.0, exposed_communication=2.0)
    spent(found.step_of(1), compute=6.0, exposed_communication=2.0)


def test_waiting_for_a_copy_or_a_kernel_of_another_stream_is_copy_or_computation():
    log = RankLog(0).copy(0, 3, stream=2).kernel(3, 5, stream=2, launch=1).record(stream=2).wait_event(0, 5)
    spent(timeline(log).step, copy=3.0, launch_gap=1.0, compute=1.0)


def test_a_wait_is_followed_through_a_chain_of_streams():
    log = RankLog(0).copy(0, 2, stream=2).record(stream=2).wait_event(0, 2, stream=1)
    log.kernel(2, 3, stream=1).record(stream=1).wait_event(0, 3).kernel(3, 4)
    spent(timeline(log).step, copy=2.0, compute=2.0)


def test_a_host_that_waits_for_all_streams_sees_what_the_last_one_does():
    log = RankLog(0).kernel(0, 1).kernel(0, 2, stream=1).copy(0, 4, stream=2).add(Op.SYNC).kernel(4, 5)
    spent(timeline(log).step, compute=2.0, copy=3.0)


def test_a_reduction_inside_a_flat_collective_belongs_to_its_communication():
    log = RankLog(0).begin(0, RING, flag=COLLECTIVE).send(1, flag=COLLECTIVE).wait(0, 2)
    log.kernel(2, 3, flag=COLLECTIVE).end(3)
    other = RankLog(1).begin(0, RING, flag=COLLECTIVE).recv(0, flag=COLLECTIVE).wait(0, 2).end(3)
    step = timeline(log, other).step
    spent(step, exposed_communication=3.0)
    assert step["exposed_by_link"]["nvlink"] == 3.0


def test_a_message_waits_for_its_sender_first_and_for_the_link_then():
    sender = RankLog(0).kernel(0, 4).send(2).wait(4, 7)
    receiver = RankLog(2).kernel(0, 1).recv(0).wait(1, 7)
    found = timeline(sender, RankLog(1), receiver)
    spent(found.step_of(2), compute=1.0, straggler_wait=3.0, exposed_communication=3.0)
    spent(found.step_of(0), compute=4.0, exposed_communication=3.0)
    assert found.step_of(2)["exposed_by_link"]["rdma"] == 3.0


def test_a_message_that_waits_in_a_pipeline_is_its_bubble_and_so_is_what_is_left_of_the_step():
    first = RankLog(0).begin(0).begin(0, PIPELINE, flag=0).kernel(0, 4).send(1).wait(4, 4).end(4).end(4)
    second = RankLog(1).begin(0).begin(0, PIPELINE, flag=0).recv(0).wait(0, 5).kernel(5, 9).end(9).end(9)
    found = timeline(first, second)
    spent(found.step_of(0), compute=4.0, bubble=5.0)
    spent(found.step_of(1), compute=4.0, bubble=4.0, exposed_communication=1.0)


def test_messages_match_in_order_of_their_tags():
    sender = RankLog(0).send(1, tag=7).kernel(0, 3).send(1, tag=5)
    receiver = RankLog(1).recv(0, tag=5).recv(0, tag=7).wait(0, 1, back=1).wait(1, 4, back=2)
    spent(timeline(sender, receiver).step_of(1), exposed_communication=1.0 + 1.0, straggler_wait=2.0)


def test_requests_of_a_collective_are_counted_when_a_wait_looks_back():
    sender = RankLog(0).call(0, 1).kernel(1, 3).send(1)
    receiver = RankLog(1).recv(0).call(0, 1).wait(1, 4, back=2)
    found = timeline(sender, receiver)
    spent(found.step_of(1), exposed_communication=1.0 + 1.0, straggler_wait=2.0)


def test_an_eager_send_does_not_wait_for_its_receiver():
    sender = RankLog(0).send(1).wait(0, 1)
    receiver = RankLog(1).kernel(0, 5).recv(0).wait(5, 5)
    spent(timeline(sender, receiver).step_of(0), exposed_communication=1.0, idle=4.0)


def test_what_sending_costs_a_stream_is_communication_but_a_hole_in_a_sync_is_not():
    sender = RankLog(0).kernel(0, 1).send(1).send(1).kernel(1.5, 3)
    spent(timeline(sender, RankLog(1)).step, compute=1.25, exposed_communication=0.25, idle=1.5)
    synced = RankLog(0).kernel(0, 1).send(1).add(Op.SYNC).kernel(2, 3)
    spent(timeline(synced).step_of(0), compute=2.0, idle=1.0)
    after = RankLog(0).kernel(0, 1).copy(0, 2, stream=2).add(Op.SYNC).send(1).kernel(2.5, 3)
    spent(timeline(after, RankLog(1)).step_of(0), compute=1.5, copy=1.0, exposed_communication=0.5)


def test_groups_that_share_a_context_number_do_not_wait_for_each_other():
    logs = [RankLog(r) for r in range(4)]
    for rank, end in ((0, 2), (1, 2), (2, 9), (3, 9)):
        peer = rank ^ 1
        logs[rank].kernel(0, end - 1).begin(end - 1, RING, flag=COLLECTIVE, context=3)
        logs[rank].send(peer, flag=COLLECTIVE, context=3).wait(end - 1, end).end(end)
    found = timeline(*logs)
    assert found.step_of(0)["straggler_wait_s"] == 0.0


def test_stalls_are_taken_out_of_exposed_communication():
    stalls = np.array([(0, 3.0, 5.0), (0, 4.0, 6.0)], dtype=[("rank", "i4"), ("start_s", "f8"), ("end_s", "f8")])
    found = timeline(RankLog(0).kernel(0, 4).call(4, 9), RankLog(1).kernel(0, 4).call(4, 9), stalls=stalls)
    spent(found.step_of(0), compute=4.0, stall=2.0, exposed_communication=3.0)
    spent(found.step_of(1), compute=4.0, exposed_communication=5.0)


def test_a_step_ends_with_its_last_rank_and_the_next_starts_there():
    fast = RankLog(0).begin(0, index=0).kernel(0, 2).end(2).begin(2, index=1).kernel(2, 4).end(4)
    slow = RankLog(1).begin(0, index=0).kernel(0, 3).end(3).begin(3, index=1).kernel(3, 6).end(6)
    steps = timeline(fast, slow).steps()
    assert [(s["index"], s["start_s"], s["end_s"]) for s in steps] == [(0, 0.0, 3.0), (1, 3.0, 6.0)]
    spent(steps[1], compute=2.0, idle=1.0)


def test_time_between_steps_is_in_no_step():
    log = RankLog(0).begin(1, index=0).kernel(1, 2).end(2).kernel(2, 10).begin(10, index=1).kernel(10, 11).end(11)
    found = timeline(log)
    assert [s["time_s"] for s in found.steps()] == [1.0, 1.0]
    spent(found.step, compute=1.0)


def test_a_run_without_steps_is_one_step():
    assert timeline(RankLog(0).kernel(0, 3)).steps()[0]["index"] == -1


def test_the_table_names_every_part_that_somebody_has():
    early = RankLog(0).begin(0).copy(0, 1).kernel(1, 2).call(2, 9).end(9)
    late = RankLog(1).begin(0).copy(0, 1).kernel(1, 5).call(5, 9).end(9)
    text = timeline(early, late).table()
    assert "copies" in text and "bubble" not in text
    lines = [line.split() for line in text.splitlines()]
    assert lines[2] == ["0", *"9 s 1 s 1 s 4 s 3 s".split()]
    assert lines[-2] == ["100.0%", "27.8%", "11.1%", "44.4%", "16.7%"]
    assert text.splitlines()[-1] == "exposed communication by link: nvlink 4 s"


def test_more_ranks_than_fit_are_told():
    text = timeline(*[RankLog(r).kernel(0, 1) for r in range(4)]).table(most=3)
    assert text.endswith("1 more ranks are in `all`")


def test_an_unknown_rank_is_refused():
    with pytest.raises(ConfigError, match="rank from 0 to 0 is expected, got 3"):
        timeline(RankLog(0).kernel(0, 1)).step_of(3)


def test_totals_alone_are_refused_with_what_to_do():
    found = timeline(RankLog(0).kernel(0, 1))
    found.raw.spans = found.raw.spans[:0]
    with pytest.raises(TraceError, match="detail='spans'"):
        _ = found.step


# The critical path


def walked(found):
    return [(s.rank, s.kind, s.start_s, s.end_s, s.because) for s in found.critical_path]


def test_the_critical_path_goes_through_the_rank_that_came_last():
    early = RankLog(0).kernel(0, 2, launch=0.5).call(2, 9).kernel(9, 11)
    late = RankLog(1).kernel(0, 5, launch=0.5).call(5, 9)
    found = timeline(early, late)
    assert walked(found) == [
        (1, "launch", 0.0, 0.5, ""),
        (1, "kernel", 0.5, 5.0, ""),
        (0, "communication", 5.0, 9.0, "rank 1 came last"),
        (0, "kernel", 9.0, 11.0, ""),
    ]
    assert stragglers(found.critical_path) == {1: 1}
    assert found.critical_path[2].link == "nvlink nvlink"
    assert [(row["kind"], row["time_s"]) for row in summarize(found.critical_path)] == [
        ("kernel", 6.5), ("communication", 4.0), ("launch", 0.5),
    ]  # fmt: skip


def test_the_critical_path_follows_events_and_messages():
    sender = RankLog(0).copy(0, 3, stream=2).record(stream=2).wait_event(0, 3).send(1).kernel(3, 4)
    receiver = RankLog(1).recv(0).kernel(0, 5).wait(5, 7).kernel(7, 8)
    assert walked(timeline(sender, receiver)) == [
        (0, "copy", 0.0, 3.0, ""),
        (1, "communication", 3.0, 7.0, "rank 0 came last"),
        (1, "kernel", 7.0, 8.0, ""),
    ]


def test_the_critical_path_tells_where_nothing_ran():
    log = RankLog(0).kernel(1, 2).kernel(0, 3, stream=1).add(Op.SYNC).kernel(3, 4)
    assert walked(timeline(log)) == [(0, "kernel", 0.0, 3.0, ""), (0, "kernel", 3.0, 4.0, "")]
    assert walked(timeline(RankLog(0).kernel(1, 2)))[0] == (0, "idle", 0.0, 1.0, "")


# Links


def two_flows():
    routes = (SimpleNamespace(links=(0, 1)), SimpleNamespace(links=(0,)))
    flows = [(0, 2, 0, 40, 0, RING, 0.0, 0.0, 4.0, 4.0), (0, 1, 1, 30, 0, RING, 2.0, 2.0, 5.0, 5.0)]
    logs = [RankLog(0).call(0, 10), RankLog(1).kernel(0, 10), RankLog(2)]
    return timeline(*logs, flows=flows, routes=routes)


def test_link_use_sums_flows_and_merges_their_times():
    nic, nvlink = two_flows().link_use()
    assert (nic.name, nic.bytes, nic.busy_s, nic.utilisation) == ("nic", 40, 4.0, 0.4)
    assert (nvlink.name, nvlink.bytes, nvlink.busy_s, nvlink.utilisation) == ("nvlink", 70, 5.0, 0.07)


def test_link_use_over_time_conserves_bytes():
    edges, used = two_flows().link_use_over_time(bins=5)
    assert edges.tolist() == [0, 2, 4, 6, 8, 10]
    assert np.allclose(used["nic"], [1.0, 1.0, 0, 0, 0])
    assert np.allclose(used["nvlink"], [0.1, 0.2, 0.05, 0, 0])


def test_link_use_over_time_needs_flows():
    with pytest.raises(ConfigError, match="detail='flows'"):
        timeline(RankLog(0).kernel(0, 1)).link_use_over_time()


@example([(0.0, 0.0, 7)])
@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5), st.integers(0, 1000)), min_size=1, max_size=20))
def test_bytes_over_time_sum_to_the_bytes_sent(flows):
    starts, lengths, nbytes = (np.array(column, dtype=float) for column in zip(*flows, strict=True))
    carried = use_over_time(starts, starts + lengths, nbytes, np.linspace(0, 15, 31))
    assert carried.sum() == pytest.approx(nbytes.sum(), rel=1e-9, abs=1e-6)


def test_bytes_sent_count_messages_and_collectives_but_not_what_stays():
    log = RankLog(0).send(1).send(0).call(0, 1).call(1, 2)
    assert timeline(log, RankLog(1).recv(0)).bytes_sent.tolist() == [300, 0]


def test_bytes_sent_in_a_step_leave_out_what_lies_around_it():
    log = RankLog(0).send(1).begin(0).send(1).call(0, 1).end(1).begin(1, index=1).send(1).end(2).send(1)
    found = timeline(log, RankLog(1))
    assert found.bytes_sent_per_step.tolist() == [150, 0]


def test_the_end_of_each_span_is_found_in_any_nesting():
    log = RankLog(0).begin(0).begin(0, stream=1).begin(0).end(1).begin(1)
    rows = np.array(log.add(Op.END, stream=1).rows, dtype=ROW)
    assert span_ends(rows).tolist() == [6, 5, 3, 3, 6, 5]


# Exactness


@st.composite
def logs(draw):
    """A few ranks with kernels, copies, collectives and event waits at awkward times."""
    shift = draw(st.sampled_from([0.0, 1 / 3, 1e3 / 7, 1e6 / 3]))
    scale = draw(st.sampled_from([1e-9, 1 / 7, 1.0, 1e3]))
    duration = st.floats(0, 1, allow_subnormal=False)
    made = []
    for rank in range(draw(st.integers(1, 3))):
        log, at, other = RankLog(rank), shift, shift
        for index in range(draw(st.integers(1, 4))):
            log.begin(at, index=index)
            for _ in range(draw(st.integers(0, 5))):
                at, other = _random_row(draw, log, at, other, duration, scale)
            log.end(at)
            at += draw(duration) * scale * draw(st.sampled_from([0, 1]))
        made.append(log)
    return made


def _random_row(draw, log, at, other, duration, scale):
    kind = draw(st.sampled_from(["kernel", "copy", "call", "aside"]))
    end = at + draw(duration) * scale
    if kind == "aside":
        other = max(at, other)
        done = other + draw(duration) * scale
        log.call(other, done, stream=1, context=1).record(stream=1).wait_event(at, max(at, done))
        return max(at, done), done
    if kind == "kernel":
        log.kernel(at, end, launch=draw(duration) * scale)
    else:
        getattr(log, kind)(at, end)
    return end, other


@settings(max_examples=150, deadline=None)
@given(logs())
def test_the_parts_always_sum_to_the_step(made):
    found = timeline(*made, group=(0, 1, 2))
    accounts = found.steps() + [found.step]
    for rank in range(found.world_size):
        accounts += found.steps(rank) + [found.step_of(rank)]
    for account in accounts:
        named = [account[name] for name in PART_NAMES]
        for order in itertools.islice(itertools.permutations(named), 0, 5040, 719):
            assert sum(order) == account["time_s"]
        assert min(named) >= 0.0
        assert sum(account["exposed_by_link"].values()) == account["exposed_communication_s"]
        if "start_s" in account:
            span_s = account["end_s"] - account["start_s"]
            assert account["time_s"] == pytest.approx(span_s, rel=1e-12, abs=0)
    for rank in range(found.world_size):
        assert all(s["time_s"] == s["end_s"] - s["start_s"] for s in found.steps(rank))
    assert json.loads(json.dumps(found.step)) == found.step


@settings(max_examples=60, deadline=None)
@given(logs())
def test_the_critical_path_has_no_hole(made):
    path = timeline(*made, group=(0, 1, 2)).critical_path
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(path))
    assert not path or path[0].start_s == 0.0
