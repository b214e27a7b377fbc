"""The timeline: what happened when, and the questions it answers.

Not its business: giving a trace its times (`emu.engine`) and drawing (`emu.report`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from emu.errors import ConfigError, TraceError
from emu.timeline import accounting, congestion, links, table, volumes
from emu.timeline.meetings import Meetings, meet
from emu.timeline.path import Stretch, Walker
from emu.timeline.routes import Ways
from emu.timeline.tiling import Cause
from emu.timeline.views import RankView, rank_views
from emu.trace import Trace

if TYPE_CHECKING:
    from emu.engine.raw import RawTimeline


class Timeline:
    """A trace with times on one cluster.

    `spans` and `flows` are the engine's arrays; times are seconds from the start. Steps are the spans that
    the program marked as such; without them the whole run is one step.
    """

    def __init__(self, raw: RawTimeline, trace: Trace, cluster: Any) -> None:
        self.raw = raw
        self.trace = trace
        self.cluster = cluster

    @property
    def spans(self) -> np.ndarray:
        """One row a kernel, copy, wait, collective call and labelled span, of all ranks."""
        return self.raw.spans

    @property
    def flows(self) -> np.ndarray:
        """One row a message; empty where the engine was not asked for them."""
        return self.raw.flows

    @property
    def labels(self) -> tuple[str, ...]:
        """What the labels of spans and flows mean."""
        return self.raw.labels

    @property
    def end_s(self) -> float:
        """When the last rank ended."""
        return float(np.max(self.raw.rank_end_s, initial=0.0))

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.trace.world_size

    @cached_property
    def views(self) -> list[RankView]:
        """The spans of each rank, by stream."""
        if not len(self.spans) and any(len(rows) for rows in self.trace.ranks) and self.end_s > 0:
            raise TraceError(
                "timeline: spans are needed for an accounting, got totals only (end_s and link_use() are there); "
                "resolve the trace with detail='spans'"
            )
        return rank_views(self.trace, self.spans, self.raw.rank_end_s, _pauses(self.cluster))

    @cached_property
    def _ways(self) -> Ways:
        return Ways(self.cluster, self.trace)

    @cached_property
    def meetings(self) -> list[dict[int, Meetings]]:
        """Who waited for whom, by rank and stream."""
        return meet(self.views, self.trace, self._ways)

    @cached_property
    def windows(self) -> accounting.Windows:
        """Where each step starts and ends."""
        return accounting.windows(self.views, self.end_s)

    @cached_property
    def _pipeline_labels(self) -> np.ndarray:
        named = [i for i, label in enumerate(self.labels) if label.startswith("pipeline")]
        return np.array(named, dtype=np.int32)

    @cached_property
    def accounts(self) -> np.ndarray:
        """Seconds by (rank, step, cause); see `emu.timeline.tiling.Cause`."""
        stalls = self.raw.stalls
        return np.stack([
            accounting.account(
                view,
                self.meetings[view.rank],
                self.windows,
                _stalls_of(stalls, view.rank),
                self._pipeline_labels,
            )
            for view in self.views
        ])  # fmt: skip

    @cached_property
    def step(self) -> dict:
        """The average step over all steps and ranks: `time_s` and the parts that sum to it."""
        return accounting.parts(accounting.mean(self.accounts.reshape(-1, self.accounts.shape[2])))

    def step_of(self, rank: int) -> dict:
        """Return the average step of one rank."""
        self._check_rank(rank)
        return accounting.parts(accounting.mean(self.accounts[rank]))

    def steps(self, rank: int | None = None) -> list[dict]:
        """Return the accounting of each step, of one rank or as the mean over all ranks."""
        if rank is not None:
            self._check_rank(rank)
        found = []
        for k in range(len(self.windows.start_s)):
            spent = accounting.mean(self.accounts[:, k]) if rank is None else self.accounts[rank, k]
            where = {
                "index": int(self.windows.index[k]),
                "start_s": float(self.windows.start_s[k]),
                "end_s": float(self.windows.end_s[k]),
            }
            found.append(where | accounting.parts(spent))
        return found

    def table(self, most: int = 16) -> str:
        """Return the average step as text: a row a rank (at most `most`) and one for all."""
        shown = [(str(rank), self.step_of(rank)) for rank in range(min(self.world_size, most))]
        text = table.step_table(self.step, shown)
        left = self.world_size - len(shown)
        return text + (f"\n{left} more ranks are in `all`" if left > 0 else "")

    @cached_property
    def bytes_sent(self) -> np.ndarray:
        """Bytes that each rank sent to others, by the trace."""
        return volumes.bytes_sent(self.trace)

    @cached_property
    def bytes_sent_per_step(self) -> np.ndarray:
        """Bytes that each rank sent to others in an average step."""
        return volumes.bytes_sent_per_step(self.trace)

    def communication_s(self, rank: int) -> float:
        """Return how long, within the steps, a rank's communication ran on any stream, hidden or not."""
        self._check_rank(rank)
        view, horizon = self.views[rank], max(self.end_s, float(self.windows.end_s[-1]))
        starts, ends = [], []
        for number, stream in view.streams.items():
            tiling = accounting.stream_tiling(view, stream, self.meetings[rank][number], horizon, np.empty((0, 2)))
            busy = tiling.causes >= Cause.EXPOSED
            starts.append(tiling.starts[busy])
            ends.append(tiling.ends[busy])
        if not starts:
            return 0.0
        begin, end = np.concatenate(starts), np.concatenate(ends)
        order = np.argsort(begin, kind="stable")
        begin, end = links.busy_intervals(begin[order], end[order])
        running = accounting.Pieces(begin, end, np.full(len(begin), Cause.EXPOSED))
        return float(accounting.spend(running, self.windows).sum())

    def overlap_fraction(self, rank: int | None = None) -> float | None:
        """Return the share of communication that ran behind computation or waits; None without any."""
        ranks = range(self.world_size) if rank is None else [rank]
        total = sum(self.communication_s(r) for r in ranks)
        exposed = float(self.accounts[list(ranks)][:, :, Cause.EXPOSED :].sum())
        return None if total <= 0.0 else max(0.0, 1.0 - exposed / total)

    def link_use(self) -> list[links.LinkUse]:
        """Return what each link that carried something did, over the whole run; the most used first."""
        carried, busy = self.raw.link_bytes, {}
        for link, index in self._link_flows.items():
            begin, end = links.busy_intervals(self.flows["start_s"][index], self.flows["end_s"][index])
            busy[link] = float((end - begin).sum())
        found = []
        for link in np.flatnonzero(carried).tolist():
            known = self.cluster.links[link]
            share = float(carried[link]) / (known.bandwidth_bytes_per_s * self.end_s) if self.end_s else 0.0
            found.append(
                links.LinkUse(
                    known.name,
                    known.kind,
                    known.bandwidth_bytes_per_s,
                    int(carried[link]),
                    share,
                    busy.get(link),
                )
            )
        return sorted(found, key=lambda use: (-use.utilisation, use.name))

    def link_use_over_time(self, bins: int = 100) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the edges of `bins` equal intervals and, by link name, the fraction used in each.

        Raise ConfigError without flows.
        """
        congestion.need_flows(self.flows, "link use over time")
        edges = np.linspace(0.0, self.end_s, bins + 1)
        used = {}
        for link, index in self._link_flows.items():
            flows, known = self.flows[index], self.cluster.links[link]
            carried = links.use_over_time(flows["start_s"], flows["end_s"], flows["bytes"], edges)
            used[known.name] = carried / (known.bandwidth_bytes_per_s * np.diff(edges))
        return edges, used

    def tcp_windows(self) -> dict[tuple[int, int], np.ndarray]:
        """Return by (source, destination) how a TCP connection went: `time_s`, `cwnd_bytes`, `ssthresh_bytes`, `what`.

        `what` is 0 for a round trip, 1 for a loss, 2 for a timeout (until `until_s`), 3 for a start after a rest.
        Raise ConfigError without flows.
        """
        congestion.need_flows(self.flows, "TCP windows")
        return congestion.windows(self.raw)

    def port_queues(self) -> dict[str, np.ndarray]:
        """Return by link how the queue before it went: `time_s`, `bytes`, `dropped` (segments).

        Only ports with a buffer or a marking threshold have one. Raise ConfigError without flows.
        """
        congestion.need_flows(self.flows, "port queues")
        return congestion.queues(self.raw, [link.name for link in self.cluster.links])

    @cached_property
    def critical_path(self) -> list[Stretch]:
        """What the last end waited for, from the start to the end, stretch by stretch."""
        names = [link.name for link in self.cluster.links]
        return Walker(self.views, self.meetings, self._ways, self.labels, names, self.raw.stalls).walk()

    @cached_property
    def _link_flows(self) -> dict[int, np.ndarray]:
        return links.link_flows(self.flows, self.raw.routes) if len(self.flows) else {}

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise ConfigError(f"timeline: a rank from 0 to {self.world_size - 1} is expected, got {rank}")


def _stalls_of(stalls: np.ndarray, rank: int) -> np.ndarray:
    """Return a rank's stalls as sorted, disjoint (start_s, end_s)."""
    mine = np.sort(stalls[stalls["rank"] == rank], order="start_s")
    return np.stack(links.busy_intervals(mine["start_s"], mine["end_s"]), axis=1)


def _pauses(cluster: Any) -> dict[int, np.ndarray]:
    """Return the declared pauses of ranks as sorted, disjoint (start_s, end_s)."""
    declared: dict[int, list[tuple[float, float]]] = {}
    for pause in getattr(getattr(cluster, "faults", None), "pauses", ()):
        declared.setdefault(pause.rank, []).append((pause.at_s, pause.at_s + pause.duration_s))
    return {
        rank: np.stack(links.busy_intervals(*np.array(sorted(times)).T), axis=1) for rank, times in declared.items()
    }
