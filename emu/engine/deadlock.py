"""Why a trace can't go on: the cycle of ranks that wait for each other, or the one that nobody will help."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from emu.engine import layout as L
from emu.engine.program import Program
from emu.engine.state import State
from emu.errors import DeadlockError

_MOST_LINES = 12
_NOTHING: Mapping[int, Sequence[int]] = MappingProxyType({})


@dataclass(frozen=True)
class Waits:
    """A lane that can't go on, why, and for which lanes or ranks."""

    lane: int
    rank: int
    doing: str
    span: str
    peer: int
    reason: str

    def __str__(self) -> str:
        return f"rank {self.rank} in {self.span}: {self.doing}{self.reason}"


def explain(
    state: State, program: Program, labels: tuple[str, ...], asked: Mapping[int, Sequence[int]] = _NOTHING
) -> DeadlockError:
    """Return the error that names each rank of a cycle, its operation, its span and its peer.

    `asked` holds, by lane, how many requests ago those were posted that a question waits for.
    """
    waits = [w for i in range(len(program.lane_of))
             for w in _waits_of(state, program, labels, i, asked.get(i, ()))]
    waits = [replace(w, reason=w.reason + _death_of(state, w.peer)) for w in waits]
    cycle = _cycle(waits)
    shown = cycle or waits
    lines = "; ".join(str(w) for w in shown[:_MOST_LINES])
    if len(shown) > _MOST_LINES:
        lines += f"; and {len(shown) - _MOST_LINES} more"
    what = f"a cycle of {len(cycle)}" if cycle else "nobody is left to help"
    return DeadlockError(
        f"trace: every rank must reach its end, got {what} at {state.real[L.NOW]:.9g} s: {lines}; "
        "post receives before the sends they wait for, and give every send its receive"
    )


def _waits_of(
    state: State, program: Program, labels: tuple[str, ...], i: int, asked: Sequence[int]
) -> list[Waits]:
    lane = state[L.T_LANE][i]
    rank = int(lane["rank"])
    span = _span_of(state, program, labels, lane)
    if lane["state"] == L.WAITING or asked:
        wanted = (range(int(lane["wait_lo"]), int(lane["wait_hi"])) if lane["state"] == L.WAITING
                  else [int(lane["req_no"]) - back for back in asked])
        return [Waits(i, rank, doing, span, peer, reason)
                for doing, peer, reason in _pending(state, lane, i, wanted)]
    if lane["state"] == L.AWAITING:
        return [Waits(i, rank, "waits for an event", span, rank, " that its own rank has not recorded")]
    if lane["state"] == L.SYNCING:
        return [Waits(i, rank, "synchronizes", span, rank, ", waiting for its other streams")]
    if lane["state"] == L.COPYING:
        return [Waits(i, rank, "copies", span, -1, " over a link that carries nothing")]
    return []


def _death_of(state: State, peer: int) -> str:
    death = float(state[L.T_RANK]["death"][peer]) if peer >= 0 else np.inf
    lane = state[L.T_LANE]
    dead = bool(((lane["rank"] == peer) & (lane["state"] == L.DEAD)).any())
    return f" (which died at {death:g} s)" if dead else ""


def _span_of(state: State, program: Program, labels: tuple[str, ...], lane: Any) -> str:
    own = len(labels) - len(program.templates)

    def name(label: int) -> str:
        return labels[label] if label >= 0 else labels[own - 2 - label]

    label = int(lane["label"])
    stream = int(lane["stream"])
    where = f"'{name(label)}'" if label != -1 else "no span"
    return where + (f" (stream {stream})" if stream else "")


def _pending(state: State, lane: Any, i: int, wanted: Iterable[int]) -> list[tuple[str, int, str]]:
    """Return (operation, peer, reason) of each request that lane `i` waits for in vain."""
    msg = state[L.T_MSG][: state.count[L.MSG_CAPACITY]]
    live = (msg["status"] & (L.SENT | L.RECEIVED)) != 0
    done = state[L.T_REQUEST]
    out = []
    for request in wanted:
        if done[int(lane["req_base"]) + (request & int(lane["req_mask"]))] != np.inf:
            continue
        sends = np.flatnonzero(live & (msg["src_lane"] == i) & (msg["src_req"] == request)
                               & ((msg["status"] & L.SENT) != 0))
        receives = np.flatnonzero(live & (msg["dst_lane"] == i) & (msg["dst_req"] == request)
                                  & ((msg["status"] & L.RECEIVED) != 0))
        if len(sends):
            f = msg[sends[0]]
            tag = _tag(state, f)
            reason = (" over a link that carries nothing" if f["status"] & L.FLYING
                      else f", which rank {f['dst']} has not asked for")
            out.append((f"sends {f['bytes']} bytes to rank {f['dst']}{tag}", int(f["dst"]), reason))
        elif len(receives):
            f = msg[receives[0]]
            if f["src"] < 0:
                out.append(("receives from any rank", -1, ", and nobody sends"))
            else:
                out.append((f"receives from rank {f['src']}{_tag(state, f)}", int(f["src"]), ""))
    return out


def _tag(state: State, f: Any) -> str:
    if not 0 <= f["chan"] < state.count[L.CHANNEL_COUNT]:
        return ""
    return f" with tag {state[L.T_CHANNEL][f['chan']]['tag']}"


def _cycle(waits: list[Waits]) -> list[Waits]:
    """Return a shortest-found cycle: each waits for the next one's rank, the last for the first's."""
    of_rank: dict[int, list[Waits]] = {}
    for w in waits:
        of_rank.setdefault(w.rank, []).append(w)
    finished: set[int] = set()
    for start in sorted(of_rank):
        path: list[Waits] = []
        at: dict[int, int] = {}
        stack = [(start, iter(of_rank[start]))]
        at[start] = 0
        while stack:
            step = next(stack[-1][1], None)
            if step is None:
                rank, _ = stack.pop()
                finished.add(rank)
                at.pop(rank)
                if path:
                    path.pop()
                continue
            if step.peer in at:
                return [*path, step][at[step.peer]:]
            if step.peer in of_rank and step.peer not in finished:
                at[step.peer] = len(stack)
                path.append(step)
                stack.append((step.peer, iter(of_rank[step.peer])))
    return []
