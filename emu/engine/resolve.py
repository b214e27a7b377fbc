"""The engine's face: `resolve` times a whole trace; `Engine` goes on from where it stands."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from emu.engine import layout as L
from emu.engine.deadlock import explain
from emu.engine.declared import set_faults
from emu.engine.folding import fold as fold_steps
from emu.engine.profiles import find_profile
from emu.engine.program import Program
from emu.engine.questions import Answer, Question, answer, answer_time_s
from emu.engine.raw import RawTimeline
from emu.engine.routes import Reordered
from emu.engine.state import State
from emu.errors import ConfigError
from emu.trace import Template, Trace

SPREAD_PERTURBATION = 1e-9
DETAILS = ("totals", "steps", "spans", "flows")


class Engine:
    """A simulation that is told rows as a program makes them, and goes on from where it stands.

    `detail`: "totals" logs nothing, "steps" the spans of steps, "spans" every row outside templates, "flows" each
    message too.
    `any_source` is for programs that ask by probing or receive from any source in rows yet to come.
    `seed` is added to that of the cluster's jitter; `compute_jitter` and `network_jitter` replace its deviations;
    `perturbation` varies each message's bytes by up to that fraction, as `perturbation_seed` has it.
    """

    def __init__(
        self, cluster: Any, world_size: int, *, profile: str = "ideal", detail: str = "spans", seed: int = 0,
        perturbation: float = 0.0, perturbation_seed: int = 0, compute_jitter: float | None = None,
        network_jitter: float | None = None, any_source: bool = True,
    ):
        if detail not in DETAILS:
            raise ConfigError(f"detail: one of {', '.join(DETAILS)} is expected, got {detail!r}")
        if world_size > cluster.size:
            raise ConfigError(
                f"cluster {getattr(cluster, 'name', '')}: {world_size} GPUs are needed, got {cluster.size}; "
                "name more nodes"
            )
        self.cluster = cluster
        self.world_size = world_size
        self.labels: list[str] = []
        self.template_labels: list[str] = []
        self._profile = find_profile(profile)
        self._state = State(len(cluster.links), world_size)
        self._set_links()
        count, real = self._state.count, self._state.real
        jitter = getattr(getattr(cluster, "faults", None), "jitter", None)
        count[L.LOG_SPANS] = detail != "totals"
        count[L.LOG_STEPS] = detail == "steps"
        count[L.LOG_FLOWS] = detail == "flows"
        count[L.FREE_SUMS] = not self._profile.sums
        count[L.ALL_EAGER] = self._profile.eager
        count[L.PERTURBATION_SEED] = perturbation_seed
        count[L.SEED] = seed + getattr(jitter, "seed", 0)
        set_faults(self._state, cluster, world_size)
        real[L.PERTURB] = perturbation
        real[L.JITTER] = getattr(jitter, "compute", 0.0) if compute_jitter is None else compute_jitter
        real[L.NETWORK_JITTER] = getattr(jitter, "latency", 0.0) if network_jitter is None else network_jitter
        self._program = Program(self._state, cluster, world_size, self._profile, renumber=not any_source)
        self._settled_s = -math.inf  # up to here nothing can change
        count[L.WILD] = any_source
        if any_source:
            self.call_plainly()

    def _set_links(self) -> None:
        link = self._state[L.T_LINK]
        link["rate"] = [k.bandwidth_bytes_per_s for k in self.cluster.links]

    def declare(
        self, labels: Sequence[str] = (), templates: Sequence[Template] = (), groups: Sequence[Sequence[int]] = ()
    ) -> None:
        """Add labels, templates and groups; each is numbered on from those before."""
        self.labels.extend(labels)
        first = len(self.template_labels)
        self.template_labels.extend(t.name for t in templates)
        # Labels may come later: a template's label is counted from the far end, see `_labels`.
        self._program.declare(templates, groups, [-2 - first - k for k in range(len(templates))])

    def call_plainly(self) -> None:
        """Time calls as they were recorded: so they were while the program's questions were answered.

        Some ranks' rows of a call were told before the call had ended, and are no call in the trace.
        """
        self._program.calls.plain = True

    def extend(self, rank: int, rows: np.ndarray) -> None:
        """Add rows to the end of a rank's log."""
        self._settled_s = -math.inf
        self._program.extend([(rank, rows)])

    def extend_some(self, pieces: Sequence[tuple[int, np.ndarray]]) -> None:
        """Add rows to the logs of several ranks at once."""
        self._settled_s = -math.inf
        self._program.extend(list(pieces))

    def may_fold(self) -> bool:
        """Say whether equal steps can take equal times: nothing is random, changes with time, or takes any."""
        state = self._state
        noise = state.real[[L.JITTER, L.PERTURB, L.NETWORK_JITTER]].any()
        rank = state[L.T_RANK]
        changing = state.count[L.FAULT_COUNT] or rank["pauses"].any() or np.isfinite(rank["death"]).any()
        return not (noise or changing or state.count[L.WILD])

    def first_end_s(self, limit_s: float = math.inf) -> float:
        """Advance until the first lane has no more rows, or to `limit_s`; return when that is."""
        state = self._state
        lane = state[L.T_LANE][: state.count[L.LANE_COUNT]]
        lane["asks"] = 1
        ended = lane["state"] == L.ENDED
        state.real[L.HORIZON] = min(limit_s, lane["time"][ended].min(initial=math.inf))
        self.run()
        state[L.T_LANE]["asks"] = 0
        return float(state.real[L.HORIZON])

    def extend_all(self, logs: Sequence[np.ndarray]) -> None:
        """Add rows to the logs of all ranks at once."""
        self._program.extend(list(enumerate(logs)))

    @property
    def messages(self) -> int:
        """How many messages have been timed; may be read while another thread runs the engine."""
        return int(self._state.count[L.MESSAGES])

    @property
    def now_s(self) -> float:
        """How far the engine has come."""
        return float(self._state.real[L.NOW])

    def run(self) -> int:
        """Advance as far as possible: to the horizon, or until nothing happens any more."""
        from emu.engine.core import run

        state = self._state
        while True:
            need = run(state.address)
            if need == L.NEED_MESSAGES:
                state.more_messages(2 * int(state.count[L.MSG_CAPACITY]))
            elif need == L.NEED_CHANNELS:
                state.more_channels()
            elif need == L.NEED_REQUESTS:
                state.more_requests(int(state.count[L.STUCK_LANE]))
            elif need == L.NEED_LOG:
                state.more_log()
            elif need == L.NEED_HEAP:
                state.more_heap()
            else:
                return need

    def advance(self, questions: Sequence[Question]) -> tuple[int, Answer]:
        """Advance until one question is answered; return which, and its answer.

        Every rank that may still add rows must ask one. Raise DeadlockError if none can be answered.
        """
        state, lanes = self._state, [self._program.lane(q.rank, q.stream) for q in questions]
        state.count[L.WILD] = 1
        state[L.T_LANE]["asks"] = 0
        state[L.T_LANE]["asks"][lanes] = 1
        state[L.T_RANK]["probes"] = 0
        for q in questions:
            state[L.T_RANK][q.rank]["probes"] = q.probe is not None
        while True:
            entries = state[L.T_LANE]
            times = [answer_time_s(state, entries[i], q) for i, q in zip(lanes, questions, strict=True)]
            first = min(range(len(times)), key=lambda k: (times[k], questions[k].rank))
            if times[first] <= self._settled_s:
                entries["asks"][lanes[first]] = 0
                return first, answer(state, entries[lanes[first]], questions[first], times[first])
            state.real[L.HORIZON] = times[first]
            self._settled_s = -math.inf
            if self.run() == L.IDLE:
                self._settled_s = math.inf
                if not any(answer_time_s(state, state[L.T_LANE][i], q) < math.inf
                           for i, q in zip(lanes, questions, strict=True)):
                    asked = {i: q.requests for i, q in zip(lanes, questions, strict=True)}
                    raise explain(state, self._program, self._labels(), asked)
            else:
                self._settled_s = float(state.real[L.HORIZON])

    def finish(self) -> RawTimeline:
        """Run to the end and return the times. Raise DeadlockError if a rank can't reach its end."""
        self._state.real[L.HORIZON] = math.inf
        self._state[L.T_LANE]["asks"] = 0
        self.run()
        lane = self._state[L.T_LANE][: len(self._program.lane_of)]
        if (~np.isin(lane["state"], (L.ENDED, L.DEAD))).any():
            raise explain(self._state, self._program, self._labels())
        return self._timeline()

    def _labels(self) -> tuple[str, ...]:
        return tuple(self.labels) + tuple(self.template_labels)

    def _named(self, label: np.ndarray) -> np.ndarray:
        """Give templates' labels their place after the trace's own."""
        return np.where(label < -1, len(self.labels) - 2 - label, label)

    def _timeline(self) -> RawTimeline:
        state, program = self._state, self._program
        count = state.count
        spans = _by_lane(state[L.T_SPAN][: count[L.SPAN_COUNT]])
        spans["label"] = self._named(spans["label"])
        flows = state[L.T_FLOW][: count[L.FLOW_COUNT]].copy()
        flows = flows[np.lexsort((flows["dst"], flows["src"], flows["posted_s"], flows["start_s"]))]
        flows["label"] = self._named(flows["label"])
        order = program.pairs.order()
        place = np.zeros(len(order), np.int32)
        place[order] = np.arange(len(order))
        flows["route"] = place[flows["route"]]
        lane = state[L.T_LANE][: len(program.lane_of)]
        ends = np.zeros(self.world_size)
        np.maximum.at(ends, lane["rank"], lane["time"])
        ends = np.minimum(ends, state[L.T_RANK]["death"])
        return RawTimeline(
            spans=spans, flows=flows, labels=self._labels(), rank_end_s=ends,
            link_bytes=state[L.T_LINK]["carried"].copy(), routes=Reordered(program.routes.copy(), order),
            profile=self._profile.name,
            windows=state[L.T_WINDOW_LOG][: count[L.WINDOW_LOG]].copy(),
            queues=state[L.T_QUEUE_LOG][: count[L.QUEUE_LOG]].copy(),
            counters={
                "messages": int(count[L.MESSAGES]), "messages_folded": 0, "copies": int(count[L.COPIES]),
                "events": int(count[L.EVENTS]), "refills": int(count[L.REFILLS]),
                "refilled_flows": int(count[L.REFILLED]), "tcp_rounds": int(count[L.TCP_ROUNDS]),
                "tcp_lost_segments": int(count[L.TCP_LOST]), "tcp_timeouts": int(count[L.TCP_TIMEOUTS]),
            },
        )  # fmt: skip


