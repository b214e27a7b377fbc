"""Seeded noise that depends on what it is for, never on when it was asked for."""

import math

import numpy as np
from numba import njit

from emu.engine import layout as L
from emu.engine.memory import counts, inner


@njit
def _mix(x):
    """Return 64 well-mixed bits of `x` (the finaliser of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@inner("iiif")
def spread(s, key, number, deviation):
    """Return a factor of mean 1 and that standard deviation, log-normal, that (seed, key, number) determine."""
    u = uniform(s, key, number)
    z = u + uniform(s, ~key, number)
    z = 1.2247448713915890 * (z + uniform(s, key ^ 0x5555555555, number) + uniform(s, key ^ 0x3333333333, number)) / (
        1.4142135623730951)
    wide = math.log1p(deviation * deviation)
    return math.exp(math.sqrt(wide) * z - 0.5 * wide)


@inner("iii")
def uniform(s, key, number):
    """Return a number in [-1, 1) that (seed, key, number) determine."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    x = _mix(np.uint64(counts(s)[L.SEED]) + golden)
    x = _mix(x ^ (np.uint64(key) * golden))
    x = _mix(x + (np.uint64(number) + np.uint64(1)) * golden)
    return np.float64(x >> np.uint64(11)) * (2.0 / 9007199254740992.0) - 1.0
