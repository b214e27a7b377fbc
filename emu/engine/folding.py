"""Equal steps are not timed twice.

A trace is fed to the engine step by step. Some way into each step, at a time when nothing is about to happen, all
of the engine's state is compared with the state one step (or a few) earlier; if the two are equal up to a shift in
time, every further equal step only repeats that shift. Those steps are left out, and their spans and flows are put
in as shifted copies afterwards.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from emu.engine import layout as L
from emu.engine.raw import RawTimeline
from emu.engine.state import State
from emu.trace import Trace

if TYPE_CHECKING:
    from emu.engine.resolve import Engine

FEWEST = 5  # equal steps in a row; fewer are as quickly timed
CLOSE = 1e-10  # of a step: times closer than this are equal; a step's times differ by rounding at each place
INTO_STEP = 0.381966  # where in a step to look: at its ends many things happen at once
LONGEST_PERIOD = 4  # steps; uneven ranks that wait for each other may take turns
KEPT = 2  # equal steps timed after those left out, so that what follows meets what it would have met


@dataclass(frozen=True)
class Steps:
    """Where the steps of each rank begin: `first[k][r]` is the row; from `start` to `end` they are equal."""

    first: np.ndarray
    start: int
    end: int


@dataclass(frozen=True)
class Snapshot:
    """The engine's state between two steps: numbers, times from now on, and how far its counters and logs were."""

    at_s: float
    numbers: np.ndarray
    times_s: np.ndarray
    counters: np.ndarray
    carried: np.ndarray

    def equals(self, other: "Snapshot") -> bool:
        """Say whether the two differ by a shift in time alone."""
        if not np.array_equal(self.numbers, other.numbers) or len(self.times_s) != len(other.times_s):
            return False
        step = abs(self.at_s - other.at_s)
        same = self.times_s == other.times_s  # infinities
        with np.errstate(invalid="ignore"):
            return bool((same | (np.abs(self.times_s - other.times_s) <= CLOSE * step)).all())


def find_steps(trace: Trace) -> Steps | None:
    """Return the longest run of equal steps, None if it is too short to fold."""
    if not trace.ranks or len(_step_rows(trace.ranks[0])) <= FEWEST:
        return None
    begins = [_step_rows(log) for log in trace.ranks]
    count = len(begins[0])
    if any(len(b) != count for b in begins):
        return None
    equal = np.ones(count - 1, bool)  # whether step k + 1 equals step k; the last step's end is the log's end
    for log, b in zip(trace.ranks, begins, strict=True):
        for k in range(count - 2):
            equal[k] = equal[k] and _same(log[b[k] : b[k + 1]], log[b[k + 1] : b[k + 2]])
    equal[-1] = False
    best = (0, 0)
    start = 0
    for k in range(count - 1):
        if not equal[k]:
            start = k + 1
        elif k + 2 - start > best[1] - best[0]:
            best = (start, k + 2)
    return Steps(np.array(begins).T, *best) if best[1] - best[0] >= FEWEST else None


def _step_rows(log: np.ndarray) -> np.ndarray:
    """Return where the steps of a log begin."""
    return np.flatnonzero((log["op"] == L.BEGIN) & (log["flag"] & L.STEP != 0) & (log["stream"] == 0))


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    """Say whether two steps have equal rows, but for the number of the step itself."""
    if len(one) != len(other):
        return False
    one, other = one.copy(), other.copy()
    one["b"][0] = other["b"][0] = 0
    return one.tobytes() == other.tobytes()


def take_snapshot(engine: "Engine", fed: np.ndarray, events_back: int, syncs: bool) -> Snapshot:
    """Return the state at the horizon; rows are counted back from the last one fed.

    `events_back` is how many of its last events a rank may still refer to, `syncs` whether its
    host waits within a step.
    """
    state = engine._state
    now = float(state.real[L.HORIZON])
    numbers: list[np.ndarray] = []
    times: list[np.ndarray] = []
    lane = state[L.T_LANE][: state.count[L.LANE_COUNT]]
    top = np.where(lane["in_call"] != 0, lane["back_pc"], lane["pc"])
    ended = lane["state"] == L.ENDED
    row = np.where(ended, 0, state[L.T_ROW_ID][np.minimum(top, len(state[L.T_ROW_ID]) - 1)] - fed[lane["rank"]])
    numbers += [lane["state"], row, lane["in_call"], np.where(lane["in_call"] != 0, lane["pc"], 0), lane["depth"],
                lane["paid"], np.where(lane["state"] == L.WAITING, lane["pending"], 0)]
    times += [lane["time"], np.where(lane["in_call"] != 0, lane["call_start"], np.inf),
              np.where(ended | (lane["state"] == L.TIMED), np.inf, lane["start"])]
    _add_requests(state, lane, numbers, times)
    _add_messages(state, lane, now, numbers, times)
    rank = state[L.T_RANK]
    numbers += [rank["sync_count"]]
    if syncs:
        times.append(rank["sync_time"])
    times += [np.where(rank["sync_count"] > 0, rank["sync_max"], np.inf)]
    for ids in engine._program.last_events(events_back):
        times.append(state[L.T_EVENT_TIME][ids])
    port = state[L.T_PORT]
    connection = state[L.T_TCP][: state.count[L.TCP_COUNT]]
    numbers += [port["rounds"], connection["recovering"], connection["backoff"], connection["waits"]]
    plain = [connection["window"], connection["threshold"], connection["marks"], port["queue"]]
    times += [np.where(connection["blocked"] > now, connection["blocked"], np.inf)]
    return Snapshot(
        now, np.concatenate([np.asarray(x, np.float64) for x in numbers + plain]), np.concatenate(times) - now,
        state.count.copy(), state[L.T_LINK]["carried"].copy(),
    )


def _add_requests(
    state: State, lane: np.ndarray, numbers: list[np.ndarray], times: list[np.ndarray]
) -> None:
    done = state[L.T_REQUEST]
    for e in lane:
        back = np.arange(1, int(e["req_mask"]) + 2)
        slots = int(e["req_base"]) + ((int(e["req_no"]) - back) & int(e["req_mask"]))
        at = done[slots]
        numbers.append(np.where(at == -1.0, -1.0, 0.0))
        times.append(np.where(at == -1.0, np.inf, at))


def _add_messages(
    state: State, lane: np.ndarray, now: float, numbers: list[np.ndarray], times: list[np.ndarray]
) -> None:
    msg = state[L.T_MSG][: state.count[L.MSG_CAPACITY]]
    msg = msg[(msg["status"] & (L.SENT | L.RECEIVED)) != 0]
    number = np.concatenate([lane["req_no"], [0]])  # lane -1 is nobody
    sent = np.where(msg["status"] & L.IS_COPY, 0, msg["src_req"] - number[msg["src_lane"]])
    asked = np.where((msg["dst_lane"] >= 0) & (msg["status"] & L.IS_COPY == 0),
                     msg["dst_req"] - number[msg["dst_lane"]], 0)
    order = np.lexsort((asked, msg["dst_lane"], sent, msg["src_lane"]))
    msg, sent, asked = msg[order], sent[order], asked[order]
    flying = (msg["status"] & L.FLYING) != 0
    numbers += [msg["src_lane"], msg["dst_lane"], np.where(msg["src_lane"] >= 0, sent, 0), asked, msg["status"],
                np.where(msg["status"] & L.SENT, msg["bytes"], 0), np.where(flying, msg["neck"], 0)]
    times += [np.where(flying, msg["finish"], np.inf),
              np.where(msg["status"] & L.FINISHED, msg["arrival"], np.inf)]


def fold(engine: "Engine", trace: Trace) -> RawTimeline:
    """Time a trace whose equal steps are timed once they repeat themselves no more."""
    steps = find_steps(trace)
    if steps is None or not engine.may_fold():
        engine.extend_all(trace.ranks)
        return engine.finish()
    ranks = range(len(trace.ranks))

    def feed(first: np.ndarray, end: np.ndarray) -> None:
        engine.extend_some([(r, trace.ranks[r][first[r] : end[r]]) for r in ranks])

    last = np.array([len(log) for log in trace.ranks])
    feed(np.zeros(len(ranks), np.int64), steps.first[steps.start + 1])
    # A step's own events, and those of earlier ones that its waits reach back to.
    events_back = max(int(log["a"][log["op"] == L.AWAIT].max(initial=0)) for log in trace.ranks)
    syncs = any(bool((log["op"][steps.first[steps.start][r] : steps.first[steps.start + 1][r]] == L.SYNC).any())
                for r, log in enumerate(trace.ranks))
    seen: list[Snapshot | None] = []
    ended = np.inf
    for k in range(steps.start + 1, steps.end - KEPT - 1):
        end = engine.first_end_s()
        feed(steps.first[k], steps.first[k + 1])
        look = end + INTO_STEP * (end - ended)
        after = None
        if np.isfinite(look) and engine.first_end_s(look) == look:
            after = take_snapshot(engine, steps.first[k + 1], events_back, syncs)
            left_out = steps.end - KEPT - 1 - k
            for period, before in enumerate(reversed(seen[-LONGEST_PERIOD:]), 1):
                times = left_out // period
                if times and before is not None and after.equals(before):
                    feed(steps.first[k + 1 + times * period], last)
                    block = Block(steps.first[k + 1 - period], steps.first[k + 1], period, times, before, after)
                    return _unfold(engine.finish(), trace, block)
        seen.append(after)
        ended = end
    feed(steps.first[steps.end - KEPT - 1], last)
    return engine.finish()


