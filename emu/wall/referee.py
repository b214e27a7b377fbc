"""The referee: who may go on, and when. It knows the engine and no sockets; `agent` carries what it says.

A stream of a rank either works (it may post something at any moment, no earlier than its own time) or has asked
how long its last operation takes. Emulated time advances as far as nobody who works could still change it. So every
answer is final, and most are given long before their time has come.

Emulated time_s stands for `origin_s + dilation * time_s` on the hosts' clock. A message that its program sends or
receives late moves the origin by its lateness, for everyone and for good: after that no message is through sooner
than its link allows, by whatever watch. Inside a collective nothing can be measured, so there a rank that woke up
late is not late for ever: the collective's own messages keep their times.
"""

from __future__ import annotations

import math
import pickle
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from emu.comm.wire import Call, compare
from emu.engine.live import Live
from emu.engine.questions import Question
from emu.errors import DeadlockError, EmuError, RankError
from emu.trace import ROW_FORMAT, Op
from emu.wall import frames as F
from emu.wall.governor import Governor

Tell = Callable[[bytes], None]
_NOTHING = struct.pack(ROW_FORMAT, Op.ELAPSED, 0, 0, 0, 0, 0, 0, 0.0)  # a row that takes no time


@dataclass(eq=False)
class Lane:
    """One stream of one rank, as the referee sees it."""

    rank: int
    stream: int
    number: int = -1  # in the engine
    tell: Tell | None = None  # the connection
    queue: deque[F.Said] = field(default_factory=deque)
    jobs: int = 0  # pieces of work it has been given and has not done; the host's own stream always has one
    granted: deque[float] = field(default_factory=deque)  # when those that it has not begun were given
    not_before_s: float = 0.0
    asked: F.Said | None = None
    question: Question | None = None  # about its messages, while it waits for the answer
    stamped_s: float = 0.0  # its time when its program last came to something
    parked: str = ""  # what else than the engine it waits for

    @property
    def at_work(self) -> bool:
        """Whether its program goes on, and does not wait for an answer."""
        return not self.parked and self.asked is None and self.question is None

    @property
    def who(self) -> str:
        return f"rank {self.rank}" + (f" (stream {self.stream})" if self.stream else "")


@dataclass
class Meeting:
    """An exchange of values: who has come, with what."""

    members: tuple[int, ...]
    came: dict[int, tuple[Lane, bytes, int]] = field(default_factory=dict)


