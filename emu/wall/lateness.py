"""How late messages were, how long emulated time stood still, and which dilation would have kept up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

STILL = 0.05  # part of a run that emulated time may stand still before the run counts as one that did not keep up
ENOUGH = 0.01  # a message is late when it is late by more than this part of its own time


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

    Lateness is relative to a message's own time. `stood_still_wall_s` is how long all waited for a rank whose host
    had more to do than the emulated GPU. `enough` is the dilation at which, with the same host, one message in a
    hundred would have been late, and that work would have had its time.
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

    @property
    def kept_up(self) -> bool:
        """Whether at most one message in a hundred was late, and emulated time hardly ever stood still."""
        return self.late <= ENOUGH * self.messages and self.stood_still_wall_s <= STILL * self.run_wall_s

    def json(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return asdict(self) | {"kept_up": self.kept_up}

    def beside(self, report: str) -> str:
        """Return a run's report with this told: first, if the host could not keep up, else last."""
        return f"{report}\n\n{self.text()}" if self.kept_up else f"{self.text()}\n\n{report}"

    def text(self) -> str:
        """Return one line for people."""
        stood = f"emulated time stood still for {self.stood_still_wall_s:.3g} s of {self.run_wall_s:.3g} s"
        if self.clocks_off_wall_s:
            stood += f"; the hosts' clocks agree within {1e3 * self.clocks_off_wall_s:.2g} ms"
        if not self.messages:
            return f"wall clock, dilation {self.dilation:g}: no messages; {stood}"
        line = (
            f"{self.late} of {self.messages} messages late by more than {ENOUGH:.0%} of their own time "
            f"(median {self.median_pct:.2g} %, worst {self.worst_pct:.3g} % or {1e3 * self.worst_wall_s:.3g} ms), "
            f"none early; {stood}"
        )
        if self.early:
            line = line.replace("none early", f"{self.early} EARLY")
        if self.kept_up:
            return f"wall clock, dilation {self.dilation:g}: {line}"
        return f"THE HOST COULD NOT KEEP UP at dilation {self.dilation:g} (enough: {self.enough:,.0f}): {line}"


def summarise(
    found: Sequence[Sequence[tuple[float, float, float]]], dilation: float, stood_still_s: float, run_s: float,
    clocks_off_s: float = 0.0,
) -> Told:  # fmt: skip
    """Join what all ranks found; messages from before the dilation was settled do not count."""
    pairs = np.array([message for rank in found for message in rank], dtype=float).reshape(-1, 3)
    pairs = pairs[(pairs[:, 0] > 0) & (pairs[:, 2] == dilation)]
    if not len(pairs):
        return Told(dilation, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, stood_still_s, run_s, dilation, clocks_off_s)
    own_s, late_s, _ = pairs.T
    part = late_s / (dilation * own_s)
    needed = late_s / (ENOUGH * own_s)
    behind = dilation * run_s / max(run_s - stood_still_s, 1e-9)
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
        enough=_round_up(max(1.0, float(np.quantile(needed, 0.99)), behind if stood_still_s else 1.0)),
        clocks_off_wall_s=clocks_off_s,
    )


def _round_up(value: float) -> float:
    """Return the next number of two digits."""
    if value <= 1:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / unit) * unit