@dataclass(frozen=True)
class Block:
    """Steps that repeat: their rows of each rank, how many they are, how often they were left out."""

    first: np.ndarray
    end: np.ndarray
    steps: int
    times: int
    before: Snapshot
    after: Snapshot


def _unfold(raw: RawTimeline, trace: Trace, block: Block) -> RawTimeline:
    """Put shifted copies of a block after it, and shift what follows."""
    before, after, count = block.before, block.after, block.times
    shift = after.at_s - before.at_s
    spans = raw.spans
    low, high = block.first[spans["rank"]], block.end[spans["rank"]]
    parts = [spans[spans["row"] < high]]
    step = spans[(spans["row"] >= low) & (spans["row"] < high)]
    length = (high - low)[(spans["row"] >= low) & (spans["row"] < high)]
    parts += [_shifted(step, shift * j, length * j) for j in range(1, count + 1)]
    rest = spans["row"] >= high
    parts.append(_shifted(spans[rest], shift * count, (high - low)[rest] * count))
    spans = np.concatenate(parts)
    spans = spans[np.lexsort((spans["row"], spans["stream"], spans["rank"]))]
    _number_steps(spans, trace)
    counters: Mapping[str, int] = dict(raw.counters) | {
        "messages_folded": count * int(after.counters[L.MESSAGES] - before.counters[L.MESSAGES]),
        "copies": raw.counters["copies"] + count * int(after.counters[L.COPIES] - before.counters[L.COPIES]),
        "steps_folded": count * block.steps,
    }
    return dataclasses.replace(
        raw, spans=spans, flows=_unfold_flows(raw.flows, shift, count, before.at_s, after.at_s),
        rank_end_s=raw.rank_end_s + shift * count,
        link_bytes=raw.link_bytes + count * (after.carried - before.carried), counters=counters,
        windows=_unfold_log(raw.windows, shift, count, before.at_s, after.at_s),
        queues=_unfold_log(raw.queues, shift, count, before.at_s, after.at_s),
    )


def _shifted(spans: np.ndarray, shift: float, rows: np.ndarray) -> np.ndarray:
    spans = spans.copy()
    spans["start_s"] += shift
    spans["end_s"] += shift
    spans["row"] += rows
    return spans


def _number_steps(spans: np.ndarray, trace: Trace) -> None:
    """Give each step span the number that its own row has."""
    for i in np.flatnonzero((spans["op"] == L.BEGIN) & (spans["flag"] & L.STEP != 0)):
        spans["index"][i] = trace.ranks[spans["rank"][i]]["b"][spans["row"][i]]


def _unfold_log(log: np.ndarray, shift: float, count: int, before: float, after: float) -> np.ndarray:
    """Repeat what windows and queues did between the two snapshots; shift what they did later."""
    inside = log[(log["time_s"] >= before) & (log["time_s"] < after)]
    parts = [log[log["time_s"] < after]]
    for j, some in [(j, inside) for j in range(1, count + 1)] + [(count, log[log["time_s"] >= after])]:
        some = some.copy()
        for name in ("time_s", "until_s"):
            if name in (some.dtype.names or ()):
                some[name] += shift * j
        parts.append(some)
    return np.concatenate(parts)


def _unfold_flows(flows: np.ndarray, shift: float, count: int, before: float, after: float) -> np.ndarray:
    """Repeat the flows that left between the two snapshots; shift those that left later."""
    if not len(flows):
        return flows
    inside = flows[(flows["end_s"] >= before) & (flows["end_s"] < after)]
    parts = [flows[flows["end_s"] < after]]
    for j, some in [(j, inside) for j in range(1, count + 1)] + [(count, flows[flows["end_s"] >= after])]:
        some = some.copy()
        for name in ("posted_s", "start_s", "end_s", "arrival_s"):
            some[name] += shift * j
        parts.append(some)
    flows = np.concatenate(parts)
    return flows[np.lexsort((flows["dst"], flows["src"], flows["posted_s"], flows["start_s"]))]