class Referee:
    """Feeds the engine what ranks say, and answers them. Call `settle` after one or more `hear`."""

    def __init__(self, model: Live, ranks: int, dilation: float, governor: Governor | None = None) -> None:
        self.model = model
        self.ranks = ranks
        self.dilation = dilation
        self.governor = governor  # adapts the dilation to what the hosts can do
        self.origin_s: float | None = None  # host time of emulated time 0; known when all ranks have begun
        self.stood_still_s = 0.0
        self.lanes: dict[tuple[int, int], Lane] = {}
        self.events: dict[tuple[int, int], float] = {}
        self.waiting: dict[tuple[int, int], list[Lane]] = {}
        self.meetings: dict[Any, Meeting] = {}
        self.calls: dict[Any, dict[int, Call]] = {}
        self.ended: set[int] = set()
        self.failure: EmuError | None = None
        self._hosts = 0

    # What is heard

    def join(self, rank: int, stream: int, tell: Tell) -> Lane:
        """Give a stream its lane. All ranks' first streams must have joined before time begins."""
        lane = self._lane(rank, stream)
        lane.tell = tell
        if stream == 0:
            lane.jobs = 1
            self._hosts += 1
        if self.failure is not None:
            self._tell_failure(lane)
        return lane

    def hear(self, lane: Lane, said: F.Said) -> None:
        """Take in what one stream says."""
        if said.kind == F.FAILED:
            self.fail(pickle.loads(said.payload))
        elif said.kind == F.LATE:
            if self.governor is not None:
                self._pace(self.governor.take(said.number / F.OWN_UNIT, said.stamp, self.dilation))
        else:
            lane.queue.append(said)

    def leave(self, lane: Lane) -> None:
        """Take note that a connection has closed. A rank that goes without a word has died."""
        lane.tell = None
        if lane.stream == 0 and lane.rank not in self.ended:
            self.ended.add(lane.rank)
            self.fail(RankError(f"rank {lane.rank}: every rank must reach its end, got one whose process has died"))

    def fail(self, error: EmuError) -> None:
        """End the run for all: every stream gets the error instead of its next answer."""
        if self.failure is None:
            self.failure = error
            for lane in self.lanes.values():
                self._tell_failure(lane)

    # What follows

    def settle(self) -> None:
        """Go on as far as possible and answer whom it can."""
        if self.failure is not None or self._hosts < self.ranks:
            return
        try:
            while self._take_all() | self._advance():
                pass
            self._check_stuck()
        except EmuError as error:
            self.fail(error)

    def _lane(self, rank: int, stream: int) -> Lane:
        lane = self.lanes.get((rank, stream))
        if lane is None:
            lane = self.lanes[rank, stream] = Lane(rank, stream)
        return lane

    def _take_all(self) -> bool:
        moved = False
        for lane in tuple(self.lanes.values()):
            while lane.queue and lane.at_work and self._take(lane, lane.queue[0]):
                lane.queue.popleft()
                moved = True
        return moved

    def _take(self, lane: Lane, said: F.Said) -> bool:
        """Take the first of what a stream has said, unless its time has not come yet."""
        kind = said.kind
        if kind == F.ENTER:
            return self._enter(lane, said)
        if kind == F.ASK:
            lane.asked = said
            return True
        if kind == F.ROWS:
            if said.stamp:
                self._stand_still(lane, said.stamp)
            self.model.extend(lane.rank, lane.stream, said.payload, lane.not_before_s)
            lane.number = self.model.lane(lane.rank, lane.stream)
            return True
        if kind == F.START:
            if not lane.granted:
                return False
            lane.not_before_s = max(lane.not_before_s, lane.granted.popleft())
            return True
        if not self.model.dry(lane.number):
            return False
        return self._take_dry(lane, said)

    def _take_dry(self, lane: Lane, said: F.Said) -> bool:
        """Take what counts from the moment at which the stream has done all before it."""
        kind = said.kind
        if said.stamp and kind != F.LOOK:
            self._stand_still(lane, said.stamp)
        time_s = self._time_s(lane)
        if kind == F.RECORD:
            event = (lane.rank, said.number)
            self.events[event] = time_s
            for other in self.waiting.pop(event, ()):
                other.parked = ""
                self._hold(other, time_s)
        elif kind == F.AWAIT:
            event = (lane.rank, said.number)
            if event in self.events:
                self._hold(lane, self.events[event])
            else:
                lane.parked = "an event of another stream"
                self.waiting.setdefault(event, []).append(lane)
        elif kind == F.JOB:
            other = self._lane(lane.rank, said.number)
            other.jobs += 1
            other.granted.append(time_s)
        elif kind == F.DONE:
            lane.jobs -= 1
        elif kind == F.LOOK:
            self._look(lane, said)
        elif kind == F.EXCHANGE:
            self._exchange(lane, said)
        elif kind == F.BYE:
            lane.jobs = 0
            self.ended.add(lane.rank)
        return True

    def _advance(self) -> bool:
        """Let the engine go on to the earliest time of a stream that works; answer those whose time is known."""
        model, dry = self.model, self.model.dry
        working = [lane for lane in self.lanes.values() if lane.jobs > 0 and not lane.parked]
        watched = [lane.number for lane in working if lane.number >= 0]
        probing = [lane.rank for lane in working if lane.question is not None and lane.question.probe is not None]
        moved = False
        while True:
            bound_s = min([self._bound_s(lane) for lane in working if dry(lane.number)], default=math.inf)
            before = model.now_s
            early = model.advance(bound_s, watched, probing)
            answered = False
            for lane in working:
                if (lane.asked is not None or lane.question is not None) and dry(lane.number) and self._settled(lane):
                    self._answer(lane)
                    answered = True
            on = answered or model.now_s != before
            moved = moved or on
            if not (on or early) or any([lane.queue for lane in working]):
                return moved

    def _bound_s(self, lane: Lane) -> float:
        """Return the earliest time at which a dry stream goes on."""
        if lane.question is None:
            return self._time_s(lane)
        return self.model.answer_time_s(lane.number, lane.question)

    def _settled(self, lane: Lane) -> bool:
        """Tell whether nothing can change the answer to what a dry stream asks any more."""
        return lane.question is None or self.model.answer_time_s(lane.number, lane.question) < self.model.settled_s

    def _idle(self, lane: Lane) -> bool:
        return self.model.dry(lane.number)

    def _time_s(self, lane: Lane) -> float:
        return max(self.model.time_s(lane.number), lane.not_before_s)

    def _hold(self, lane: Lane, time_s: float) -> None:
        lane.not_before_s = max(lane.not_before_s, time_s)
        if lane.number >= 0 and self.model.dry(lane.number):
            self.model.hold(lane.number, time_s)

    def _at(self, stamp: float) -> float:
        """Return the emulated time of a moment on the host's clock."""
        return (stamp - self.origin_s) / self.dilation if self.origin_s is not None else 0.0

    def _stand_still(self, lane: Lane, stamp: float) -> None:
        """Move the origin if the program came to an operation later than its emulated time."""
        if not self.model.steady(lane.number):
            return
        time_s = self._time_s(lane)
        began = stamp - self.dilation * time_s
        if self.origin_s is None or began > self.origin_s:
            late_s = began - self.origin_s if self.origin_s is not None else 0.0
            self.origin_s = began
            if time_s > 0 or self.model.now_s > 0:  # before, time has not begun
                self.stood_still_s += late_s
                if self.governor is not None:
                    self._pace(self.governor.stand(time_s - lane.stamped_s, late_s, self.dilation))
        lane.stamped_s = time_s

    def _pace(self, wanted: float) -> None:
        """Change the dilation if another is wanted."""
        if self.origin_s is not None and wanted != self.dilation:
            latest_s = max(self._time_s(lane) for lane in self.lanes.values())
            self.origin_s += (self.dilation - wanted) * latest_s  # what was promised so far stays
            self.dilation = wanted

    def _answer(self, lane: Lane) -> None:
        if lane.question is not None:
            time_s = self.model.answer_time_s(lane.number, lane.question)
            found = self.model.answer(lane.number, lane.question, time_s)
            lane.question = None
            self._hold(lane, time_s)
            self._tell(lane, self._told(time_s, 0, pickle.dumps(found)))
            return
        asked, lane.asked = lane.asked, None
        payload = b""
        if asked is not None and asked.payload:
            payload = pickle.dumps(self.model.peers(lane.number, pickle.loads(asked.payload)))
        self._tell(lane, self._told(self._time_s(lane), 0, payload))

    @staticmethod
    def _tell(lane: Lane, frame: bytes) -> None:
        if lane.tell is not None:
            lane.tell(frame)

    def _told(self, time_s: float, number: int, payload: bytes) -> bytes:
        origin_s = self.origin_s or 0.0
        return F.Told(F.ANSWER, time_s, origin_s, self.dilation, self.stood_still_s, number, payload).frame()

    # Questions, values and agreement

    def _look(self, lane: Lane, said: F.Said) -> None:
        """Take a question about messages; what is asked for a moment is not answered before it has come."""
        requests, need, probe = pickle.loads(said.payload)
        deadline_s = math.inf
        if said.stamp:
            self._hold(lane, self._at(said.stamp))
            deadline_s = self._time_s(lane)
        if lane.number < 0:
            self.model.extend(lane.rank, lane.stream, _NOTHING, lane.not_before_s)
            lane.number = self.model.lane(lane.rank, lane.stream)
            self.model.advance(0.0, [lane.number], [])
        lane.question = Question(lane.rank, lane.stream, requests, need, probe, deadline_s)

    def _exchange(self, lane: Lane, said: F.Said) -> None:
        key, members, value = pickle.loads(said.payload)
        meeting = self.meetings.setdefault(key, Meeting(members))
        meeting.came[lane.rank] = (lane, value, said.number)
        lane.parked = "an exchange of values with all ranks of its communicator"
        if len(meeting.came) < len(members):
            return
        del self.meetings[key]
        time_s = max(self._time_s(each) for each, _, _ in meeting.came.values())
        payload = pickle.dumps([meeting.came[rank][1] for rank in members])
        for each, _, number in meeting.came.values():
            each.parked = ""
            self._hold(each, time_s)
            self._tell(each, self._told(time_s, number, payload))

    def _enter(self, lane: Lane, said: F.Said) -> bool:
        """Note when the program came here. Compare a collective call with the others'; nobody waits for that."""
        self._stand_still(lane, said.stamp)
        if not said.payload:
            return True
        key, size, call = pickle.loads(said.payload)
        calls = self.calls.setdefault(key, {})
        calls[lane.rank] = call
        if len(calls) > 1:
            compare(calls)
        if len(calls) == size:
            del self.calls[key]
        return True

    # Ends

    def _check_stuck(self) -> None:
        """Raise if every stream that has something to do waits, and nothing can happen any more."""
        living = [lane for lane in self.lanes.values() if lane.jobs > 0]
        if not living:
            return
        for lane in living:
            if lane.at_work and not lane.queue or lane.asked is not None and self._idle(lane):
                return
        dead = sorted({lane.rank for lane in living if self.model.dead(lane.number)})
        waits = "; ".join(self._waits(lane) for lane in living if lane.rank not in dead)
        if dead:
            gone = ", ".join(f"rank {rank}" for rank in dead)
            raise RankError(f"{gone} died, as the cluster's faults declare; {waits or 'nobody else is left'}")
        raise DeadlockError(
            f"deadlock: every rank must be able to go on, got {waits}; post receives before waiting for sends"
        )

    @staticmethod
    def _waits(lane: Lane) -> str:
        return f"{lane.who} waits for {lane.parked or 'messages that nobody sends or receives'}"

    def _tell_failure(self, lane: Lane) -> None:
        self._tell(lane, F.Told(F.ERROR, payload=pickle.dumps(self.failure)).frame())
