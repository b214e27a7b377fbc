"""What the engine hands back: spans, flows and totals as plain arrays. What they mean is the timeline's business."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from emu.engine.layout import QUEUE, TIMEOUT, WINDOW

STALL = np.dtype([("rank", "i4"), ("src", "i4"), ("dst", "i4"), ("start_s", "f8"), ("end_s", "f8")])


@dataclass(frozen=True)
class RawTimeline:
    """Times of a trace on a cluster.

    `spans` (dtype SPAN) are ordered by (rank, stream, row); `flows` (dtype FLOW) by (start, source, destination)
    and empty unless asked for. `labels` are the trace's, followed by the names of its templates. `link_bytes` is
    what each link of the cluster carried, `routes` what `flows["route"]` counts (0: to oneself).
    `windows` (dtype WINDOW) and `queues` (dtype QUEUE) tell, with the flows, how TCP windows and port queues went;
    `what` is 0 for a round trip, 1 for a loss that later segments told of, 2 for a timeout, until `until_s`, 3 for a
    new start. With spans alone there are the timeouts and no queues.
    """

    spans: np.ndarray
    flows: np.ndarray
    labels: tuple[str, ...]
    rank_end_s: np.ndarray
    link_bytes: np.ndarray
    routes: Sequence[Any]
    profile: str
    windows: np.ndarray = field(default_factory=lambda: np.zeros(0, WINDOW))
    queues: np.ndarray = field(default_factory=lambda: np.zeros(0, QUEUE))
    counters: Mapping[str, int] = field(default_factory=dict)
    spread: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stalls(self) -> np.ndarray:
        """When a rank's connection to or from another stood still for a retransmission timeout (dtype STALL)."""
        late = self.windows[self.windows["what"] == TIMEOUT]
        found = np.zeros(2 * len(late), STALL)
        for half, rank in ((slice(0, len(late)), "src"), (slice(len(late), None), "dst")):
            found["rank"][half], found["src"][half], found["dst"][half] = late[rank], late["src"], late["dst"]
            found["start_s"][half], found["end_s"][half] = late["time_s"], late["until_s"]
        return found

    @property
    def end_s(self) -> float:
        """When the last rank ends."""
        return float(self.rank_end_s.max()) if len(self.rank_end_s) else 0.0
