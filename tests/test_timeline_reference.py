"""The accounting against a slow reference that asks, instant by instant, what a rank's default stream does."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emu.collectives import binomial_broadcast, ring_all_reduce
from emu.gpu import Cost
from emu.program import run
from emu.timeline.accounting import PART_NAMES
from emu.trace import Op

LINK = "latency=3 us, bandwidth=1 GB/s"
KINDS = {Op.COMPUTE: "compute_s", Op.ELAPSED: "compute_s", Op.COPY: "copy_s"}


class Reference:
    """Answers one question: what is a stream of a rank doing at an instant?"""

    def __init__(self, timeline):
        self.trace, self.spans = timeline.trace, timeline.spans
        self.rows = {}
        for span in self.spans:
            if span["op"] != Op.BEGIN:
                self.rows.setdefault((int(span["rank"]), int(span["stream"])), []).append(span)
        self.calls = defaultdict(list)  # one collective: who came when
        counts = defaultdict(int)
        for (rank, stream), spans in self.rows.items():
            for span in spans:
                if span["op"] == Op.CALL:
                    key = rank, stream, int(span["context"])
                    self.calls[stream, int(span["context"]), counts[key]].append((float(span["start_s"]), rank))
                    counts[key] += 1
        self.arrival = {}
        for (stream, context, number), came in self.calls.items():
            for _, rank in came:
                self.arrival[rank, stream, context, number] = max(came)[0]
        self.posts = self._match()

    def cause(self, rank, stream, time):
        spans = self.rows.get((rank, stream), [])
        for span in spans:
            if span["start_s"] <= time < span["end_s"]:
                return self._of_span(rank, stream, span, time)
        sending_s = self._sending(rank, stream, spans, time)
        if sending_s <= time:
            return "exposed_communication_s"
        return "idle_s" if stream else self._of_gap(rank, time, spans, sending_s)

    def _sending(self, rank, stream, spans, time):
        """Return when, in the hole at `time`, the stream begins to send: what follows is what sends cost."""
        after = next((s for s in spans if s["start_s"] > time), None)
        if after is None:
            return np.inf
        rows = self.trace.ranks[rank]
        first = max((int(s["row"]) for s in spans if s["row"] < after["row"]), default=-1)
        between = range(first + 1, int(after["row"]))
        synced = max((i for i in between if rows["op"][i] == Op.SYNC), default=first)
        sends = [i for i in between if i > synced and rows["op"][i] == Op.SEND and rows["stream"][i] == stream]
        return self._posted(rank, sends[0]) if sends else np.inf

    def _of_span(self, rank, stream, span, time):
        op = span["op"]
        if op in KINDS:
            return "launch_gap_s" if time < span["start_s"] + span["launch_s"] else KINDS[op]
        if op == Op.AWAIT:
            return self.cause(rank, self._event_stream(rank, span), time)
        if op == Op.CALL and time < span["start_s"] + span["launch_s"]:
            return "launch_gap_s"
        met = self._call_met(rank, stream, span) if op == Op.CALL else self._wait_met(rank, stream, span)
        return "straggler_wait_s" if time < met else "exposed_communication_s"

    def _of_gap(self, rank, time, spans, until):
        """Nothing runs on the default stream: the host waits for whatever stream works until the gap's end."""
        until = min([until, *(s["start_s"] for s in spans if s["start_s"] > time)])
        best = None
        for (r, stream), others in self.rows.items():
            ends = [s["end_s"] for s in others if s["start_s"] < until and s["end_s"] > s["start_s"]]
            if r == rank and stream and ends and (best is None or max(ends) > best[0]):
                best = max(ends), stream
        return self.cause(rank, best[1], time) if best is not None and best[0] > time else "idle_s"

    def _call_met(self, rank, stream, span):
        before = [s for s in self.rows[rank, stream] if s["op"] == Op.CALL and s["context"] == span["context"]]
        number = [int(s["row"]) for s in before].index(int(span["row"]))
        return self.arrival[rank, stream, int(span["context"]), number]

    def _event_stream(self, rank, span):
        rows, row = self.trace.ranks[rank], int(span["row"])
        records = [i for i in range(row) if rows["op"][i] == Op.RECORD]
        return int(rows["stream"][records[-int(rows["a"][row])]])

    def _wait_met(self, rank, stream, span):
        rows, row = self.trace.ranks[rank], int(span["row"])
        requests = []
        for i in range(row):
            if rows["stream"][i] == stream and rows["op"][i] in (Op.SEND, Op.RECV):
                requests.append(i)
            elif rows["stream"][i] == stream and rows["op"][i] == Op.CALL:
                template = self.trace.templates[rows["a"][i]].rows
                requests += [-1] * sum(op in (Op.SEND, Op.RECV) for op in template["op"])
        first = len(requests) - int(rows["a"][row])
        met = [self.posts[rank, i] for i in requests[first : first + int(rows["b"][row])]]
        return max((time for time in met if time <= span["end_s"]), default=-np.inf)

    def _match(self):
        """Tell for each plain message when its other side was posted."""
        boxes = defaultdict(lambda: ([], []))
        for rank, rows in enumerate(self.trace.ranks):
            for i, row in enumerate(rows):
                if row["op"] in (Op.SEND, Op.RECV):
                    send = row["op"] == Op.SEND
                    pair = (rank, int(row["a"])) if send else (int(row["a"]), rank)
                    boxes[pair, int(row["b"]), int(row["c"])][not send].append((rank, i))
        posts = {}
        for sends, receives in boxes.values():
            for one, other in zip(sends, receives, strict=True):
                posts[one], posts[other] = self._posted(*other), self._posted(*one)
        return posts

    def _posted(self, rank, row):
        rows, stream = self.trace.ranks[rank], self.trace.ranks[rank]["stream"][row]
        synced = max((i for i in range(row) if rows["op"][i] == Op.SYNC), default=-1)
        ends = [
            float(s["end_s"])
            for (r, number), spans in self.rows.items()
            for s in spans
            if r == rank and (s["row"] < synced or (number == stream and s["row"] < row))
        ]
        return max(ends, default=0.0)


