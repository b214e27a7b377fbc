"""What a trace's ranks sent: messages and bytes, templates walked."""

from dataclasses import dataclass

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
        sends = template.rows[template.rows["op"] == Op.SEND]
        in_template.append((len(sends), int(sends["n"].sum())))
    counts = []
    for rows in trace.ranks:
        sends = rows[rows["op"] == Op.SEND]
        calls = [in_template[number] for number in rows["a"][rows["op"] == Op.CALL]]
        messages = len(sends) + sum(count for count, _ in calls)
        counts.append(Sent(messages, int(sends["n"].sum()) + sum(nbytes for _, nbytes in calls)))
    return counts


def sent_in_all(trace: Trace) -> Sent:
    """Count what all ranks of a trace sent together."""
    counts = sent_by_rank(trace)
    return Sent(sum(c.messages for c in counts), sum(c.nbytes for c in counts))
