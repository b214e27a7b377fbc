"""What the ranks' rows say of who can go on: sends and receives that have met, without any time.

A rank that waits is blocked if the messages that it waits for have not been sent (or received) by anybody's rows.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np

from emu.trace import ANY, COLLECTIVE, ROW, Op

STILL_S = 0.1  # a rank that waits for nothing recorded stands still if it says so for so long
SEND_STILL_S = 0.01  # a send may end without its receive: then it does so at once

Key = tuple[Any, ...]


class Progress:
    """Every rank's messages so far."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.streams: dict[str, int] = {"default": 0}
        self.sent: Counter[Key] = Counter()
        self.received: Counter[Key] = Counter()
        self.requests: dict[tuple[int, int], list[tuple[bool, Key, int]]] = {}  # (rank, stream) -> its requests
        self.meets: dict[int, dict[Any, int]] = {}  # rank -> whom -> how often it has come to meet them
        self.since: dict[int, tuple[int, float]] = {}  # rank -> serial and time of its first such standing

    def take(self, standing: Any) -> np.ndarray:
        """Take in a rank's new rows; return them with streams numbered alike on all ranks."""
        rows = np.frombuffer(standing.rows, ROW).copy()
        if len(standing.streams) > 1:
            number = [self.streams.setdefault(name, len(self.streams)) for name in standing.streams]
            rows["stream"] = np.array(number, np.uint8)[rows["stream"]]
        for row in rows[(rows["op"] == Op.SEND) | (rows["op"] == Op.RECV)]:
            self._message(standing.rank, row)
        self.meets[standing.rank] = standing.meets
        known = self.since.get(standing.rank)
        if known is None or known[0] != standing.serial:
            self.since[standing.rank] = (standing.serial, time.monotonic())
        return rows

    def _message(self, rank: int, row: Any) -> None:
        sends = bool(row["op"] == Op.SEND)
        stream, peer, tag = int(row["stream"]), int(row["a"]), int(row["b"])
        lane = stream if row["flag"] & COLLECTIVE else -1
        pair = (rank, peer) if sends else (peer, rank)
        counter = self.sent if sends else self.received
        whole = (int(row["c"]), lane, *pair)
        key: Key = (*whole, tag)
        counter[whole] += 1
        if tag != ANY:
            counter[key] += 1
        else:
            key = whole
        self.requests.setdefault((rank, stream), []).append((sends, key, counter[key]))

    def answered(self, question: Any, answer: Any) -> None:
        """Note which messages receives from any source have got."""
        if question.probe is not None:
            return
        for k, source, tag in zip(answer.done, answer.sources, answer.tags, strict=True):
            requests = self.requests.get((question.rank, question.stream), [])
            sends, key, _ = requests[len(requests) - question.requests[k]]
            if not sends and key[2] == ANY:
                whole = (key[0], key[1], source, question.rank)
                self.received[whole] += 1
                self.received[(*whole, tag)] += 1
                requests[len(requests) - question.requests[k]] = (False, (*whole, tag), 0)

    def blocked(self, standing: Any) -> bool:
        """Tell whether a rank that waits can't go on by what all ranks have done."""
        if standing.waits is None and standing.meeting is not None:
            return self._misses(standing)
        serial, since = self.since[standing.rank]
        still_s = time.monotonic() - since
        if standing.waits is None:
            return standing.stuck and serial == standing.serial and still_s > STILL_S
        stream, numbers = standing.waits
        requests = self.requests.get((standing.rank, self._stream(standing, stream)), [])
        for number in numbers:
            if number >= len(requests):
                return False
            sends, key, index = requests[number]
            other = self.received if sends else self.sent
            if other[key] < index and (not sends or still_s > SEND_STILL_S):
                return True
        return False

    def _misses(self, standing: Any) -> bool:
        """Tell whether somebody whom a rank is to meet has not come yet."""
        whom = standing.meeting
        members = range(self.size) if whom == "all" else whom[1]
        turn = standing.meets[whom]
        return any(self.meets.get(rank, {}).get(whom, 0) < turn for rank in members)

    def _stream(self, standing: Any, stream: int) -> int:
        return self.streams.get(standing.streams[stream], stream)
