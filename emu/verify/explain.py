"""Why a result is wrong: which rank misses whose part, or has it twice, in which elements, after which message.

The submission is run again twice for each rank, with zeros from all others. With ones from that rank,
every number, in every message and every buffer, counts how often that rank's part is in it. With its elements'
places instead, the quotient of the two tells which element it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emu.verify.trial import Case, Submission, expected_results, impulse_inputs, run_trial
from emu.verify.watch import Delivery, Watched

SHOWN = 4


@dataclass(frozen=True)
class Finding:
    """One fault of one rank: "misses" or "has" the parts of `source` in some elements, since a message.

    `message` is that message's number; `how` and `why` end the sentence.
    """

    message: int
    rank: int
    verb: str
    source: int
    elements: str
    how: str
    why: str


def explain(submission: Submission, case: Case) -> list[str]:
    """Say what is wrong with the results of a case, the earliest fault first; empty if nothing is found."""
    nothing = run_trial(submission, case, impulse_inputs(submission, case, None))
    if nothing.error:
        return [nothing.error]
    found = _from_nobody(submission, case, nothing)
    if found:
        return found[:SHOWN]
    findings: list[Finding] = []
    for source in range(case.p):
        part = _follow(submission, case, source)
        if part.counts.error or part.places.error:
            return [part.counts.error or part.places.error]
        for rank in range(case.p):
            findings += _faults(part, rank)
    if not findings:
        return _misplaced(submission, case)
    return _sentences(findings)


def _sentences(findings: Sequence[Finding]) -> list[str]:
    """Write the faults, the earliest first; those that differ only in whose part it is are one sentence."""
    groups: dict[tuple, list[int]] = {}
    for f in sorted(findings, key=lambda finding: finding.message):
        groups.setdefault((f.rank, f.verb, f.elements, f.how, f.why), []).append(f.source)
    sentences = []
    for (rank, verb, elements, how, why), sources in groups.items():
        whose = f"rank {sources[0]}'s part" if len(sources) == 1 else f"the parts of ranks {_listed(sources)}"
        sentences.append(f"rank {rank} {verb} {whose}{how} in {elements}{why}")
    more = [f"and {len(sentences) - SHOWN} more faults"] if len(sentences) > SHOWN else []
    return sentences[:SHOWN] + more


def explain_deadlock(seen: Watched) -> str:
    """Tell a deadlock as the cycle that it is, or as the rank at its end that will never answer."""
    if not seen.waiting:
        return seen.error
    path, rank = [], min(seen.waiting)
    while rank in seen.waiting and rank not in path:
        path.append(rank)
        rank = seen.waiting[rank][0].peer
    cycle = path[path.index(rank) :] if rank in path else path
    lines = []
    for each in cycle:
        wait = seen.waiting[each][0]
        what = "a message from" if wait.receives else "its send to be received by"
        lines.append(f"rank {each} at {wait.at} waits for {what} rank {wait.peer}")
    if rank in path:
        advice = "post the receive (irecv) before you wait for the send, or use sendrecv"
        if all(seen.waiting[each][0].receives for each in cycle):
            advice = "somebody must send before it receives"
        return f"deadlock: {', '.join(lines)}, and so round again; {advice}"
    return f"deadlock: {', '.join(lines)}, but rank {rank} has ended or waits elsewhere and will not answer"


def explain_barrier(seen: Watched) -> list[str]:
    """Tell which ranks return from a barrier without having heard, directly or not, that all have come."""
    lines = []
    for rank, knows in enumerate(seen.knows):
        missing = sorted(set(range(seen.size)) - knows)
        if missing:
            arrived = [d for d in seen.deliveries if d.to == rank]
            last = f"its last is {arrived[-1]}" if arrived else "no message arrives there"
            who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {_listed(missing)}"
            lines.append(f"rank {rank} returns before it has heard of {who}; {last}")
    return lines[:SHOWN]


@dataclass(frozen=True)
class _Part:
    """One rank's part, followed through a run: how often it is anywhere, and which of its elements."""

    source: int
    counts: Watched
    places: Watched
    wanted_counts: Sequence[np.ndarray | None]
    wanted_places: Sequence[np.ndarray | None]

    def carried(self, delivery: int) -> set[int]:
        """Return the elements of the part that a message carries, by its number."""
        counts = self.counts.deliveries[delivery - 1].payload
        places = self.places.deliveries[delivery - 1].payload
        there = np.abs(counts) > 0.5
        return set(np.rint(places[there] / counts[there]).astype(int).tolist())


def _follow(submission: Submission, case: Case, source: int) -> _Part:
    inputs = [impulse_inputs(submission, case, source, places) for places in (False, True)]
    counts, places = (run_trial(submission, case, each) for each in inputs)
    wanted = [expected_results(submission, case, each) for each in inputs]
    return _Part(source, counts, places, wanted[0], wanted[1])


