"""Questions of running programs: what can be asked, and when an answer can't change any more.

A rank that asks is suspended; so are all others, each at a question of its own or at its end. The engine
advances until nothing that is still unknown can change the earliest answer, gives that one answer, and the
rank that got it runs on. Asking is a wait of the rank's host on one stream: rows that the rank adds after
the answer must not start before it on any stream, which a SYNC row (a = 1: that stream alone) says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emu.engine import layout as L
from emu.engine.state import State


@dataclass(frozen=True)
class Question:
    """What a rank wants to know, once its stream has come to the end of its rows.

    `requests` counts back from the stream's newest request (1). `need` of them must be complete before the
    answer: 0 asks what is so now (the time, Test), 1 waits for any, their number for all. `probe` waits for
    the envelope of a message instead, (source, tag, context), -1 for any. No answer comes later than
    `deadline_s`.
    """

    rank: int
    stream: int = 0
    requests: tuple[int, ...] = ()
    need: int = 0
    probe: tuple[int, int, int] | None = None
    deadline_s: float = math.inf


@dataclass(frozen=True)
class Answer:
    """What was so at `time_s`: which of the question's requests were complete, where their messages came from.

    For a probe, `sources`, `tags` and `sizes` hold the one message that was found; empty: none.
    """

    time_s: float
    done: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()
    tags: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


def answer_time_s(state: State, lane: np.void, question: Question) -> float:
    """Return when the question can be answered by what is known, infinity if it can't be yet."""
    if lane["state"] != L.ENDED:
        return math.inf
    time = float(lane["time"])
    latest = max(time, question.deadline_s)
    if question.probe is not None:
        m = _find_near(state, question)
        return latest if m is None else min(latest, max(time, -float(state[L.T_MSG][m]["envelope"])))
    if question.need == 0:
        return time
    known = sorted(t for t in _completions(state, lane, question.requests) if t < math.inf)
    if len(known) < question.need:
        return latest
    return min(latest, max(time, known[question.need - 1]))


def answer(state: State, lane: np.void, question: Question, time_s: float) -> Answer:
    """Return the answer at `time_s`, when nothing can change it any more."""
    if question.probe is not None:
        m = _find_near(state, question)
        if m is None or -float(state[L.T_MSG][m]["envelope"]) > time_s:
            return Answer(time_s)
        f = state[L.T_MSG][m]
        tag = int(state[L.T_CHANNEL][f["chan"]]["tag"])
        return Answer(time_s, sources=(int(f["src"]),), tags=(tag,), sizes=(int(f["bytes"]),))
    done, sources, tags = [], [], []
    peers = state[L.T_REQUEST_PEER]
    for k, at in enumerate(_completions(state, lane, question.requests)):
        if at <= time_s:
            slot = _slot(lane, question.requests[k])
            done.append(k)
            sources.append(int(peers[2 * slot]))
            tags.append(int(peers[2 * slot + 1]))
    return Answer(time_s, tuple(done), tuple(sources), tuple(tags))


def _slot(lane: np.void, back: int) -> int:
    return int(lane["req_base"]) + ((int(lane["req_no"]) - back) & int(lane["req_mask"]))


def _completions(state: State, lane: np.void, requests: Sequence[int]) -> list[float]:
    done = state[L.T_REQUEST]
    return [float(done[_slot(lane, back)]) for back in requests]


def _find_near(state: State, question: Question) -> int | None:
    """Return the message whose envelope came first of those that the probe means."""
    source, tag, context = question.probe or (-1, -1, 0)
    msg, channel = state[L.T_MSG], state[L.T_CHANNEL]
    m = int(state[L.T_RANK][question.rank]["near_head"])
    while m >= 0:
        c = channel[msg[m]["chan"]]
        if c["stream"] == -1 and c["context"] == context and source in (-1, c["src"]) and tag in (-1, c["tag"]):
            return m
        m = int(msg[m]["near_next"])
    return None
