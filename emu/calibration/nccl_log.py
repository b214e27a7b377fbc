"""Read the tables that nccl-tests print, and fit the link that would give their times by a ring."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from emu.calibration.fit import Fit, fit_link
from emu.errors import ConfigError

# steps, and the part of the buffer that each moves: a ring's time is steps * (α + part * n / B)
_RINGS: dict[str, Callable[[int], tuple[float, float]]] = {
    "all_reduce": lambda p: (2 * (p - 1), 1 / p),
    "all_gather": lambda p: (p - 1, 1 / p),
    "reduce_scatter": lambda p: (p - 1, 1 / p),
    "alltoall": lambda p: (p - 1, 1 / p),
    "sendrecv": lambda p: (1, 1),
    "broadcast": lambda p: (1, 1),  # pipelined along the ring: its last byte comes once the first one has
    "reduce": lambda p: (1, 1),
    "gather": lambda p: (p - 1, 1 / p),
    "scatter": lambda p: (p - 1, 1 / p),
}
_ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)\s")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s")
_NAME = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|reduce|gather|scatter)_perf\b")


@dataclass(frozen=True)
class Log:
    """One table of nccl-tests: which collective, on how many GPUs, (bytes, seconds) out of place."""

    collective: str
    gpus: int
    rows: tuple[tuple[int, float], ...]

    def fit(self) -> Fit:
        """Fit a link to the times."""
        steps, part = _RINGS[self.collective](self.gpus)
        return fit_link([(n * part, t / steps) for n, t in self.rows], f"{self.collective} on {self.gpus}")


def read_log(path: str, collective: str | None = None, gpus: int | None = None) -> Log:
    """Read a log. What it does not say itself must be given. Raise ConfigError for one that holds no table."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: a readable log is expected, got: {error.strerror}") from None
    rows = {}
    for line in lines:
        found = _ROW.match(line)
        if found and int(found[1]) > 0 and float(found[6]) > 0:
            rows[int(found[1])] = float(found[6]) * 1e-6
    if not rows:
        raise ConfigError(f"{path}: the table of an nccl-test (size, count, type, redop, root, time, …) is expected")
    name = collective or next((m[1] for m in map(_NAME.search, lines) if m), None)
    if name not in _RINGS:
        raise ConfigError(
            f"{path}: the collective must be one of {', '.join(_RINGS)}, got {name or 'no name in the log'}; "
            "give --collective"
        )
    ranks = gpus or len({m[1] for m in map(_RANK.match, lines) if m})
    if ranks < 2:
        raise ConfigError(f"{path}: at least 2 GPUs are expected, got {ranks}; say how many with --gpus")
    return Log(name, ranks, tuple(sorted(rows.items())))
