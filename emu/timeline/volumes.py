"""Bytes that ranks send to others, by the trace: over the whole run, and in an average step."""

from __future__ import annotations

import numpy as np

from emu.timeline.views import span_ends
from emu.trace import STEP, Op, Trace


def bytes_by_row(trace: Trace, rank: int, of_template: list[np.ndarray]) -> np.ndarray:
    """Return the bytes that each row of a rank sends to others; a call's are `of_template`'s, at its place."""
    rows = trace.ranks[rank]
    sent = np.where((rows["op"] == Op.SEND) & (rows["a"] != rank), rows["n"], 0)
    calls = rows["op"] == Op.CALL
    kinds, which = np.unique(rows[["a", "b"]][calls], return_inverse=True)
    each = [of_template[template][trace.place(group, rank)] for template, group in kinds.tolist()]
    sent[calls] = np.array(each, np.int64)[which]
    return sent


def bytes_sent(trace: Trace) -> np.ndarray:
    """Return the bytes that each rank sends in the whole run."""
    of_template = _of_templates(trace)
    ranks = range(trace.world_size)
    return np.array([bytes_by_row(trace, rank, of_template).sum() for rank in ranks], dtype=np.int64)


def bytes_sent_per_step(trace: Trace) -> np.ndarray:
    """Return the bytes that each rank sends in an average step, rounded to whole bytes; all, without steps."""
    of_template, mean = _of_templates(trace), []
    for rank in range(trace.world_size):
        sent = np.concatenate(([0], np.cumsum(bytes_by_row(trace, rank, of_template))))
        steps = _step_rows(trace.ranks[rank])
        mean.append(sent[-1] if not steps else round(sum(sent[b] - sent[a] for a, b in steps) / len(steps)))
    return np.array(mean, dtype=np.int64)


def _of_templates(trace: Trace) -> list[np.ndarray]:
    """Return the bytes that each template sends at each place of its group."""
    return [template.sent_bytes() for template in trace.templates]


def message_count(trace: Trace) -> int:
    """Return how many messages all ranks send."""
    of_template = np.array([int(np.count_nonzero(t.rows["op"] == Op.SEND)) for t in trace.templates] or [0])
    return sum(
        int(np.count_nonzero(rows["op"] == Op.SEND)) + int(of_template[rows["a"][rows["op"] == Op.CALL]].sum())
        for rows in trace.ranks
    )


def _step_rows(rows: np.ndarray) -> list[tuple[int, int]]:
    """Return each step span's rows as (BEGIN, END), those that end."""
    begins = np.flatnonzero((rows["op"] == Op.BEGIN) & (rows["flag"] & STEP > 0))
    ends = span_ends(rows)[begins]
    return [(a, b) for a, b in zip(begins.tolist(), ends.tolist(), strict=True) if b < len(rows)]