def _by_lane(spans: np.ndarray) -> np.ndarray:
    """Return spans by rank, then stream, then row: a lane logs its own in the order of its rows."""
    lane = spans["rank"].astype(np.int64) << 8 | spans["stream"]
    known, number = np.unique(lane, return_inverse=True)
    return spans[np.argsort(number.astype(np.min_scalar_type(len(known))), kind="stable")]


def resolve(
    trace: Trace, cluster: Any, profile: str = "ideal", detail: str = "spans", *, seed: int = 0,
    perturbation: float = 0.0, compute_jitter: float | None = None, network_jitter: float | None = None,
    spread: int = 0, fold: bool = True, watch: Callable[[Engine], None] | None = None,
) -> RawTimeline:
    """Return the times of a trace on a cluster. Raise DeadlockError for one that can't finish.

    With `fold`, equal steps are timed until they repeat, and then shifted; see `folding`.
    `spread` times it so many times more, each message's bytes varied by a billionth, and tells in the result's
    `spread` how far apart the ends are: where dependent steps share oversubscribed links, a difference in the last
    bits can grow to percents, and one timeline is then one draw of many.
    `watch` is called with the engine before it begins, for who shows how far it is.
    """
    noise = {"compute_jitter": compute_jitter, "network_jitter": network_jitter}
    raw = _resolve_once(trace, cluster, profile, detail, fold, watch, seed=seed, perturbation=perturbation, **noise)
    if not spread:
        return raw
    ends = [
        _resolve_once(
            trace, cluster, profile, "totals", False, None, seed=seed, perturbation=SPREAD_PERTURBATION,
            perturbation_seed=1 + k, **noise,
        ).end_s
        for k in range(spread)
    ]
    width = (max([*ends, raw.end_s]) - min([*ends, raw.end_s])) / raw.end_s if raw.end_s else 0.0
    told = {"runs": spread, "perturbation": SPREAD_PERTURBATION, "end_s": tuple(ends), "relative": width}
    return dataclasses.replace(raw, spread=told)


def _resolve_once(
    trace: Trace, cluster: Any, profile: str, detail: str, fold: bool, watch: Callable[[Engine], None] | None,
    **noise: Any,
) -> RawTimeline:
    engine = Engine(cluster, trace.world_size, profile=profile, detail=detail, any_source=False, **noise)
    if watch is not None:
        watch(engine)
    engine.declare(trace.labels, trace.templates, trace.groups)
    if "order" in trace.header.get("marks", {}):
        engine.call_plainly()
    if fold:
        return fold_steps(engine, trace)
    engine.extend_all(trace.ranks)
    return engine.finish()
