"""Timelines made by hand: rows, and the times that a test gives them, without an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from emu.engine.layout import QUEUE, WINDOW
from emu.timeline import Timeline
from emu.trace import COLLECTIVE, ROW, STEP, Op, Template, Trace

SPAN = np.dtype([
    ("rank", "i4"), ("stream", "u1"), ("op", "u1"), ("flag", "u2"), ("label", "i4"), ("index", "i4"),
    ("context", "i4"), ("depth", "i4"), ("row", "i8"), ("bytes", "i8"), ("launch_s", "f8"), ("start_s", "f8"),
    ("end_s", "f8"),
])  # fmt: skip
FLOW = np.dtype([
    ("src", "i4"), ("dst", "i4"), ("route", "i4"), ("bytes", "i8"), ("stream", "u1"), ("label", "i4"),
    ("posted_s", "f8"), ("start_s", "f8"), ("end_s", "f8"), ("arrival_s", "f8"),
])  # fmt: skip
NO_STALLS = np.zeros(0, [("rank", "i4"), ("src", "i4"), ("dst", "i4"), ("start_s", "f8"), ("end_s", "f8")])
LABELS = ("step", "forward", "all_reduce", "pipeline stage")
STEP_SPAN, KERNEL, RING, PIPELINE = range(4)


@dataclass
class RankLog:
    """One rank's rows, and its spans with the times that a test gives them."""

    rank: int
    rows: list[tuple] = field(default_factory=list)
    spans: list[tuple] = field(default_factory=list)
    opened: list[tuple] = field(default_factory=list)

    def add(self, op, start=None, end=None, *, stream=0, flag=0, a=0, b=0, c=0, n=0, launch=0.0, label=0, index=-1):
        row = len(self.rows)
        self.rows.append((op, stream, flag, a, b, c, n, 0.0))
        if start is not None:
            self.spans.append(
                (self.rank, stream, op, flag, label, index, c, 0, row, n, launch, float(start), float(end))
            )
        return self

    def begin(self, start, label=STEP_SPAN, index=0, flag=STEP, stream=0, context=0):
        self.opened.append((len(self.rows), start, label, index, flag, stream, context))
        return self.add(Op.BEGIN, a=label, b=index, c=context, flag=flag, stream=stream)

    def end(self, at):
        row, start, label, index, flag, stream, context = self.opened.pop()
        self.add(Op.END, stream=stream)
        self.spans.append(
            (
                self.rank,
                stream,
                Op.BEGIN,
                flag,
                label,
                index,
                context,
                0,
                row,
                0,
                0.0,
                float(start),
                float(at),
            )
        )
        return self

    def kernel(self, start, end, stream=0, launch=0.0, flag=0):
        return self.add(Op.COMPUTE, start, end, stream=stream, launch=launch, label=KERNEL, b=KERNEL, flag=flag)

    def copy(self, start, end, stream=0):
        return self.add(Op.COPY, start, end, stream=stream)

    def call(self, start, end, stream=0, context=0, group=0):
        return self.add(Op.CALL, start, end, stream=stream, b=group, c=context, label=RING)

    def record(self, stream=0):
        return self.add(Op.RECORD, stream=stream)

    def wait_event(self, start, end, stream=0, back=1):
        return self.add(Op.AWAIT, start, end, stream=stream, a=back)

    def send(self, peer, stream=0, tag=0, flag=0, context=0):
        return self.add(Op.SEND, stream=stream, a=peer, b=tag, n=100, flag=flag, c=context)

    def recv(self, peer, stream=0, tag=0, flag=0, context=0):
        return self.add(Op.RECV, stream=stream, a=peer, b=tag, n=100, flag=flag, c=context)

    def wait(self, start, end, back=1, count=1, stream=0):
        return self.add(Op.WAIT, start, end, a=back, b=count, stream=stream)


class FourGpus:
    """Two nodes of two GPUs: NVLink within, a slower NIC between."""

    links = (
        SimpleNamespace(name="nvlink", kind="nvlink", bandwidth_bytes_per_s=100.0),
        SimpleNamespace(name="nic", kind="nic", bandwidth_bytes_per_s=10.0),
    )

    def route(self, src, dst):
        near = src // 2 == dst // 2
        links, transport = ((0,), "nvlink") if near else ((0, 1), "rdma")
        return SimpleNamespace(links=links, transport=transport, cap_bytes_per_s=math.inf, latency_s=0.0)

    def transport(self, name):
        return SimpleNamespace(name=name, kind=name)


def timeline(*logs, group=None, flows=None, routes=(), stalls=NO_STALLS, streams=("default", "comm", "io")):
    template = np.array([(Op.SEND, 0, COLLECTIVE, 1, 0, 0, 100, 0.0)], dtype=ROW)
    trace = Trace(
        header={"streams": streams},
        labels=LABELS,
        ranks=tuple(np.array(log.rows, dtype=ROW) for log in logs),
        templates=(Template("all_reduce", len(logs), template),),
        groups=(tuple(group or range(len(logs))),),
    )
    spans = np.array([span for log in logs for span in log.spans], dtype=SPAN)
    ends = [max((s[-1] for s in log.spans), default=0.0) for log in logs]
    carried = np.zeros(len(FourGpus.links))
    for flow in flows or []:
        carried[list(routes[flow[2]].links)] += flow[3]
    raw = SimpleNamespace(
        spans=spans,
        flows=np.array(flows or [], dtype=FLOW),
        labels=trace.labels + tuple(t.name for t in trace.templates),
        link_bytes=carried,
        routes=routes,
        rank_end_s=np.array(ends),
        stalls=stalls,
        windows=np.zeros(0, WINDOW),
        queues=np.zeros(0, QUEUE),
    )
    return Timeline(raw, trace, FourGpus())
