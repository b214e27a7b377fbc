"""The dilation that hosts can keep up with, found while the program runs, under its own load."""

from __future__ import annotations

from emu.wall.lateness import ENOUGH

FIRST_DILATION = 1.0
MOST = 5000.0
WINDOW = 100  # messages that are judged together
MOST_GROWTH = 16.0  # of the dilation after one window
ABOVE = 1.25  # how far above what was needed the dilation goes
SLACK = 0.4  # the dilation comes down when this part of it would have been enough


class Governor:
    """Judges every hundred messages: one in a hundred may be late by more than a hundredth of its own time."""

    def __init__(self) -> None:
        self._needed: list[float] = []
        self._low = 0.0  # the highest dilation that was too little

    def take(self, own_s: float, late_s: float, dilation: float) -> float:
        """Take note of one message's own time and its lateness on the host; return the dilation from now on."""
        if own_s <= 0:  # what takes no emulated time has no dilation that would make it fit
            return dilation
        self._needed.append(late_s / (ENOUGH * own_s))
        if len(self._needed) < WINDOW:
            return dilation
        needed = sorted(self._needed)[-2]
        self._needed.clear()
        if needed > dilation:
            self._low = max(self._low, dilation)
            return min(MOST, max(1.3 * dilation, min(ABOVE * needed, MOST_GROWTH * dilation)))
        if needed < SLACK * dilation:
            return max(1.0, ABOVE * needed, self._low, dilation / 2)
        return dilation
