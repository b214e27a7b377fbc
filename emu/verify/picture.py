"""Who holds what after each step of a submission: as text, and as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

from emu.errors import ConfigError
from emu.verify.trial import Case, Submission, impulse_inputs, run_trial
from emu.verify.watch import Watched

MOST_RANKS = 16
LABEL_WIDTH = 12
_DIGITS = "0123456789abcdef"


@dataclass(frozen=True)
class Holdings:
    """counts[step][rank][element][source]: how often a source's part is in it, after each step (0: the start).

    got[step][rank][source]: how often it is in what has arrived there in this step.
    """

    title: str
    counts: list[list[list[list[int]]]]
    got: list[list[list[int]]]

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"title": self.title, "counts": self.counts, "got": self.got}


def holdings(submission: Submission, p: int) -> Holdings:
    """Follow every rank's part through a run on p ranks, one element a rank. Raise ConfigError beyond 16 ranks."""
    if not 1 <= p <= MOST_RANKS:
        raise ConfigError(f"show: from 1 to {MOST_RANKS} ranks are expected, got {p}; show fewer")
    in_place = submission.contract.gives == "in place"
    case = Case(p, p if in_place else 1)
    runs = [run_trial(submission, case, impulse_inputs(submission, case, source)) for source in range(p)]
    steps = max(run.steps for run in runs)
    pictures = [[_held(run, rank, step) for run in runs] for step in range(steps + 1) for rank in range(p)]
    counts = np.array(pictures).reshape(steps + 1, p, p, -1).transpose(0, 1, 3, 2)
    got = [[[_arrived(run, rank, step) for run in runs] for rank in range(p)] for step in range(steps + 1)]
    return Holdings(f"{submission.name} as {submission.collective}, {p} ranks", counts.tolist(), got)


def text(picture: Holdings) -> str:
    """Draw it in characters: a line a rank, a column an element, a digit for each rank whose part is in it.

    A part that is there more than once is written as often; a dot is an empty element. Behind the arrow stands
    what has arrived in this step.
    """
    width = max(len(_cell(cell)) for step in picture.counts for rank in step for cell in rank)
    lines = [picture.title]
    for step, ranks in enumerate(picture.counts):
        lines.append(f"step {step}" if step else "start")
        for rank, cells in enumerate(ranks):
            arrived = f" | <- {_cell(picture.got[step][rank])}" if any(picture.got[step][rank]) else ""
            row = " | ".join(_cell(cell).ljust(width) for cell in cells) + arrived
            lines.append(f"  rank {rank:>2} | {row}".rstrip())
    return "\n".join(lines)


def svg(picture: Holdings) -> str:
    """Draw it as SVG: a panel a step, a row a rank, a stripe in an element for each rank whose part is in it.

    A part that is there more than once has a dark stripe.
    """
    p, elements = len(picture.counts[0]), max(1, len(picture.counts[0][0]))
    stripe, high, gap = max(3, 48 // p), 18, 14
    cell = stripe * p + 4
    panel = elements * cell + gap + LABEL_WIDTH
    across = max(1, min(len(picture.counts), 900 // panel))
    down = -(-len(picture.counts) // across)
    wide, tall = across * panel + gap, 26 + down * (p * high + 30)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" font-family="sans-serif">',
        f'<rect width="{wide}" height="{tall}" fill="white"/>',
        f'<text x="{gap}" y="18" font-size="13">{escape(picture.title)}</text>',
    ]
    for step, ranks in enumerate(picture.counts):
        left, top = gap + LABEL_WIDTH + step % across * panel, 44 + step // across * (p * high + 30)
        parts.append(f'<text x="{left}" y="{top - 4}" font-size="11">{f"step {step}" if step else "start"}</text>')
        for rank, cells in enumerate(ranks):
            row = top + rank * high
            parts.append(f'<text x="{left - 2}" y="{row + 12}" font-size="9" text-anchor="end">{rank}</text>')
            for i, counts in enumerate(cells):
                parts += _element(left + i * cell, row, stripe, high, counts)
    return "\n".join([*parts, "</svg>"])


def _element(left: int, top: int, stripe: int, high: int, counts: list[int]) -> list[str]:
    box = (left, top, stripe * len(counts) + 2, high - 2)
    drawn = ['<rect x="{}" y="{}" width="{}" height="{}" fill="#f4f4f4" stroke="#bbb"/>'.format(*box)]
    for source, count in enumerate(counts):
        if count:
            colour = f"hsl({360 * source // len(counts)}, 65%, {60 if count == 1 else 25}%)"
            title = f"<title>rank {source}{f', {count} times' if count > 1 else ''}</title>"
            drawn.append(
                f'<rect x="{left + 1 + source * stripe}" y="{top + 1}" width="{stripe}" height="{high - 4}" '
                f'fill="{colour}">{title}</rect>'
            )
    return drawn


def _held(run: Watched, rank: int, step: int) -> np.ndarray:
    """Return what the rank's buffer held when the messages up to `step` had been worked in."""
    reached = [s for s in run.states[rank] if s.message == 0 or run.deliveries[s.message - 1].step <= step]
    held = reached[-1].held
    return np.where(np.abs(held) < 1e6, np.rint(held), 0).astype(int)


def _arrived(run: Watched, rank: int, step: int) -> int:
    """Return how often the part that is followed is in what the rank received in this step."""
    payloads = [d.payload for d in run.deliveries if d.to == rank and d.step == step and d.payload.size]
    return int(round(max((float(np.abs(payload).max()) for payload in payloads), default=0.0)))


def _cell(counts: list[int]) -> str:
    return "".join(_DIGITS[source] * count for source, count in enumerate(counts)) or "."
