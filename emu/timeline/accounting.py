"""The accounting of a step, seen from a rank's default stream; its parts sum to the step exactly.

While the default stream runs a kernel the time is computation (the launch before it: launch gap, as is that of a
library's collective), while it runs a copy, copies. While it is blocked, the time belongs to what the stream that it
waits for does: a collective or message whose other ranks have not all come is waiting for slower ranks, after that
it is exposed communication of the slowest link class on its ways; kernels and copies of that other stream are
computation and copies. What is blocked while its own rank is paused, or while a link on its messages' ways is
down, is stalled. What waits inside a span called `pipeline …` for a message that its peer has not posted yet is the
pipeline's bubble, as is a rank's idle time in such a step. The rest is idle.

Why the sum is exact: inside a step every boundary is taken relative to the step's start and rounded to the
last bit of the step's length, a power of two. Parts are then whole multiples of that bit below 2^53, so any
float sum of them, in any order, is exact, and neighbours that share a boundary leave nothing out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from emu.timeline.links import busy_intervals
from emu.timeline.meetings import Meetings
from emu.timeline.tiling import (
    CAUSES,
    GAP,
    LINK_CLASSES,
    Cause,
    Pieces,
    Tiling,
    clip,
    follow,
    join,
    tile,
)
from emu.timeline.views import RankView, StreamView
from emu.trace import Op

PART_NAMES = {
    "compute_s": Cause.COMPUTE,
    "launch_gap_s": Cause.LAUNCH,
    "copy_s": Cause.COPY,
    "exposed_communication_s": Cause.EXPOSED,
    "straggler_wait_s": Cause.STRAGGLER,
    "stall_s": Cause.STALL,
    "bubble_s": Cause.BUBBLE,
    "idle_s": Cause.IDLE,
}

# What a row is before its middle and after it, by operation, where nobody has to be met.
_FIRST = np.full(256, Cause.LAUNCH, dtype=np.int32)
_SECOND = np.full(256, Cause.IDLE, dtype=np.int32)
_SECOND[[Op.COMPUTE, Op.ELAPSED]] = Cause.COMPUTE
_SECOND[Op.COPY] = Cause.COPY

_NO_STALLS = np.empty((0, 2))
_BLOCKED = (Cause.STRAGGLER, Cause.BUBBLE, Cause.IDLE)


@dataclass(frozen=True)
class Windows:
    """The steps of a timeline: `[start_s[k], end_s[k]]`, the same for all ranks, and each step's index."""

    start_s: np.ndarray
    end_s: np.ndarray
    index: np.ndarray
    whole_run: bool = False

    @property
    def length_s(self) -> np.ndarray:
        """Length of each step."""
        return self.end_s - self.start_s


def windows(views: list[RankView], end_s: float) -> Windows:
    """Find the steps: step k ends when its last rank ends it, and starts when the one before has ended.

    Time between two steps, when no rank has begun the next, is in neither. A trace without step spans is one
    step from 0 to its end.
    """
    steps = [view.steps for view in views]
    if not any(len(s) for s in steps):
        return Windows(np.zeros(1), np.array([end_s]), np.array([-1]), whole_run=True)
    unique = all((np.diff(s["index"]) > 0).all() and (s["index"] >= 0).all() for s in steps)
    numbers = np.concatenate([s["index"] if unique else np.arange(len(s)) for s in steps])
    every = np.concatenate(steps)
    index, where = np.unique(numbers, return_inverse=True)
    begin, end = np.full(len(index), np.inf), np.zeros(len(index))
    np.minimum.at(begin, where, every["start_s"])
    np.maximum.at(end, where, every["end_s"])
    end = np.maximum.accumulate(end)
    start = np.maximum(begin, np.append(0.0, end[:-1]))
    return Windows(np.minimum(start, end), end, index)


def account(
    view: RankView,
    meetings: Mapping[int, Meetings],
    steps: Windows,
    stalls: np.ndarray = _NO_STALLS,
    pipeline_labels: np.ndarray | None = None,
) -> np.ndarray:
    """Return seconds by (step, cause) of one rank; each row sums to the step's length exactly.

    `stalls` are intervals (start_s, end_s), sorted and disjoint, in which the rank's messages stood still.
    """
    horizon_s = float(steps.end_s[-1])
    if len(view.spans):
        horizon_s = max(horizon_s, float(view.spans["end_s"].max()))
    pipelines = _pipelines(view, pipeline_labels)
    pieces = default_pieces(view, meetings, horizon_s, pipelines)
    if len(stalls):
        pieces = _mark(pieces, stalls, pieces.causes >= Cause.EXPOSED, Cause.STALL)
    if len(view.pauses) and len(view.spans):
        # Once the rank has ended, nothing of it is paused any more.
        paused = np.minimum(view.pauses, float(view.spans["end_s"].max()))
        blocked = (pieces.causes >= Cause.EXPOSED) | np.isin(pieces.causes, _BLOCKED)
        pieces = _mark(pieces, paused, blocked, Cause.STALL)
    spent = spend(pieces, steps)
    if len(pipelines):
        last_begun = np.searchsorted(pipelines[:, 0], steps.end_s, side="left") - 1
        piped = (last_begun >= 0) & (pipelines[last_begun, 1] > steps.start_s)
        spent[piped, Cause.BUBBLE] += spent[piped, Cause.IDLE]
        spent[piped, Cause.IDLE] = 0.0
    return spent


