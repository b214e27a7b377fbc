"""Fit α and B to measured times: t(n) = α + n / B, every size counted alike however small its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from emu.cluster.parts import stretched
from emu.errors import ConfigError

_STEPS = 200
_FIRST = 1 << 14  # bytes from which on each measured size says itself what its bytes take

@dataclass(frozen=True)
class Fit:
    """A link model: latency, bandwidth, and how far the measured points are off it."""

    latency_s: float
    bandwidth_bytes_per_s: float
    median_error_pct: float
    worst_error_pct: float
    by_size: tuple[tuple[float, float], ...] = ()  # sizes, and how many times as long a byte of them takes

    def time_s(self, nbytes: float) -> float:
        """Return what the model says."""
        return self.latency_s + stretched(self.by_size, nbytes) / self.bandwidth_bytes_per_s


def fit_link(points: Sequence[tuple[float, float]], where: str = "link") -> Fit:
    """Fit (bytes, seconds) by the least absolute deviations of the logarithms: a few disturbed points do not count.

    Raise ConfigError where the times do not grow with the size: nothing can be fitted.

    >>> fit_link([(1e3, 2e-6), (1e6, 1.001e-3), (1e9, 1.000001)])
    Fit(latency_s=1e-06, bandwidth_bytes_per_s=1000000000.0, median_error_pct=0.0, worst_error_pct=0.0, by_size=())
    """
    n, t = np.array(points, float).reshape(-1, 2).T
    if len(n) < 2 or n.min() == n.max() or not (t > 0).all():
        raise ConfigError(f"{where}: measured times of at least two sizes are expected, got {len(n)}; measure more")
    if t[n.argmax()] <= t[n.argmin()]:
        raise ConfigError(f"{where}: times that grow with the size are expected, got none; measure larger messages")
    alpha, slope = _solve(n, t)
    error = np.abs(alpha + slope * n - t) / t
    median, worst = (round(100 * float(value), 6) for value in (np.median(error), error.max()))
    return Fit(_short(alpha), _short(1 / slope), median, worst)


def fit_sizes(points: Sequence[tuple[float, float]], where: str = "link") -> Fit:
    """Fit α, take B from the largest size, and tell how the bytes of each other one do beside it, as measured.

    >>> fit_sizes([(1, 1e-6), (1e3, 1.1e-6), (1e6, 1.01e-4), (4e6, 4.01e-4), (8e6, 1.601e-3)]).by_size
    ((1000000, 0.5), (4000000, 0.5), (8000000, 1.0))
    """
    line = fit_link(points, where)
    n, t = np.array(sorted(points), float).T
    large = n >= _FIRST
    taken = np.maximum(t[large] - line.latency_s, 0.01 * t[large])
    taken = np.minimum.accumulate(taken[::-1])[::-1]  # what is disturbed takes too long, and no longer than more bytes
    last = float(n[-1] / taken[-1])
    by_size = tuple((int(size), _short(last * each / size)) for size, each in zip(n[large], taken, strict=True))
    found = Fit(line.latency_s, _short(last), 0.0, 0.0, by_size)
    error = 100 * np.abs(np.array([found.time_s(size) for size in n]) - t) / t
    return replace(found, median_error_pct=_short(np.median(error)), worst_error_pct=_short(error.max()))


def _solve(n: np.ndarray, t: np.ndarray) -> tuple[float, float]:
    """Return α and the slope: Gauss-Newton on their logarithms, each point weighted by the inverse of its deviation."""
    p = np.log([t.min(), t[n.argmax()] / n.max()])
    for _ in range(_STEPS):
        alpha, slope = np.exp(p)
        model = alpha + slope * n
        off = np.log(t / model)
        weight = np.sqrt(1 / np.maximum(np.abs(off), 1e-6))
        jacobian = np.stack([alpha / model, slope * n / model], axis=1) * weight[:, None]
        step, *_ = np.linalg.lstsq(jacobian, off * weight, rcond=1e-12)
        p = p + np.clip(step, -1, 1)
    return float(np.exp(p[0])), float(np.exp(p[1]))


def _short(value: float) -> float:
    """Round to six digits: nothing here is known better."""
    return float(f"{value:.6g}")
