"""The same program under both clocks, compared operation by operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from emu.cluster import Cluster
from emu.engine import resolve
from emu.errors import TraceError
from emu.trace import Op, Trace

PERTURBATION = 1e-9  # of each message's bytes
DRAWS = 3
AMPLIFIES = 1e-3  # a program whose operations move by more than this part of the run under it is chaotic
_COMPARED = (Op.COMPUTE, Op.ELAPSED, Op.COPY, Op.WAIT, Op.AWAIT, Op.CALL)

Ended = Mapping[int, Sequence[tuple[int, float]]]  # stream -> (operation, when it ended) in the order of rows


@dataclass(frozen=True)
class Line:
    """How one kind of operation compares. Differences are of its ends, wall minus virtual, in emulated seconds."""

    operation: str
    count: int
    mean_s: float
    median_difference_s: float
    worst_difference_s: float


@dataclass(frozen=True)
class Agreement:
    """How a run under the wall clock compares with the virtual clock's time for the same program.

    `early` counts operations that ended before their virtual time. A program that amplifies tiny differences is
    compared by the distribution of its operations' durations instead, one by one it has no right answer.
    """

    virtual_s: float
    wall_s: float  # of emulated time, by the host's clock
    error_pct: float
    early: int
    amplifies: bool
    spread_pct: float
    distribution_error_pct: float
    lines: tuple[Line, ...]
    ends: tuple[tuple[float, float], ...]  # virtual and wall, of each operation

    def json(self) -> dict[str, Any]:
        """Return all of it but the single operations as plain values."""
        return {name: value for name, value in asdict(self).items() if name != "ends"}


def compare(trace: Trace, cluster: Cluster, profile: str, ended: Sequence[Ended]) -> Agreement:
    """Compare what each rank measured with the engine's times. Raise TraceError if they are not the same program."""
    spans, labels = _spans(trace, cluster, profile)
    virtual, wall, names, took = [], [], [], []
    for rank, streams in enumerate(ended):
        mine = spans[spans["rank"] == rank]
        for stream, found in sorted(streams.items()):
            part = mine[mine["stream"] == stream]
            if part["op"].tolist() != [op for op, _ in found]:
                raise TraceError(
                    f"rank {rank}, stream {stream}: the same operations under both clocks are expected, got "
                    f"{len(part)} and {len(found)}; a program that asks for time or order has its own order"
                )
            virtual.append(part["end_s"])
            took.append(part["end_s"] - part["start_s"])
            wall.append(np.array([time_s for _, time_s in found], dtype=float))
            names += [_name(row, labels) for row in part]
    return _agreement(
        _joined(virtual), _joined(wall), _joined(took), names, _spread(trace, cluster, profile, spans)
    )


def _spans(trace: Trace, cluster: Cluster, profile: str, **more: Any) -> tuple[np.ndarray, Sequence[str]]:
    raw = resolve(trace, cluster, profile=profile, detail="spans", **more)
    kept = np.isin(raw.spans["op"], [int(op) for op in _COMPARED])
    return raw.spans[kept], raw.labels


def _spread(trace: Trace, cluster: Cluster, profile: str, spans: np.ndarray) -> float:
    """Return by how much of the run an operation moves when sizes are off by next to nothing."""
    run_s = float(spans["end_s"].max()) if len(spans) else 0.0
    if run_s == 0:
        return 0.0
    draws = [
        _spans(trace, cluster, profile, perturbation=PERTURBATION, seed=seed)[0]["end_s"] for seed in range(DRAWS)
    ]
    return float(max(np.abs(draw - spans["end_s"]).max() for draw in draws)) / run_s


def _agreement(
    virtual: np.ndarray, wall: np.ndarray, took: np.ndarray, names: Sequence[str], spread: float
) -> Agreement:
    off = wall - virtual
    run_s, wall_s = (float(ends.max()) if len(ends) else 0.0 for ends in (virtual, wall))
    lines = []
    for name in dict.fromkeys(names):
        chosen = np.array([each == name for each in names])
        lines.append(Line(
            name, int(chosen.sum()), float(took[chosen].mean()), float(np.median(off[chosen])),
            float(off[chosen][np.abs(off[chosen]).argmax()]),
        ))  # fmt: skip
    return Agreement(
        virtual_s=run_s,
        wall_s=wall_s,
        error_pct=100 * (wall_s - run_s) / run_s if run_s else 0.0,
        early=int((off < -1e-9 * run_s).sum()),
        amplifies=spread > AMPLIFIES,
        spread_pct=100 * spread,
        distribution_error_pct=100 * float(np.abs(np.sort(wall) - np.sort(virtual)).mean()) / run_s if run_s else 0.0,
        lines=tuple(lines),
        ends=tuple(zip(virtual.tolist(), wall.tolist(), strict=True)),
    )


def _name(row: Any, labels: Sequence[str]) -> str:
    op = Op(int(row["op"]))
    if op in (Op.WAIT, Op.AWAIT):
        return "wait for messages" if op == Op.WAIT else "wait for another stream"
    return labels[int(row["label"])]


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(0)
