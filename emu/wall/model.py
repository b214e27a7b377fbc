"""The engine as the wall clock uses it: fed row by row, advanced as far as no rank can change what happens.

A lane that has no more rows is dry; `bound` then is the earliest time at which its next row can begin.
"""

from __future__ import annotations

import math

import numpy as np

from emu.cluster import Cluster
from emu.engine import Engine
from emu.engine import layout as L
from emu.engine.questions import Answer, Question, answer, answer_time_s
from emu.trace import ROW


class Model:
    """One engine, with its lanes by (rank, stream)."""

    def __init__(self, cluster: Cluster, ranks: int, profile: str) -> None:
        self._engine = Engine(cluster, ranks, profile=profile, detail="totals", any_source=True)
        self._state = self._engine._state
        self._of = self._engine._program.lane_of
        self._extend = self._engine.extend
        self.settled_s = 0.0  # before this nothing can happen any more

    def warm(self) -> None:
        """Load the compiled code before time begins."""
        self._engine.run()

    def extend(self, rank: int, stream: int, rows: bytes, not_before_s: float) -> None:
        """Add rows of one lane, none of which begins before `not_before_s`."""
        made = np.frombuffer(rows, dtype=ROW)
        self._extend(rank, made)
        lane = self._state[L.T_LANE][self._of[rank, stream]]
        if lane["time"] < not_before_s:
            lane["time"] = not_before_s

    def lane(self, rank: int, stream: int) -> int:
        """Return the engine's number of a lane, or -1 before its first row."""
        return self._of.get((rank, stream), -1)

    def dry(self, lane: int) -> bool:
        """Tell whether a lane has done all of its rows."""
        return lane < 0 or int(self._state[L.T_LANE]["state"][lane]) == L.ENDED

    def dead(self, lane: int) -> bool:
        """Tell whether the lane's rank has died, as the cluster's faults declare."""
        return lane >= 0 and int(self._state[L.T_LANE]["state"][lane]) == L.DEAD

    def steady(self, lane: int) -> bool:
        """Tell whether the lane's own time is known: it waits for no message and no copy."""
        return lane < 0 or int(self._state[L.T_LANE]["state"][lane]) in (L.ENDED, L.TIMED, L.READY)

    def time_s(self, lane: int) -> float:
        """Return the lane's own time."""
        return float(self._state[L.T_LANE]["time"][lane]) if lane >= 0 else 0.0

    def hold(self, lane: int, not_before_s: float) -> None:
        """Let a dry lane's next row begin no earlier than this."""
        times = self._state[L.T_LANE]["time"]
        times[lane] = max(times[lane], not_before_s)

    @property
    def now_s(self) -> float:
        """How far the engine has come."""
        return self._engine.now_s

    def advance(self, bound_s: float, watched: list[int], probing: list[int]) -> bool:
        """Go on to `bound_s`, this instant included, or until a watched lane is dry or has a message earlier.

        `probing` are ranks that wait for a message's announcement. Return whether it stopped before the bound.
        """
        lanes, real = self._state[L.T_LANE], self._state.real
        lanes["asks"] = 0
        lanes["asks"][watched] = 1
        self._state[L.T_RANK]["probes"] = 0
        self._state[L.T_RANK]["probes"][probing] = 1
        asked = real[L.HORIZON] = math.nextafter(bound_s, math.inf)
        if self._engine.run() == L.IDLE:
            self.settled_s = math.inf
            return False
        self.settled_s = float(real[L.HORIZON])
        return self.settled_s < asked

    def peers(self, lane: int, numbers: list[int]) -> list[tuple[int, int]]:
        """Return (source, tag) of requests that were received from any source."""
        entry = self._state[L.T_LANE][lane]
        places = self._state[L.T_REQUEST_PEER].reshape(-1, 2)
        base, mask = int(entry["req_base"]), int(entry["req_mask"])
        return [(int(a), int(b)) for a, b in (places[base + (number & mask)] for number in numbers)]

    def answer_time_s(self, lane: int, question: Question) -> float:
        """Return when a dry lane's question can be answered, infinity if that is not known yet."""
        return answer_time_s(self._state, self._state[L.T_LANE][lane], question)

    def answer(self, lane: int, question: Question, time_s: float) -> Answer:
        """Answer a question at a time before which nothing can happen any more."""
        return answer(self._state, self._state[L.T_LANE][lane], question, time_s)
