"""An engine beside a program that runs live: fed row by row, advanced as far as no rank can change what happens.

A lane that has no more rows is dry; the earliest time at which its next row can begin bounds how far others may go.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import numpy as np

from emu.engine import layout as L
from emu.engine.questions import Answer, Question, answer, answer_time_s
from emu.engine.resolve import Engine
from emu.trace import ROW, ROW_FORMAT

if TYPE_CHECKING:
    from emu.cluster import Cluster

_rows = struct.Struct(ROW_FORMAT).iter_unpack
_PLAIN = (L.COMPUTE, L.ELAPSED, L.SEND, L.RECV, L.WAIT)
_STEADY = (L.ENDED, L.TIMED, L.READY)


class Live:
    """One engine, with its lanes by (rank, stream)."""

    def __init__(self, cluster: Cluster, ranks: int, profile: str) -> None:
        self._engine = Engine(cluster, ranks, profile=profile, detail="totals", any_source=True)
        self._state = self._engine._state
        self._program = self._engine._program
        self._of = self._program.lane_of
        self._known: set[tuple[int, int, int, int]] = set()  # (operation, me, peer, way) whose route is looked up
        self._watched: list[int] = []
        self._probing: list[int] = []
        self._look()
        self.settled_s = 0.0  # before this nothing can happen any more

    def warm(self) -> None:
        """Load the compiled code before time begins."""
        self._engine.run()

    def extend(self, rank: int, stream: int, rows: bytes, not_before_s: float) -> None:
        """Add rows of one lane, none of which begins before `not_before_s`."""
        made = np.frombuffer(rows, dtype=ROW)
        if self._is_plain(rank, stream, rows):
            number = self._of[rank, stream]
            self._program.extend_lane(rank, stream, made)
        else:
            self._engine.extend(rank, made)
            number = self._of[rank, stream]
            self._look()
        if self._times[number] < not_before_s:
            self._times[number] = not_before_s

    def _is_plain(self, rank: int, stream: int, rows: bytes) -> bool:
        """Tell whether the engine knows the lane and all routes of these rows, and they need no numbers."""
        if (rank, stream) not in self._of or self._program.needs_numbers(rank):
            return False
        plain = True
        for op, _, flag, peer, tag, _, _, _ in _rows(rows):
            if op == L.SEND or op == L.RECV:
                if stream and not flag & L.COLLECTIVE:
                    return False
                key = (op, rank, peer, tag >> L.WAY_SHIFT if flag & L.COLLECTIVE else 0)
                if key not in self._known:
                    self._known.add(key)
                    plain = False
            elif op not in _PLAIN:
                return False
        return plain

    def _look(self) -> None:
        """Take new views of what the engine may have moved in memory."""
        lanes = self._state[L.T_LANE]
        self._states, self._times, self._asks = lanes["state"], lanes["time"], lanes["asks"]
        self._probes = self._state[L.T_RANK]["probes"]

    def lane(self, rank: int, stream: int) -> int:
        """Return the engine's number of a lane, or -1 before its first row."""
        return self._of.get((rank, stream), -1)

    def dry(self, lane: int) -> bool:
        """Tell whether a lane has done all of its rows."""
        return lane < 0 or self._states[lane] == L.ENDED

    def dead(self, lane: int) -> bool:
        """Tell whether the lane's rank has died, as the cluster's faults declare."""
        return lane >= 0 and self._states[lane] == L.DEAD

    def steady(self, lane: int) -> bool:
        """Tell whether the lane's own time is known: it waits for no message and no copy."""
        return lane < 0 or self._states[lane] in _STEADY

    def time_s(self, lane: int) -> float:
        """Return the lane's own time."""
        return float(self._times[lane]) if lane >= 0 else 0.0

    def hold(self, lane: int, not_before_s: float) -> None:
        """Let a dry lane's next row begin no earlier than this."""
        if self._times[lane] < not_before_s:
            self._times[lane] = not_before_s

    @property
    def now_s(self) -> float:
        """How far the engine has come."""
        return self._engine.now_s

    def advance(self, bound_s: float, watched: list[int], probing: list[int]) -> bool:
        """Go on to `bound_s`, this instant included, or until a watched lane is dry or has a message earlier.

        `probing` are ranks that wait for a message's announcement. Return whether it stopped before the bound.
        """
        self._watch(watched, probing)
        real = self._state.real
        asked = real[L.HORIZON] = math.nextafter(bound_s, math.inf)
        if self._engine.run() == L.IDLE:
            self.settled_s = math.inf
            return False
        self.settled_s = float(real[L.HORIZON])
        return self.settled_s < asked

    def _watch(self, watched: list[int], probing: list[int]) -> None:
        if watched != self._watched:
            self._asks[:] = 0
            self._asks[watched] = 1
            self._watched = watched
        if probing != self._probing:
            self._probes[:] = 0
            self._probes[probing] = 1
            self._probing = probing

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
