"""Rows of a trace, made ready for the engine: split into lanes, references resolved, routes looked up.

What compiled code then relies on is checked here, once.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from emu.cluster import RouteList
from emu.engine import layout as L
from emu.engine.library import Library
from emu.engine.order import Order
from emu.engine.profiles import Profile
from emu.engine.routes import connect, routes_between, take_in
from emu.engine.state import SELF_ROUTE, State
from emu.errors import TraceError
from emu.trace import DTYPES, Template

_LOGGED = np.zeros(256, bool)
_LOGGED[[L.COMPUTE, L.ELAPSED, L.COPY, L.WAIT, L.AWAIT, L.BEGIN, L.CALL]] = True
_SMALLEST_WINDOW = 8  # requests that a lane has room for, at least


class Program:
    """What has been said so far of lanes, templates, groups, events; writes them into the engine's state."""

    def __init__(self, state: State, cluster: Any, world_size: int, profile: Profile):
        self.state = state
        self.cluster = cluster
        self.profile = profile
        self.world_size = world_size
        self.lane_of: dict[tuple[int, int], int] = {}
        self.routes = RouteList([None])  # as the cluster gave them; number 0 is to oneself
        self.templates: list[Template] = []
        self.groups: list[tuple[int, ...]] = []
        self._members: list[np.ndarray] = []
        self._place: list[dict[int, int]] = []
        self._template_sends: list[np.ndarray] = []  # (way, peer - me) as way * group size + peer - me
        self._template_receives: list[np.ndarray] = []
        self._template_window: list[int] = []
        self._template_messages: list[int] = []
        self._rows_used = 0
        self._first_segment: dict[int, int] = {}
        self._order = Order(self._plain_rows)
        self._events: dict[int, np.ndarray] = {}
        self._event_count = 0
        self._syncs = np.zeros(world_size, np.int64)
        self._rows_of_rank = np.zeros(world_size, np.int64)
        self._gpu_of: dict[Any, int] = {}
        self._pairs = np.zeros(0, np.int64)  # (way * world size + source) * world size + destination
        self.library = Library(profile, cluster)
        self._numbers: list[int] = []  # of the templates as they were declared
        self._variants: dict[tuple[int, Any], int] = {}
        state.room(L.T_ROUTE, 1, np.zeros((), L.ROUTE))
        most = np.iinfo(np.int64).max
        state[L.T_ROUTE][SELF_ROUTE] = (0, math.inf, math.inf, 0, 0, most, 0, 0, -1, -1, 1.0, math.inf)
        self._set_ranks()

    def _set_ranks(self) -> None:
        """Note each rank's GPU and speed."""
        rank = self.state[L.T_RANK]
        gpus = [self.cluster.gpu(r) for r in range(self.world_size)]
        rank["speed"] = [self.cluster.speed(r) for r in range(self.world_size)]
        table: list[np.ndarray] = []
        by_identity: dict[int, int] = {}
        for r, gpu in enumerate(gpus):
            known = by_identity.get(id(gpu))
            if known is None:
                known = by_identity[id(gpu)] = len(table)
                table.append(self._gpu_row(gpu))
            rank["gpu"][r] = known
        self.state.put(L.T_GPU, np.concatenate(table))

    def _gpu_row(self, gpu: Any) -> np.ndarray:
        row = np.zeros(L.GPU_FLOPS + L.GPU_DTYPES)
        row[L.GPU_LAUNCH] = gpu.launch_overhead_s if self.profile.overheads else 0.0
        row[L.GPU_MEMORY] = gpu.memory_bytes_per_s * gpu.memory_efficiency
        for code, dtype in enumerate(DTYPES):
            row[L.GPU_FLOPS + code] = gpu.peak(dtype) * gpu.flops_efficiency
        return row

    # Templates and groups

    def declare(self, templates: Sequence[Template], groups: Sequence[Sequence[int]], labels: Sequence[int]) -> None:
        """Add templates (with the label of each) and groups; their numbers go on from those before."""
        self._declare_groups(groups)
        self._numbers += range(len(self.templates), len(self.templates) + len(templates))
        self._declare_templates(templates, labels)

    def _declare_templates(self, templates: Sequence[Template], labels: Sequence[int]) -> None:
        if not templates:
            return
        table = self.state.room(L.T_TEMPLATE, 3 * (len(self.templates) + len(templates)))
        for template, label in zip(templates, labels, strict=True):
            t = len(self.templates)
            first = self._append_rows(template.rows, np.arange(len(template.rows), dtype=np.int32))
            rows = self.state[L.T_ROWS][first : self._rows_used]
            op = rows["op"]
            if (op == L.CALL).any() or (op == L.SYNC).any() or (op == L.AWAIT).any() or (op == L.RECORD).any():
                raise TraceError(
                    f"template {template.name}: sends, receives, waits and computation are expected, got another "
                    "operation; record such a collective without a template"
                )
            table[3 * t : 3 * t + 3] = first, self._rows_used, label
            self.templates.append(template)
            way = (rows["b"].astype(np.int64) >> L.WAY_SHIFT) * template.group_size + rows["a"]
            self._template_sends.append(np.unique(way[op == L.SEND]))
            self._template_receives.append(np.unique(way[op == L.RECV]))
            self._template_window.append(_window(rows))
            self._template_messages.append(int(((op == L.SEND) | (op == L.COPY)).sum()))

    def _declare_groups(self, groups: Sequence[Sequence[int]]) -> None:
        if not groups:
            return
        used = sum(len(m) for m in self._members)
        table = self.state.room(L.T_GROUP, 2 * (len(self.groups) + len(groups)))
        for group in groups:
            members = np.asarray(group, np.int32)
            g = len(self.groups)
            self.state.room(L.T_MEMBER, used + len(members))[used : used + len(members)] = members
            table[2 * g : 2 * g + 2] = used, len(members)
            used += len(members)
            self.groups.append(tuple(group))
            self._members.append(members)
            self._place.append({int(r): i for i, r in enumerate(members)})

    # Rows

    def extend(self, pieces: Iterable[tuple[int, np.ndarray]]) -> None:
        """Add rows to ranks' logs."""
        pieces = [(r, rows) for r, rows in pieces if len(rows)]
        total = sum(len(rows) for _, rows in pieces)
        self.state.exact_room(L.T_ROWS, self._rows_used + total, self._rows_used)
        self.state.exact_room(L.T_ROW_ID, self._rows_used + total, self._rows_used)
        keys: list[np.ndarray] = []
        spans = flows = 0
        for r, rows in pieces:
            op = rows["op"]
            if self._numbers and (op == L.CALL).any():
                rows = self._called(rows, op)
            spans += int(_LOGGED[op].sum())
            flows += int(((op == L.SEND) | (op == L.COPY)).sum())
            keys.extend(self._pairs_of(r, rows, op))
            flows += self._called_messages(rows, op)
            if (op == L.COPY).any():
                self._need_host_routes(r, rows[op == L.COPY])
            if ((rows["a"] < 0) | (rows["b"] < 0))[(op == L.RECV) & (rows["flag"] & L.COLLECTIVE == 0)].any():
                self.state.count[L.WILD] = 1
            self._add_rank(r, rows, op)
        self._need_pairs(keys)
        state = self.state
        if state.count[L.LOG_SPANS]:
            state.exact_room(L.T_SPAN, int(state.count[L.SPANS_EXPECTED]) + spans, int(state.count[L.SPAN_COUNT]))
            state.count[L.SPANS_EXPECTED] += spans
        if state.count[L.LOG_FLOWS]:
            state.exact_room(L.T_FLOW, int(state.count[L.FLOWS_EXPECTED]) + flows, int(state.count[L.FLOW_COUNT]))
            state.count[L.FLOWS_EXPECTED] += flows
        state.more_messages(min(4 * len(self.lane_of) + 64, max(flows, 1) + 4))
        state.more_heap()

    def _called(self, rows: np.ndarray, op: np.ndarray) -> np.ndarray:
        """Number the templates that rows call as they stand here: as the library runs them."""
        rows = rows.copy()
        at = np.flatnonzero(op == L.CALL)
        if not self.library.tunes:
            rows["a"][at] = np.array(self._numbers)[rows["a"][at]]
            return rows
        calls, place = np.unique(rows[["a", "b", "n"]][at], return_inverse=True)
        told = [self._variant(int(a), int(b), int(n)) for a, b, n in calls]
        rows["a"][at] = np.array([number for number, _ in told])[place]
        rows["x"][at] = np.array([launch_s for _, launch_s in told])[place]
        return rows

    def _variant(self, template: int, group: int, nbytes: int) -> tuple[int, float]:
        """Return the template that the library makes of one called by a group, and the call's launch."""
        number = self._numbers[template]
        terms = self.library.terms(self.templates[number].name, self.groups[group], nbytes)
        known = self._variants.get((number, terms))
        if known is None:
            known = self._variants[number, terms] = len(self.templates)
            label = int(self.state[L.T_TEMPLATE][3 * number + 2])
            self._declare_templates([self.library.variant(self.templates[number], terms)], [label])
        return known, terms.launch_s

    def _called_messages(self, rows: np.ndarray, op: np.ndarray) -> int:
        if not self.templates:
            return 0
        called = rows["a"][op == L.CALL]
        return int(np.asarray(self._template_messages, np.int64)[called].sum()) if len(called) else 0

    def _append_rows(self, rows: np.ndarray, ids: np.ndarray) -> int:
        first, end = self._rows_used, self._rows_used + len(rows)
        self.state.exact_room(L.T_ROWS, end, first)[first:end] = rows
        self.state.exact_room(L.T_ROW_ID, end, first)[first:end] = ids
        self._rows_used = end
        return first

    def extend_lane(self, r: int, stream: int, rows: np.ndarray) -> None:
        """Add plain rows of one lane; it and all their routes are known, and they need no numbers (`Order`)."""
        base = int(self._rows_of_rank[r])
        self._rows_of_rank[r] = base + len(rows)
        self._add_lane_rows(r, stream, rows, np.arange(base, base + len(rows), dtype=np.int32))

    def needs_numbers(self, r: int) -> bool:
        """Tell whether several streams of a rank send or receive outside of collectives."""
        return r in self._order.ranks

    def _add_rank(self, r: int, rows: np.ndarray, op: np.ndarray) -> None:
        """Split a rank's new rows into its lanes."""
        base = int(self._rows_of_rank[r])
        self._rows_of_rank[r] += len(rows)
        syncs = np.flatnonzero(op == L.SYNC)
        if ((op == L.RECORD) | (op == L.AWAIT)).any():
            rows = self._resolve_events(r, rows, op)
        if rows["stream"].any() or r in self._order.ranks:
            rows = self._order.number(r, rows)
        streams = [0] if not rows["stream"].any() else [int(x) for x in np.unique(rows["stream"])]
        old = [stream for (rank, stream) in self.lane_of if rank == r] if len(syncs) else []
        before = int(self._syncs[r])
        new = [x for x in streams if (r, x) not in self.lane_of]
        everyone = sorted(set(streams) | set(old))
        for stream in everyone:
            if len(everyone) == 1:
                part, ids = rows, np.arange(base, base + len(rows), dtype=np.int32)
            else:
                at = np.flatnonzero((rows["stream"] == stream) | (op == L.SYNC))
                part, ids = rows[at], (base + at).astype(np.int32)
            if len(syncs):
                part = self._number_syncs(part, stream, before, len(everyone))
            if stream in new and before:
                part = np.concatenate([_follow(stream, before), part])
                ids = np.concatenate([ids[:1], ids])
            self._add_lane_rows(r, stream, part, ids)
        self._syncs[r] += len(syncs)

    @staticmethod
    def _number_syncs(part: np.ndarray, stream: int, before: int, lanes: int) -> np.ndarray:
        """Number the host's waits, and say how many lanes each waits for (0: this lane only follows)."""
        part = part.copy()
        at = np.flatnonzero(part["op"] == L.SYNC)
        own = part["a"][at] == 1
        mine = part["stream"][at] == stream
        part["b"][at] = np.where(own, np.where(mine, 1, 0), lanes)
        part["a"][at] = before + 1 + np.arange(len(at))
        return part

    def _resolve_events(self, r: int, rows: np.ndarray, op: np.ndarray) -> np.ndarray:
        """Number events across the engine."""
        rows = rows.copy()
        recorded = op == L.RECORD
        count = int(recorded.sum())
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
        return rows

    def _add_lane_rows(self, r: int, stream: int, part: np.ndarray, ids: np.ndarray) -> None:
        state = self.state
        first = self._append_rows(part, ids)
        i = self.lane_of.get((r, stream))
        if i is None:
            i = self._new_lane(r, stream, max(_window(part), self._called_window(part)))
        lane = state[L.T_LANE][i]
        last = int(lane["last_seg"])
        segment = state[L.T_SEGMENT]
        if last >= 0 and segment[last]["end"] == first:
            # The lane's newest stretch ends where these rows begin.
            segment[last]["end"] = self._rows_used
            if int(lane["seg"]) == last:
                lane["back_end" if lane["in_call"] else "end"] = self._rows_used
        else:
            number = int(state.count[L.SEGMENT_COUNT])
            state.count[L.SEGMENT_COUNT] = number + 1
            segment = state.room(L.T_SEGMENT, number + 1)
            segment[number] = first, self._rows_used, -1
            if last >= 0:
                segment[last]["next"] = number
            else:
                lane["seg"], lane["pc"], lane["end"] = number, first, self._rows_used
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
            self._new_lane(r, stream, 0)
            if self._syncs[r]:
                self._add_lane_rows(r, stream, _follow(stream, int(self._syncs[r])), np.zeros(1, np.int32))
        return self.lane_of[r, stream]

    def _new_lane(self, r: int, stream: int, window: int) -> int:
        state = self.state
        i = len(self.lane_of)
        lane = state.room(L.T_LANE, i + 1)[i]
        lane["key"] = (r << 8) | stream
        lane["rank"], lane["stream"], lane["state"] = r, stream, L.ENDED
        for name in ("group", "open", "label", "send_chan", "recv_chan", "next", "last_seg", "seg", "next_waiter"):
            lane[name] = -1
        size = 1 << (max(window, _SMALLEST_WINDOW) - 1).bit_length()
        lane["req_base"], lane["req_mask"] = state.new_requests(size), size - 1
        self.lane_of[r, stream] = i
        state.count[L.LANE_COUNT] = i + 1
        return i

    def _called_window(self, part: np.ndarray) -> int:
        called = np.unique(part["a"][part["op"] == L.CALL]) if self.templates else ()
        return max((self._template_window[t] for t in called), default=0)

    def _plain_rows(self, r: int) -> Iterable[np.ndarray]:
        """Yield the rows that a rank's lanes were given so far."""
        segment = self.state[L.T_SEGMENT][: self.state.count[L.SEGMENT_COUNT]]
        for (rank, _), i in self.lane_of.items():
            at = int(self._first_segment[i]) if rank == r else -1
            while at >= 0:
                yield self.state[L.T_ROWS][segment[at]["first"] : segment[at]["end"]]
                at = int(segment[at]["next"])

    # Routes

    def _pairs_of(self, r: int, rows: np.ndarray, op: np.ndarray) -> list[np.ndarray]:
        """Return keys (source * world size + destination) of the pairs that a rank's rows name."""
        size = self.world_size
        keys = []
        moves = rows[(op == L.SEND) | (op == L.RECV)]
        if len(moves):
            way = np.where(moves["flag"] & L.COLLECTIVE, moves["b"].astype(np.int64) >> L.WAY_SHIFT, 0)
            sent, peer = moves["op"] == L.SEND, moves["a"].astype(np.int64)
            key = way * size * size + np.where(sent, r * size + peer, peer * size + r)
            keys.append(np.unique(key[sent | (peer >= 0)]))
        calls = rows[op == L.CALL]
        if len(calls):
            for both in np.unique(calls["a"].astype(np.int64) << 32 | calls["b"]):
                template, group = int(both >> 32), int(both & 0xFFFFFFFF)
                keys.extend(self._pairs_of_call(r, template, group))
        return keys

    def _pairs_of_call(self, r: int, template: int, group: int) -> list[np.ndarray]:
        members, size = self._members[group], self.world_size
        if r not in self._place[group]:
            raise TraceError(f"rank {r}: a collective of its own group is expected, got group {group} without it")
        if self.templates[template].group_size != len(members):
            raise TraceError(
                f"rank {r}: template {self.templates[template].name} is for {self.templates[template].group_size} "
                f"ranks, got a group of {len(members)}"
            )
        me = self._place[group][r]
        way, off = np.divmod(self._template_sends[template], len(members))
        to = way * size * size + r * size + members[(off + me) % len(members)]
        way, off = np.divmod(self._template_receives[template], len(members))
        return [to, way * size * size + members[(off + me) % len(members)].astype(np.int64) * size + r]

    def _need_pairs(self, keys: list[np.ndarray]) -> None:
        """Look up the routes of pairs that are new."""
        if not keys:
            return
        wanted = np.unique(np.concatenate(keys))
        pair, size = wanted % self.world_size**2, self.world_size
        wanted = wanted[(wanted >= size * size) | (pair // size != pair % size)]
        fresh = wanted[~np.isin(wanted, self._pairs, assume_unique=True)] if len(self._pairs) else wanted
        if not len(fresh):
            return
        numbers = np.arange(len(self.routes), len(self.routes) + len(fresh), dtype=np.int32)
        for way in np.unique(fresh // (size * size)):
            self._take_in(int(way), fresh[fresh // (size * size) == way] % (size * size))
        state = self.state
        count = len(self._pairs) + len(fresh)
        number = np.concatenate([state[L.T_PAIR_ROUTE][: len(self._pairs)], numbers])
        pairs = np.concatenate([self._pairs, fresh])
        order = np.argsort(pairs, kind="stable")
        self._pairs = pairs[order]
        state.put(L.T_PAIR_KEY, self._pairs)
        state.put(L.T_PAIR_ROUTE, np.ascontiguousarray(number[order]))
        state.count[L.PAIR_COUNT] = count

    def _take_in(self, way: int, pairs: np.ndarray) -> None:
        """Add the routes of pairs (source * world size + destination) by a way."""
        src, dst, first = pairs // self.world_size, pairs % self.world_size, len(self.routes)
        plain = routes_between(self.cluster, src, dst)
        table, wire, chunk, buffer = self.library.by_way(way, plain)
        take_in(self.state, self.cluster, table, first, self.profile.overheads and way == 0)
        entry = self.state[L.T_ROUTE][first : first + len(table)]
        entry["wire"], entry["chunk"] = wire, chunk
        if way:
            entry["eager"] = buffer
        if self.profile.windows:
            connect(self.state, self.cluster, plain, first, pairs, self.world_size)
        self.routes.extend(table)

    def _need_host_routes(self, r: int, copies: np.ndarray) -> None:
        table = self.state[L.T_HOST_ROUTE]
        for direction, name in enumerate(("h2d", "d2h")):
            if table[2 * r + direction] < 0 and (copies["a"] == direction).any():
                table[2 * r + direction] = self._add_route(self.cluster.host_route(r, name))

    def _add_route(self, route: Any) -> int:
        state = self.state
        number = len(self.routes)
        transport = self.cluster.transport(route.transport)
        first = int(state.count[L.ROUTE_LINK_COUNT])
        hops = len(route.links)
        state.room(L.T_ROUTE_LINKS, first + hops)[first : first + hops] = route.links
        state.count[L.ROUTE_LINK_COUNT] = first + hops
        state.more_hops(hops)
        rates = state[L.T_LINK]["rate"][list(route.links)]
        slowest = int(rates.argmin()) if hops else -1
        rate = float(rates[slowest]) if hops else math.inf
        neck = int(route.links[slowest]) if hops else -1
        if route.cap_bytes_per_s < rate:
            rate, neck = route.cap_bytes_per_s, L.OWN_CAP
        on = self.profile.overheads
        entry = state.room(L.T_ROUTE, number + 1, np.zeros((), L.ROUTE))[number : number + 1]
        entry["latency"], entry["cap"], entry["rate"] = route.latency_s, route.cap_bytes_per_s, rate
        entry["send_s"] = transport.send_overhead_s if on else 0.0
        entry["receive_s"] = transport.receive_overhead_s if on else 0.0
        entry["eager"] = transport.eager_bytes
        entry["first"], entry["count"], entry["neck"], entry["connection"] = first, hops, neck, -1
        entry["wire"], entry["chunk"] = 1.0, math.inf
        self.routes.append(route)
        return number

    def last_events(self, count: int) -> Iterable[np.ndarray]:
        """Yield the numbers of the last events of each rank that records any."""
        for r in sorted(self._events):
            yield self._events[r][-count:]

    def route_order(self) -> np.ndarray:
        """Return the routes' numbers ordered by source and destination, copies last: however they came in."""
        pairs = self.state[L.T_PAIR_ROUTE][: len(self._pairs)]
        host = self.state[L.T_HOST_ROUTE]
        return np.concatenate([[SELF_ROUTE], pairs, host[host >= 0]]).astype(np.int64)


def _follow(stream: int, number: int) -> np.ndarray:
    """Return the row that makes a new lane start no earlier than its host's wait `number` ended."""
    row = np.zeros(1, L.ROW)
    row["op"], row["stream"], row["a"] = L.SYNC, stream, number
    return row


def _window(rows: np.ndarray) -> int:
    """Return how far back the rows' waits look."""
    waits = rows["a"][rows["op"] == L.WAIT]
    return int(waits.max()) if len(waits) else 0