def default_pieces(view: RankView, meetings: Mapping[int, Meetings], horizon_s: float, pipelines: np.ndarray) -> Pieces:
    """Return what the default stream's time went to, from 0 to the horizon, in any order."""
    tilings = {
        number: stream_tiling(view, stream, meetings[number], horizon_s, pipelines)
        for number, stream in view.streams.items()
    }
    default = tilings.pop(0, None)
    if default is None:
        default = Tiling(np.array([0.0, horizon_s]), np.array([GAP]))
    pieces = Pieces(default.starts, default.ends, _gaps_follow(default, tilings))
    for _ in range(len(tilings) + 1):
        unknown = pieces.causes < 0
        if not unknown.any():
            break
        parts = [pieces.where(~unknown)]
        for code in np.unique(pieces.causes[unknown]).tolist():
            waiting = pieces.where(pieces.causes == code)
            other = tilings.get(-2 - code)
            if other is None:
                parts.append(Pieces(waiting.starts, waiting.ends, np.full(len(waiting.starts), Cause.IDLE)))
            else:
                order = np.argsort(waiting.starts, kind="stable")
                parts.append(clip(other, waiting.starts[order], waiting.ends[order])[0])
        pieces = join(parts)
    return Pieces(pieces.starts, pieces.ends, np.where(pieces.causes < 0, Cause.IDLE, pieces.causes))


def stream_tiling(view: RankView, stream: StreamView, met: Meetings, horizon_s: float, pipelines: np.ndarray) -> Tiling:
    """Return what one stream does from 0 to the horizon."""
    spans = view.spans[stream.items]
    starts, ends, op = spans["start_s"], spans["end_s"], spans["op"]
    first, second = _FIRST[op], _SECOND[op]
    middles = np.minimum(starts + spans["launch_s"], ends)
    meeting = np.flatnonzero(stream.whole | (op == Op.WAIT))
    middles[meeting] = np.clip(met.met_s[meeting], starts[meeting], ends[meeting])
    first[meeting] = Cause.STRAGGLER
    second[meeting] = Cause.EXPOSED + met.link_class[meeting]
    if len(pipelines):
        waits = np.flatnonzero(op == Op.WAIT)
        within = np.searchsorted(pipelines[:, 0], starts[waits], side="right") - 1
        piped = (within >= 0) & (ends[waits] <= pipelines[within, 1])
        first[waits[piped]] = Cause.BUBBLE
    awaits = op == Op.AWAIT
    if awaits.any():
        second[awaits] = follow(_awaited_streams(view, spans["row"][awaits]))
    waited = [(met.flap == flap, down) for flap, down in enumerate(met.down)]
    stalled = [(middles[at], ends[at], down) for at, down in waited if at.any()]
    # What comes before an item has a piece of its own: what sends cost the stream, then the launch of a collective.
    sends = np.flatnonzero(met.before != GAP)
    calls = np.flatnonzero(stream.whole & (spans["launch_s"] > 0.0))
    if len(sends) or len(calls):
        launched = np.minimum(starts[calls] + spans["launch_s"][calls], ends[calls])
        leads = np.concatenate([met.lead_s[sends], starts[calls]])
        until = np.concatenate([starts[sends], launched])
        causes = np.concatenate([met.before[sends], np.full(len(calls), Cause.LAUNCH)])
        starts, middles = starts.copy(), middles.copy()
        starts[calls], middles[calls] = launched, np.maximum(middles[calls], launched)
        at = np.concatenate([sends, calls])
        ends = np.insert(ends, at, until)
        starts, middles = np.insert(starts, at, leads), np.insert(middles, at, leads)
        first, second = np.insert(first, at, Cause.IDLE), np.insert(second, at, causes)
    tiling = tile(starts, middles, ends, first, second, horizon_s)
    for begin, end, down in stalled:
        tiling = _interrupt(tiling, begin, end, down)
    return tiling


def _interrupt(tiling: Tiling, begin: np.ndarray, end: np.ndarray, down: np.ndarray) -> Tiling:
    """Call stalled what a tiling has of communication between `begin` and `end` while its link is down."""
    up_to = tiling.bounds[-1]
    n = len(down)
    silent, _ = clip(tile(down[:, 0], down[:, 0], down[:, 1], np.zeros(n), np.full(n, Cause.STALL), np.inf), begin, end)
    starts, ends = (side[silent.causes == Cause.STALL] for side in (silent.starts, silent.ends))
    n = len(starts)
    stalls = tile(starts, starts, ends, np.zeros(n), np.full(n, Cause.STALL), up_to)
    cut, owner = clip(stalls, tiling.starts, tiling.ends)
    stalled = (cut.causes == Cause.STALL) & (tiling.causes[owner] >= Cause.EXPOSED)
    return Tiling(np.append(cut.starts, up_to), np.where(stalled, Cause.STALL, tiling.causes[owner]))


