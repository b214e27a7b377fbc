"""A timeline as one JSON object."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from emu.timeline import Timeline, stragglers, summarize
from emu.trace import write_whole

MOST_RANKS = 1024  # steps by rank that are listed


def summary(timeline: Timeline) -> dict[str, Any]:
    """Return what a reader wants to know about a timeline, ready for JSON.

    `step` is the average step over all ranks and steps, `ranks` that of each rank, `steps` each step over
    all ranks; `time_s` of each is the sum of its parts.
    """
    path = timeline.critical_path
    ranks = min(timeline.world_size, MOST_RANKS)
    return {
        "cluster": {"name": timeline.cluster.name, "sha256": timeline.cluster.sha256},
        "gpus": timeline.world_size,
        "end_s": timeline.end_s,
        "step": timeline.step,
        "steps": timeline.steps(),
        "ranks": [{"rank": rank, **timeline.step_of(rank)} for rank in range(ranks)],
        "overlap_fraction": timeline.overlap_fraction(),
        "bytes_sent_per_gpu": timeline.bytes_sent.tolist(),
        "links": [
            {
                "link": use.name,
                "kind": use.kind,
                "bandwidth_bytes_per_s": use.bandwidth_bytes_per_s,
                "bytes": use.bytes,
                "utilisation": use.utilisation,
                "busy_s": use.busy_s,
            }
            for use in timeline.link_use()
        ],
        "critical_path": summarize(path),
        "came_last": {str(rank): count for rank, count in stragglers(path).items()},
    }


def write_json(value: Any, path: str | os.PathLike) -> None:
    """Write a value as JSON to `path`, whole or not at all. Raise ConfigError where that is impossible."""
    write_whole(Path(path), (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())
