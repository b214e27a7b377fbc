"""How TCP went over time: the window of each connection, the queue of each switch port."""

from __future__ import annotations

from typing import Any

import numpy as np

from emu.errors import ConfigError


def windows(raw: Any) -> dict[tuple[int, int], np.ndarray]:
    """Return by (source, destination) a connection's lines, in order of time; see `Timeline.tcp_windows`."""
    log = raw.windows
    return {pair: log[(log["src"] == pair[0]) & (log["dst"] == pair[1])] for pair in _pairs(log)}


def queues(raw: Any, names: list[str]) -> dict[str, np.ndarray]:
    """Return by link the lines of the port before it, in order of time; see `Timeline.port_queues`."""
    log = raw.queues
    return {names[link]: log[log["link"] == link] for link in np.unique(log["link"]).tolist()}


def need_flows(flows: np.ndarray, what: str) -> None:
    """Raise ConfigError without flows: windows and queues are logged with them."""
    if not len(flows):
        raise ConfigError(f"timeline: flows are needed for {what}, got none; resolve with detail='flows'")


def _pairs(log: np.ndarray) -> list[tuple[int, int]]:
    pairs = np.unique(np.stack([log["src"], log["dst"]], axis=1), axis=0)
    return [(int(src), int(dst)) for src, dst in pairs]