def _faults(part: _Part, rank: int) -> list[Finding]:
    wanted = part.wanted_counts[rank]
    if wanted is None:
        return []
    held = part.counts.states[rank][-1].held
    findings = []
    missing, extra = held < wanted - 0.5, held > wanted + 0.5
    if missing.any():
        findings.append(_missing(part, rank, missing))
    if extra.any():
        findings.append(_extra(part.counts, rank, part.source, wanted, extra))
    return findings


def _missing(part: _Part, rank: int, where: np.ndarray) -> Finding:
    seen, wanted, places = part.counts, part.wanted_counts[rank], part.wanted_places[rank]
    assert wanted is not None and places is not None
    states = seen.states[rank]

    def finding(message: int, why: str) -> Finding:
        return Finding(message, rank, "misses", part.source, _elements(where), "", why)

    there = [i for i, state in enumerate(states) if (state.held >= wanted - 0.5)[where].all()]
    arrived = [d for d in seen.deliveries if d.to == rank]
    if there:
        after = next((state.message for state in states[there[-1] + 1 :]), states[-1].message)
        return finding(after, f": it was there, and was overwritten after {_told(seen, after)}")
    if not arrived:
        return finding(0, f": no message arrives at rank {rank} at all")
    owed = set(np.rint(places[where] / wanted[where]).astype(int).tolist())
    carriers = [d for d in arrived if owed & part.carried(d.number)]
    if carriers and part.source != rank:
        last = carriers[-1]
        return finding(last.number, f": it comes with {last}, but is not put there")
    reason = "no message brings it" if part.source != rank else "its own part is lost"
    return finding(arrived[-1].number, f": {reason}; the last to arrive is {arrived[-1]}")


def _extra(seen: Watched, rank: int, source: int, wanted: np.ndarray, where: np.ndarray) -> Finding:
    held = seen.states[rank][-1].held
    first = int(np.flatnonzero(where)[0])
    since = next(s.message for s in seen.states[rank] if (s.held > wanted + 0.5)[first])
    count, owed = int(round(float(held[first]))), int(round(float(wanted[first])))
    times = {2: " twice"}.get(count, f" {count} times") if owed else ", which does not belong there,"
    why = f", since {_told(seen, since)}" if since else ", before any message"
    return Finding(since, rank, "has", source, _elements(where), times, why)


def _from_nobody(submission: Submission, case: Case, nothing: Watched) -> list[str]:
    """With zeros from everybody, all must be zero; anything else is memory that was never written."""
    found = []
    wanted = expected_results(submission, case, impulse_inputs(submission, case, None))
    for rank in range(case.p):
        if wanted[rank] is None:
            continue
        wrong = nothing.states[rank][-1].held != wanted[rank]
        if wrong.any():
            found.append(
                f"rank {rank} holds what nobody put in, in {_elements(wrong)}: they were never written, or "
                "come from scratch memory that was not filled"
            )
    return found


def _misplaced(submission: Submission, case: Case) -> list[str]:
    """All parts are there as often as they must; tell which stand in the wrong place."""
    for source in range(case.p):
        inputs = impulse_inputs(submission, case, source, places=True)
        seen, wanted = run_trial(submission, case, inputs), expected_results(submission, case, inputs)
        for rank in range(case.p):
            expected = wanted[rank]
            if expected is None:
                continue
            held = seen.states[rank][-1].held
            wrong = np.flatnonzero(held != expected)
            if len(wrong):
                i = int(wrong[0])
                return [
                    f"rank {rank} has rank {source}'s element {int(held[i]) - 1} where its element "
                    f"{int(expected[i]) - 1} belongs, in element {i}; {len(wrong)} elements are misplaced"
                ]
    return []


def changed_in_flight(deliveries: Sequence[Delivery]) -> list[str]:
    """Tell the messages whose buffers were written to before they had left."""
    return [
        f"{d}: the sender changed the buffer before its send was waited for, and rank {d.to} got the new values"
        for d in deliveries
        if d.changed
    ][:SHOWN]


def _told(seen: Watched, number: int) -> str:
    return str(seen.deliveries[number - 1]) if number else "the start"


def _elements(where: np.ndarray) -> str:
    """Write the true places as ranges: elements 0-3, 8."""
    places = np.flatnonzero(where)
    breaks = np.flatnonzero(np.diff(places) > 1)
    starts, ends = [0, *(breaks + 1)], [*breaks, len(places) - 1]
    ranges = [
        f"{places[a]}" if a == b else f"{places[a]}-{places[b]}" for a, b in zip(starts, ends, strict=True)
    ]
    shown = ", ".join(ranges[:6]) + (f" and {len(ranges) - 6} more ranges" if len(ranges) > 6 else "")
    return f"element{'s' if len(places) > 1 else ''} {shown}"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"
