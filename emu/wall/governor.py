"""The dilation that hosts can keep up with, found while the program runs, under its own load."""

from __future__ import annotations

from emu.wall.lateness import ENOUGH, MOST, STILL

FIRST_DILATION = 1.0
WINDOW = 100  # messages that are judged together
MOST_GROWTH = 4.0  # of the dilation at once: what delays a program's beginning is soon over
ABOVE = 1.25  # how far above what was needed the dilation goes
SLACK = 0.4  # the dilation comes down when this part of it would have been enough


class Governor:
    """Judges messages by the hundred: one may be late, as `lateness` defines it.

    The second late one of a hundred raises the dilation at once, so that short programs find theirs too. It comes
    down after a calm hundred; each time that this proves wrong, it takes twice as many, so that a program whose late
    messages come in bursts (a step's beginning) keeps one dilation.
    """

    def __init__(self) -> None:
        self._needed: list[float] = []
        self._low = 0.0  # a dilation that was too little; forgotten by halves
        self._calm = 0  # hundreds in a row that needed much less
        self._patience = 1  # so many of them lower the dilation
        self._lowered = False  # by the latest change
        self._count = 0
        self._total_s = 0.0

    def take(self, own_s: float, late_s: float, dilation: float) -> float:
        """Take note of one message's own time and its lateness on the host; return the dilation from now on."""
        if own_s <= 0:  # what takes no emulated time has no dilation that would make it fit
            return dilation
        self._count += 1
        self._total_s += own_s
        return self._judge(late_s / (ENOUGH * max(own_s, self._total_s / self._count)), dilation)

    def stand(self, own_s: float, late_s: float, dilation: float) -> float:
        """Take note of work that took `late_s` of the host's longer than the `own_s` it had; return as `take`."""
        mean_s = self._total_s / self._count if self._count else 0.0
        given_s = max(own_s, mean_s)
        return self._judge(late_s / (STILL * given_s), dilation) if given_s > 0 else dilation

    def _judge(self, needed: float, dilation: float) -> float:
        self._needed.append(needed)
        most = sorted(self._needed)[-2:]
        if len(most) == 2 and most[0] > dilation:
            self._needed.clear()
            self._low = max(self._low, dilation)
            if self._lowered:
                self._patience *= 2
            self._calm, self._lowered = 0, False
            return min(MOST, max(1.3 * dilation, min(ABOVE * most[0], MOST_GROWTH * dilation)))
        if len(self._needed) < WINDOW:
            return dilation
        self._needed.clear()
        self._calm = self._calm + 1 if most[0] < SLACK * dilation else 0
        if self._calm < self._patience:
            return dilation
        self._calm, self._lowered = 0, True
        low, self._low = self._low, self._low / 2
        return min(dilation, max(1.0, ABOVE * most[0], low, dilation / 2))