def _awaited_streams(view: RankView, rows: np.ndarray) -> np.ndarray:
    """Return the stream on which the event of each AWAIT row was recorded."""
    records = np.flatnonzero(view.rows["op"] == Op.RECORD)
    event = np.searchsorted(records, rows) - view.rows["a"][rows]
    return view.rows["stream"][records[event]].astype(np.int32)


def _gaps_follow(default: Tiling, others: Mapping[int, Tiling]) -> np.ndarray:
    """Let each gap of the default stream follow the stream that works until its end: SYNC waited for that."""
    causes = default.causes.copy()
    gaps = np.flatnonzero(causes == GAP)
    starts, ends = default.starts[gaps], default.ends[gaps]
    latest, target = starts.copy(), np.full(len(gaps), GAP)
    for number, other in others.items():
        busy = other.causes != GAP
        begun = np.searchsorted(other.starts[busy], ends, side="left") - 1
        until = np.minimum(np.append(other.ends[busy], -np.inf)[begun], ends)
        later = (begun >= 0) & (until > latest)
        latest[later], target[later] = until[later], follow(number)
    causes[gaps] = np.where(target == GAP, Cause.IDLE, target)
    return causes


def _pipelines(view: RankView, labels: np.ndarray | None) -> np.ndarray:
    """Return the intervals (start_s, end_s) of the rank's pipeline spans, sorted and disjoint."""
    if labels is None or not len(labels):
        return np.empty((0, 2))
    spans = view.spans[(view.spans["op"] == Op.BEGIN) & np.isin(view.spans["label"], labels)]
    spans = spans[np.argsort(spans["start_s"], kind="stable")]
    return np.stack(busy_intervals(spans["start_s"], spans["end_s"]), axis=1)


def _mark(pieces: Pieces, intervals: np.ndarray, where: np.ndarray, cause: int) -> Pieces:
    """Give `cause` to the parts of the pieces under `where` that lie in the intervals."""
    chosen = pieces.where(where)
    n = len(intervals)
    inside = tile(intervals[:, 0], intervals[:, 0], intervals[:, 1], np.zeros(n), np.full(n, cause), np.inf)
    order = np.argsort(chosen.starts, kind="stable")
    cut, owner = clip(inside, chosen.starts[order], chosen.ends[order])
    causes = np.where(cut.causes == cause, cause, chosen.causes[order][owner])
    return join([pieces.where(~where), Pieces(cut.starts, cut.ends, causes)])


def spend(pieces: Pieces, steps: Windows) -> np.ndarray:
    """Return seconds by (step, cause) of disjoint pieces; what lies outside of the steps is left out."""
    count = len(steps.start_s)
    n = count * CAUSES
    tiling = tile(
        steps.start_s, steps.start_s, steps.end_s, np.zeros(count), np.arange(count),
        max(float(steps.end_s[-1]), float(pieces.ends.max(initial=0.0))),
    )  # fmt: skip
    order = np.argsort(pieces.starts, kind="stable")
    cut, owner = clip(tiling, pieces.starts[order], pieces.ends[order])
    kept = cut.causes >= 0
    step, cause = cut.causes[kept], pieces.causes[order][owner][kept]
    bit = np.spacing(steps.length_s)
    ticks = _ticks(cut.ends[kept], step, steps, bit) - _ticks(cut.starts[kept], step, steps, bit)
    spent = np.bincount(step * CAUSES + cause, weights=ticks, minlength=n).reshape(count, CAUSES)
    return spent * bit[:, None]


def _ticks(at: np.ndarray, step: np.ndarray, steps: Windows, bit: np.ndarray) -> np.ndarray:
    """Return times relative to their step's start, in its last bits, as whole numbers."""
    return np.rint((at - steps.start_s[step]) / bit[step])


def parts(spent: np.ndarray) -> dict:
    """Name the seconds of one row: `time_s` and the parts that sum to it."""
    by_link = {name: float(spent[Cause.EXPOSED + k]) for k, name in enumerate(LINK_CLASSES)}
    named = {name: float(spent[cause]) for name, cause in PART_NAMES.items()}
    named["exposed_communication_s"] = float(sum(by_link.values()))
    shown = {name: value for name, value in by_link.items() if name != "other" or value}
    return {"time_s": float(sum(named.values())), **named, "exposed_by_link": shown}


def mean(spent: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis, rounded so that float sums of its parts stay exact."""
    average = spent.mean(axis=0)
    total = float(average.sum())
    if total == 0.0:
        return average
    bit = 4 * np.spacing(total)
    return np.rint(average / bit) * bit
