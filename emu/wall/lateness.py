"""How late messages were, how long emulated time stood still, and which dilation would have kept up.

A message is late when it comes later than a hundredth of its own time, or of the run's mean message time where that
is longer. All messages in time together are then late by less than a fiftieth of all messages' time, and a message
of no bytes, which takes a nanosecond of emulated time, needs no host that is exact to picoseconds. How many were
late by their own time alone, however short it is, is told beside that.

What a host delays a message by, in its own seconds, does not grow with the dilation. So one that came `d` late at
dilation N is in time at every dilation of at least `d / (a hundredth of that time)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from emu.units import format_time

STILL = 0.05  # part of a run that emulated time may stand still before the run counts as one that did not keep up
ENOUGH = 0.01  # of the messages that may be late, and of a message's time that it may be late by
FEW = 100  # messages; fewer can't show that one in a hundred is late
MOST = 5000.0  # a host that needs a higher dilation can't run the program live


class Lateness:
    """What one rank's messages were. Several threads add to it."""

    def __init__(self) -> None:
        self.found: list[tuple[float, float, float]] = []

    def message(self, own_s: float, late_s: float, dilation: float) -> None:
        """Count a message that takes `own_s` of emulated time and came `late_s` of the host's after its time."""
        self.found.append((own_s, late_s, dilation))


@dataclass(frozen=True)
class Told:
    """What a run tells of its lateness. `*_wall_s` are seconds of the host's clock.

    `late` and `*_pct` are relative to a message's own time or to `mean_s`, the run's mean message time, whichever is
    longer; `late_of_own` counts those late by their own time alone. `stood_still_wall_s` is how long all waited for
    a rank whose host had more to do than the emulated GPU. `enough` is the smallest dilation at which, with the same
    delays, no more than one message in a hundred would have been late, and that work would have had its time;
    infinite if that is more than 5,000. Messages from before an automatic dilation was settled are not counted.
    """

    dilation: float
    messages: int
    late: int
    early: int
    median_pct: float
    p99_pct: float
    worst_pct: float
    worst_wall_s: float
    stood_still_wall_s: float
    run_wall_s: float
    enough: float
    clocks_off_wall_s: float = 0.0  # between hosts: error of the offset, and drift
    mean_s: float = 0.0
    late_of_own: int = 0
    auto: bool = False  # the dilation was found by the run

    @property
    def kept_up(self) -> bool:
        """Whether at most one message in a hundred was late, and emulated time hardly ever stood still."""
        return self.late <= ENOUGH * self.messages and self.stood_still_wall_s <= STILL * self.run_wall_s

    def json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        enough = self.enough if math.isfinite(self.enough) else None
        return asdict(self) | {"enough": enough, "kept_up": self.kept_up}

    def beside(self, report: str) -> str:
        """Return a run's report with this told: first, if the host could not keep up, else last."""
        return f"{report}\n\n{self.text()}" if self.kept_up else f"{self.text()}\n\n{report}"

    def text(self) -> str:
        """Return one line for people."""
        stood = f"emulated time stood still for {self.stood_still_wall_s:.3g} s of {self.run_wall_s:.3g} s"
        if self.clocks_off_wall_s:
            stood += f"; the hosts' clocks agree within {1e3 * self.clocks_off_wall_s:.2g} ms"
        if self.auto and self.kept_up and self.messages < FEW:
            stood += f"; a short run, repeat it with this dilation to be sure of it: {self.dilation:g}"
        if not self.messages:
            line = f"no messages{' since the dilation was settled' if self.auto else ''}; {stood}"
            return self._led(line)
        line = (
            f"{self.late} of {self.messages} messages late by more than {ENOUGH:.0%} of their time, or of the mean "
            f"message's {format_time(self.mean_s)} where that is longer (median {self.median_pct:.2g} %, worst "
            f"{self.worst_pct:.3g} % or {1e3 * self.worst_wall_s:.3g} ms), none early; {stood}"
        )
        if self.late_of_own > self.late:
            line += f"; {self.late_of_own} late by their own time alone, however short"
        if self.early:
            line = line.replace("none early", f"{self.early} EARLY")
        return self._led(line)

    def _led(self, line: str) -> str:
        if self.kept_up:
            return f"wall clock, dilation {self.dilation:g}: {line}"
        return f"THE HOST COULD NOT KEEP UP at dilation {self.dilation:g} ({self._enough_told()}): {line}"

    def _enough_told(self) -> str:
        if math.isfinite(self.enough):
            return f"enough: {self.enough:,.0f}"
        return f"enough: more than {MOST:,.0f}: this host, as busy as it is, cannot run it live"


def summarise(
    found: Sequence[Sequence[tuple[float, float, float]]], dilation: float, stood_still_s: float, run_s: float,
    clocks_off_s: float = 0.0, auto: bool = False,
) -> Told:  # fmt: skip
    """Join what all ranks found; messages from before the dilation was settled count for the mean time alone."""
    pairs = np.array([message for rank in found for message in rank], dtype=float).reshape(-1, 3)
    pairs = pairs[pairs[:, 0] > 0]
    mean_s = float(pairs[:, 0].mean()) if len(pairs) else 0.0
    pairs = pairs[pairs[:, 2] == dilation]
    behind = _behind(dilation, stood_still_s, run_s)
    if not len(pairs):
        numbers = (0, 0, 0, 0.0, 0.0, 0.0, 0.0, stood_still_s, run_s, _smallest(behind), clocks_off_s, mean_s)
        return Told(dilation, *numbers, auto=auto)
    own_s, late_s, _ = pairs.T
    allowed_s = np.maximum(own_s, mean_s)
    part = late_s / (dilation * allowed_s)
    needed = np.sort(late_s / (ENOUGH * allowed_s))[::-1]
    return Told(
        dilation=dilation,
        messages=len(pairs),
        late=int((part > ENOUGH).sum()),
        early=int((late_s < 0).sum()),
        median_pct=100 * float(np.median(part)),
        p99_pct=100 * float(np.quantile(part, 0.99)),
        worst_pct=100 * float(part.max()),
        worst_wall_s=float(late_s.max()),
        stood_still_wall_s=stood_still_s,
        run_wall_s=run_s,
        enough=_smallest(float(needed[int(ENOUGH * len(needed))]), behind),
        clocks_off_wall_s=clocks_off_s,
        mean_s=mean_s,
        late_of_own=int((late_s > ENOUGH * dilation * own_s).sum()),
        auto=auto,
    )


def _behind(dilation: float, stood_still_s: float, run_s: float) -> float:
    """Return the dilation at which time would stand still for no more than a twentieth of the run.

    Delays stay as long as they are, while the run grows; work that takes emulated time fits sooner, at the latest
    when the whole run would have had its time.
    """
    emulated_s = max(run_s - stood_still_s, 1e-9) / dilation
    return min((1 / STILL - 1) * stood_still_s, (1 - STILL) * run_s) / emulated_s


def _smallest(*needed: float) -> float:
    """Return the dilation that is enough for all, infinite if no host may be so slow."""
    enough = _round_up(max(needed))
    return enough if enough <= MOST else math.inf


def _round_up(value: float) -> float:
    """Return the next number of two digits."""
    if value <= 1:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit
