"""Rows of a trace, made ready for the engine: split into lanes, references resolved, routes looked up.

What compiled code then relies on is checked here, once. Rows of many ranks are taken in together.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from emu.cluster import RouteList
from emu.engine import layout as L
from emu.engine.calls import Calls
from emu.engine.library import Library
from emu.engine.order import Order
from emu.engine.pairs import Pairs
from emu.engine.profiles import Profile
from emu.engine.requests import Requests
from emu.engine.state import State
from emu.errors import TraceError
from emu.trace import DTYPES, Template

_LOGGED = np.zeros(256, bool)
_LOGGED[[L.COMPUTE, L.ELAPSED, L.COPY, L.WAIT, L.AWAIT, L.BEGIN, L.CALL]] = True
_SMALLEST_WINDOW = 8  # requests that a lane has room for, at least
_MOVES = 1 << L.SEND | 1 << L.RECV
_EVENTS = 1 << L.RECORD | 1 << L.AWAIT


class Part(NamedTuple):
    """New rows of one lane: from `first` to `end` in the engine's table."""

    rank: int
    stream: int
    first: int
    end: int


class Program:
    """What has been said so far of lanes, templates, groups, events; writes them into the engine's state.

    With `renumber`, requests within calls get no numbers of their own; for engines that are not asked about requests.
    """

    def __init__(self, state: State, cluster: Any, world_size: int, profile: Profile, renumber: bool):
        self.state = state
        self.cluster = cluster
        self.profile = profile
        self.world_size = world_size
        self.lane_of: dict[tuple[int, int], int] = {}
        library = Library(profile, cluster)
        self.calls = Calls(state, library, renumber)
        self.pairs = Pairs(state, cluster, world_size, profile, library)
        self._streams_of: dict[int, list[int]] = {}  # of each rank, the streams that are lanes
        self._first_segment: dict[int, int] = {}
        self._order = Order(self._plain_rows)
        self._requests = Requests(self.calls) if renumber else None
        self._events: dict[int, np.ndarray] = {}
        self._event_count = 0
        self._syncs = np.zeros(world_size, np.int64)
        self._rows_of_rank = [0] * world_size
        self._set_ranks()

    @property
    def templates(self) -> list[Template]:
        """All templates, those that the library made included."""
        return self.calls.templates

    @property
    def routes(self) -> RouteList:
        """All routes, as the cluster gave them."""
        return self.pairs.routes

    def _set_ranks(self) -> None:
        """Note each rank's GPU and speed."""
        rank = self.state[L.T_RANK]
        gpus = [self.cluster.gpu(r) for r in range(self.world_size)]
        rank["speed"] = [self.cluster.speed(r) for r in range(self.world_size)]
        table: list[np.ndarray] = []
        by_identity: dict[int, int] = {}
        numbers = []
        for gpu in gpus:
            known = by_identity.get(id(gpu))
            if known is None:
                known = by_identity[id(gpu)] = len(table)
                table.append(self._gpu_row(gpu))
            numbers.append(known)
        rank["gpu"] = numbers
        self.state.put(L.T_GPU, np.concatenate(table))

    def _gpu_row(self, gpu: Any) -> np.ndarray:
        row = np.zeros(L.GPU_FLOPS + L.GPU_DTYPES)
        row[L.GPU_LAUNCH] = gpu.launch_overhead_s if self.profile.overheads else 0.0
        row[L.GPU_MEMORY] = gpu.memory_bytes_per_s * gpu.memory_efficiency
        row[L.GPU_KNOTS], row[L.GPU_KNOT_COUNT] = self.state.knots(gpu.memory_by_size)
        for code, dtype in enumerate(DTYPES):
            row[L.GPU_FLOPS + code] = gpu.peak(dtype) * gpu.flops_efficiency
        return row

    def declare(self, templates: Sequence[Template], groups: Sequence[Sequence[int]], labels: Sequence[int]) -> None:
        """Add templates (with the label of each) and groups; their numbers go on from those before."""
        self.calls.declare_groups(groups)
        self.calls.declare_templates(templates, labels)

    def extend(self, pieces: Iterable[tuple[int, np.ndarray]]) -> None:
        """Add rows to ranks' logs."""
        pieces = [(r, rows) for r, rows in pieces if len(rows)]
        if not pieces:
            return
        ranks = np.array([r for r, _ in pieces], np.int64)
        starts = np.cumsum([0, *(len(rows) for _, rows in pieces)])
        first = self._take(starts, pieces)
        rows = self.state[L.T_ROWS][first : self.state.count[L.ROW_COUNT]]
        op = rows["op"].copy()
        if (calls := np.flatnonzero(op == L.CALL)).size:
            called = rows[calls]
            self.calls.number(called)
            rows = self.state[L.T_ROWS][first : first + len(rows)]  # templates may have moved the table
            rows[calls] = called
        has = np.bitwise_or.reduceat(np.left_shift(1, op, dtype=np.uint16), starts[:-1])
        self._look_up(ranks, starts, rows, op, has, calls)
        messages = self._expect(op, rows["a"][calls])
        self._add_ranks(pieces, first, starts, rows, has)
        self.state.more_messages(min(4 * len(self.lane_of) + 64, max(messages, 1) + 4))
        self.state.more_heap()

    def extend_lane(self, r: int, stream: int, rows: np.ndarray) -> None:
        """Add plain rows of one lane; it and all their routes are known, and they need no numbers (`Order`)."""
        base = self._rows_of_rank[r]
        self._rows_of_rank[r] = base + len(rows)
        first = self.state.append_rows(rows, np.arange(base, base + len(rows), dtype=np.int32))
        self._add_segment(self.lane_of[r, stream], Part(r, stream, first, first + len(rows)))

    def needs_numbers(self, r: int) -> bool:
        """Tell whether several streams of a rank send or receive outside of collectives."""
        return r in self._order.ranks

    def _take(self, starts: np.ndarray, pieces: Sequence[tuple[int, np.ndarray]]) -> int:
        """Copy rows into the engine's table, numbered within their rank's log; return where they begin."""
        state, total = self.state, int(starts[-1])
        first = int(state.count[L.ROW_COUNT])
        table = state.exact_room(L.T_ROWS, first + total, first)
        ids = state.exact_room(L.T_ROW_ID, first + total, first)
        np.concatenate([rows for _, rows in pieces], out=table[first : first + total])
        for (r, rows), at in zip(pieces, (first + starts[:-1]).tolist(), strict=True):
            base = self._rows_of_rank[r]
            self._rows_of_rank[r] = end = base + len(rows)
            ids[at : at + len(rows)] = np.arange(base, end)
        state.count[L.ROW_COUNT] = first + total
        return first

    def _look_up(
        self, ranks: np.ndarray, starts: np.ndarray, rows: np.ndarray, op: np.ndarray, has: np.ndarray,
        calls: np.ndarray,
    ) -> None:  # fmt: skip
        """Look up the routes that new rows need."""
        keys = []
        moves = np.flatnonzero((op == L.SEND) | (op == L.RECV))
        if len(moves):
            named = rows[moves]
            keys.append(self.pairs.of_messages(ranks[np.searchsorted(starts, moves, "right") - 1], named))
            plain = (named["op"] == L.RECV) & (named["flag"] & L.COLLECTIVE == 0)
            if ((named["a"] < 0) | (named["b"] < 0))[plain].any():
                self.state.count[L.WILD] = 1
        if len(calls):
            keys += self._pairs_of_calls(ranks[np.searchsorted(starts, calls, "right") - 1], rows[calls])
        self.pairs.need(keys)
        for k in np.flatnonzero(has & (1 << L.COPY)).tolist():
            here = slice(starts[k], starts[k + 1])
            self.pairs.need_host(int(ranks[k]), rows["a"][here][op[here] == L.COPY])

    def _pairs_of_calls(self, ranks: np.ndarray, calls: np.ndarray) -> list[np.ndarray]:
        """Return the keys of the pairs that calls name; ranks that call the same are looked at together."""
        groups = len(self.calls.groups)
        what = np.unique((calls["a"].astype(np.int64) * groups + calls["b"]) * self.world_size + ranks)
        called, callers = np.divmod(what, self.world_size)
        bounds = np.flatnonzero(np.diff(called, prepend=-1))
        keys = []
        for number, who in zip(called[bounds].tolist(), np.split(callers, bounds[1:]), strict=True):
            keys += self.calls.pairs(number // groups, number % groups, who.tolist(), self.world_size)
        return keys

    def _expect(self, op: np.ndarray, called: np.ndarray) -> int:
        """Make room for what new rows log; return how many messages they send."""
        state = self.state
        kinds = np.bincount(op, minlength=256)
        messages = int(kinds[L.SEND] + kinds[L.COPY] + (self.calls.messages[called].sum() if len(called) else 0))
        if state.count[L.LOG_SPANS]:
            spans = int(kinds[L.BEGIN] if state.count[L.LOG_STEPS] else kinds[_LOGGED].sum())
            state.exact_room(L.T_SPAN, int(state.count[L.SPANS_EXPECTED]) + spans, int(state.count[L.SPAN_COUNT]))
            state.count[L.SPANS_EXPECTED] += spans
        if state.count[L.LOG_FLOWS]:
            state.exact_room(L.T_FLOW, int(state.count[L.FLOWS_EXPECTED]) + messages, int(state.count[L.FLOW_COUNT]))
            state.count[L.FLOWS_EXPECTED] += messages
        return messages

    def _add_ranks(
        self, pieces: Sequence[tuple[int, np.ndarray]], first: int, starts: np.ndarray, rows: np.ndarray,
        has: np.ndarray,
    ) -> None:  # fmt: skip
        """Split new rows into lanes."""
        streams = np.bitwise_or.reduceat(rows["stream"], starts[:-1]).tolist()
        parts: list[Part] = []
        apart: list[tuple[Part, np.ndarray, np.ndarray]] = []
        for k, ((r, _), ops) in enumerate(zip(pieces, has.tolist(), strict=True)):
            low, high = first + int(starts[k]), first + int(starts[k + 1])
            mine = self.state[L.T_ROWS][low:high]
            if ops & _EVENTS:
                self._resolve_events(r, mine)
            if ops & _MOVES and (streams[k] or r in self._order.ranks):
                self._order.number(r, mine)
            if ops & 1 << L.SYNC or self._syncs[r]:
                apart += self._with_syncs(r, mine, self.state[L.T_ROW_ID][low:high])
            elif streams[k]:
                parts += self._by_stream(r, low, high)
            else:
                parts.append(Part(r, 0, low, high))
        if not parts and self.state.count[L.ROW_COUNT] == first + starts[-1]:
            self.state.count[L.ROW_COUNT] = first  # all of them come again; no template stands behind them
        for part, rows, ids in apart:
            at = self.state.append_rows(rows, ids)
            parts.append(part._replace(first=at, end=at + len(rows)))
        self._add_parts(parts)

    def _by_stream(self, r: int, low: int, high: int) -> list[Part]:
        """Put a rank's new rows into the order of their streams."""
        rows, ids = self.state[L.T_ROWS][low:high], self.state[L.T_ROW_ID][low:high]
        order = np.argsort(rows["stream"], kind="stable")
        rows[:], ids[:] = rows[order], ids[order]
        bounds = np.flatnonzero(np.diff(rows["stream"])) + 1
        firsts = [low, *(low + bounds).tolist()]
        return [Part(r, int(rows["stream"][at - low]), at, end)
                for at, end in zip(firsts, [*firsts[1:], high], strict=True)]

    def _with_syncs(
        self, r: int, rows: np.ndarray, ids: np.ndarray
    ) -> list[tuple[Part, np.ndarray, np.ndarray]]:
        """Return the rows of each lane of a rank whose host has waited for its streams, with those waits in all."""
        rows, ids = rows.copy(), ids.copy()
        syncs = rows["op"] == L.SYNC
        streams, known = np.unique(rows["stream"]).tolist(), self._streams_of.get(r, [])
        everyone = sorted({*streams, *known}) if syncs.any() else streams
        before, found = int(self._syncs[r]), []
        for stream in everyone:
            at = np.flatnonzero((rows["stream"] == stream) | syncs)
            part, numbers = _number_syncs(rows[at], stream, before, len(everyone)), ids[at]
            if before and stream not in known:
                part = np.concatenate([_follow(stream, before), part])
                numbers = np.concatenate([numbers[:1], numbers])
            found.append((Part(r, stream, 0, 0), part, numbers))
        self._syncs[r] += np.count_nonzero(syncs)
        return found

    def _resolve_events(self, r: int, rows: np.ndarray) -> None:
        """Number events across the engine, in place."""
        op = rows["op"]
        recorded = op == L.RECORD
        count = int(np.count_nonzero(recorded))
        known = self._events.get(r, np.zeros(0, np.int64))
        ids = np.concatenate([known, np.arange(self._event_count, self._event_count + count)])
        rows["n"][recorded] = ids[len(known):]
        awaits = np.flatnonzero(op == L.AWAIT)
        ordinal = len(known) + np.cumsum(recorded)[awaits] - rows["a"][awaits]
        if len(awaits) and (ordinal.min() < 0 or (rows["a"][awaits] < 1).any()):
            raise TraceError(f"rank {r}: a wait for an event recorded before it is expected; record the trace anew")
        rows["n"][awaits] = ids[ordinal]
        self._events[r] = ids
        self._event_count += count
        self.state.room(L.T_EVENT_TIME, self._event_count, math.inf)
        self.state.room(L.T_EVENT_WAITER, self._event_count, -1)
        fresh = slice(self._event_count - count, self._event_count)
        self.state[L.T_EVENT_TIME][fresh] = math.inf
        self.state[L.T_EVENT_WAITER][fresh] = -1

    # Lanes

    def _add_parts(self, parts: list[Part]) -> None:
        """Add new rows to their lanes; make those that are new."""
        if self._requests is not None:
            table = self.state[L.T_ROWS]
            for part in parts:
                self._requests.renumber(part.rank, part.stream, table[part.first : part.end])
        windows = self._windows(parts)
        new = [(part, window) for part, window in zip(parts, windows, strict=True)
               if (part.rank, part.stream) not in self.lane_of]
        self._new_lanes([(part.rank, part.stream) for part, _ in new], [window for _, window in new])
        for part in parts:
            self._add_segment(self.lane_of[part.rank, part.stream], part)

    def _windows(self, parts: list[Part]) -> list[int]:
        """Return how far back the waits of parts look, those in calls included."""
        first = min(part.first for part in parts)
        rows = self.state[L.T_ROWS][first : max(part.end for part in parts)]
        order = np.argsort([part.first for part in parts], kind="stable")
        starts = np.array([part.first for part in parts])[order] - first
        found = np.zeros(len(parts), np.int64)
        for op, back in ((L.WAIT, None), (L.CALL, self.calls.window)):
            at = np.flatnonzero(rows["op"] == op)
            number = rows["a"][at]
            owner = order[(np.searchsorted(starts, at, "right") - 1).clip(0)]
            np.maximum.at(found, owner, number if back is None else back[number])
        return found.tolist()

    def _add_segment(self, i: int, part: Part) -> None:
        state = self.state
        lane = state[L.T_LANE][i]
        last = int(lane["last_seg"])
        segment = state[L.T_SEGMENT]
        if last >= 0 and segment[last]["end"] == part.first:
            # The lane's newest stretch ends where these rows begin.
            segment[last]["end"] = part.end
            if int(lane["seg"]) == last:
                lane["back_end" if lane["in_call"] else "end"] = part.end
        else:
            number = int(state.count[L.SEGMENT_COUNT])
            state.count[L.SEGMENT_COUNT] = number + 1
            segment = state.room(L.T_SEGMENT, number + 1)
            segment[number] = part.first, part.end, -1
            if last >= 0:
                segment[last]["next"] = number
            else:
                lane["seg"], lane["pc"], lane["end"] = number, part.first, part.end
                self._first_segment[i] = number
            lane["last_seg"] = number
        if lane["state"] == L.ENDED:
            self._go_on(i)

    def _go_on(self, i: int) -> None:
        """Put lane `i`, which had no more rows, in front of those that walk."""
        lane, count = self.state[L.T_LANE], self.state.count
        lane["state"][i] = L.READY
        lane["next"][i] = count[L.READY_HEAD]
        if count[L.READY_HEAD] < 0:
            count[L.READY_TAIL] = i
        count[L.READY_HEAD] = i

    def lane(self, r: int, stream: int) -> int:
        """Return the number of a lane, made if it has no rows yet: it then stands where its host stands."""
        if (r, stream) not in self.lane_of:
            self._new_lanes([(r, stream)], [0])
            if self._syncs[r]:
                at = self.state.append_rows(_follow(stream, int(self._syncs[r])), np.zeros(1, np.int32))
                self._add_segment(self.lane_of[r, stream], Part(r, stream, at, at + 1))
        return self.lane_of[r, stream]

    def _new_lanes(self, names: Sequence[tuple[int, int]], windows: Sequence[int]) -> None:
        """Make lanes (rank, stream) with room for so many requests."""
        if not names:
            return
        state, i = self.state, len(self.lane_of)
        lane = state.room(L.T_LANE, i + len(names))[i : i + len(names)]
        lane["rank"], lane["stream"] = np.array(names).T
        lane["key"] = lane["rank"].astype(np.int64) << 8 | lane["stream"]
        lane["state"] = L.ENDED
        for name in ("group", "open", "label", "send_chan", "recv_chan", "next", "last_seg", "seg", "next_waiter"):
            lane[name] = -1
        sizes = np.array([1 << (max(window, _SMALLEST_WINDOW) - 1).bit_length() for window in windows])
        first = state.new_requests(int(sizes.sum()))
        lane["req_base"], lane["req_mask"] = first + np.cumsum(sizes) - sizes, sizes - 1
        for k, (r, stream) in enumerate(names):
            self.lane_of[r, stream] = i + k
            self._streams_of.setdefault(r, []).append(stream)
        state.count[L.LANE_COUNT] = len(self.lane_of)

    def _plain_rows(self, r: int) -> Iterable[np.ndarray]:
        """Yield the rows that a rank's lanes were given so far."""
        segment = self.state[L.T_SEGMENT][: self.state.count[L.SEGMENT_COUNT]]
        for stream in self._streams_of.get(r, []):
            at = self._first_segment.get(self.lane_of[r, stream], -1)
            while at >= 0:
                yield self.state[L.T_ROWS][segment[at]["first"] : segment[at]["end"]]
                at = int(segment[at]["next"])

    def last_events(self, count: int) -> Iterable[np.ndarray]:
        """Yield the numbers of the last events of each rank that records any."""
        for r in sorted(self._events):
            yield self._events[r][-count:]


def _number_syncs(part: np.ndarray, stream: int, before: int, lanes: int) -> np.ndarray:
    """Number the host's waits, and say how many lanes each waits for (0: this lane only follows)."""
    at = np.flatnonzero(part["op"] == L.SYNC)
    own = part["a"][at] == 1
    mine = part["stream"][at] == stream
    part["b"][at] = np.where(own, np.where(mine, 1, 0), lanes)
    part["a"][at] = before + 1 + np.arange(len(at))
    return part


def _follow(stream: int, number: int) -> np.ndarray:
    """Return the row that makes a new lane start no earlier than its host's wait `number` ended."""
    row = np.zeros(1, L.ROW)
    row["op"], row["stream"], row["a"] = L.SYNC, stream, number
    return row