def expected(timeline, rank):
    """Sum the causes of all elementary stretches of the run, asked at their middles."""
    edges = {0.0, timeline.end_s}
    reference = Reference(timeline)
    for span in timeline.spans:
        edges |= {float(span["start_s"]), float(span["start_s"] + span["launch_s"]), float(span["end_s"])}
    times = sorted(t for t in edges if t <= timeline.end_s)
    sums = dict.fromkeys(PART_NAMES, 0.0)
    for start, end in zip(times[:-1], times[1:], strict=True):
        sums[reference.cause(rank, 0, (start + end) / 2)] += end - start
    return sums


OPERATIONS = st.one_of(
    st.tuples(st.just("kernel"), st.sampled_from(["default", "comm", "io"]), st.integers(0, 99)),
    st.tuples(st.just("copy"), st.sampled_from(["default", "io"]), st.integers(1, 2000)),
    st.tuples(st.just("reduce"), st.sampled_from(["default", "comm"]), st.integers(1, 5000)),
    st.tuples(st.just("broadcast"), st.sampled_from(["default", "comm"]), st.integers(1, 5000)),
    st.tuples(st.just("ring"), st.sampled_from(["default", "comm"]), st.integers(1, 5000)),
    st.tuples(st.just("event"), st.sampled_from(["default", "comm", "io"]), st.integers(0, 2)),
    st.tuples(st.just("synchronize"), st.just("default"), st.just(0)),
)


def perform(gpu, operation):
    """Do one random operation; kernels take as long as rank and seed say."""
    kind, stream, number = operation
    with gpu.stream(stream):
        if kind == "kernel":
            flops = np.random.default_rng([number, gpu.rank]).random() * 5e8
            gpu.launch(lambda: None, cost=Cost(flops, 0, "float32"), name="kernel")
        elif kind == "copy":
            gpu.array(np.zeros(number * (1 + gpu.rank), dtype="float32"))
        elif kind == "reduce":
            ring_all_reduce(gpu.comm, gpu.zeros(number))
        elif kind == "broadcast":
            binomial_broadcast(gpu.comm, gpu.zeros(number), root=number % gpu.size)
        elif kind == "ring":
            comm, x, y = gpu.comm, gpu.empty(number), gpu.empty(number)
            left, right = (gpu.rank - 1) % gpu.size, (gpu.rank + 1) % gpu.size
            comm.waitall([comm.irecv(x, left), comm.isend(y, right)])
        elif kind == "event":
            done = gpu.record()
            with gpu.stream(("default", "comm", "io")[number]):
                gpu.wait(done)
    if kind == "synchronize":
        gpu.synchronize()


@pytest.mark.parametrize(("cluster", "profile"), [(LINK, "ideal"), ("tcp-10g", "mpi"), ("dgx-1", "nccl")])
@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4), st.lists(OPERATIONS, min_size=1, max_size=14))
@example(
    4, [("reduce", "default", 915), ("event", "default", 2), ("synchronize", "default", 0), ("reduce", "default", 4)]
)
def test_the_accounting_equals_the_slow_reference(cluster, profile, ranks, operations):
    def program(gpu):
        for name in ("comm", "io"):  # streams have the same numbers in all programs
            with gpu.stream(name):
                pass
        for operation in operations:
            perform(gpu, operation)

    found = run(program, cluster, ranks, way="local", profile=profile).timeline
    for rank in range(ranks):
        step = found.step_of(rank)
        for part, value in expected(found, rank).items():
            assert step[part] == pytest.approx(value, rel=1e-9, abs=1e-12 * found.end_s), part
