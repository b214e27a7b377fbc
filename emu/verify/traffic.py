"""What a trace's ranks sent: messages and bytes, templates walked."""

from dataclasses import dataclass

import numpy as np

from emu.trace import Op, Trace


@dataclass(frozen=True)
class Sent:
    """Messages and bytes that one rank sent."""

    messages: int
    nbytes: int


def sent_by_rank(trace: Trace) -> list[Sent]:
    """Count what each rank of a trace sent."""
    in_template = []
    for template in trace.templates:
        sends = np.count_nonzero(template.rows["op"] == Op.SEND)
        in_template.append((int(sends), template.sent_bytes(to_itself=True)))
    counts = []
    for rank, rows in enumerate(trace.ranks):
        sends = rows[rows["op"] == Op.SEND]
        messages, nbytes = len(sends), int(sends["n"].sum())
        for template, group in rows[["a", "b"]][rows["op"] == Op.CALL].tolist():
            messages += in_template[template][0]
            nbytes += int(in_template[template][1][trace.place(group, rank)])
        counts.append(Sent(messages, nbytes))
    return counts


def sent_in_all(trace: Trace) -> Sent:
    """Count what all ranks of a trace sent together."""
    counts = sent_by_rank(trace)
    return Sent(sum(c.messages for c in counts), sum(c.nbytes for c in counts))
