"""The slow reference: progressive filling in plain numpy, every rate from scratch at every event."""

import math

import numpy as np


def max_min(paths, caps, rates):
    """Return the max-min fair rate of each flow: fill all alike, freeze who meets a full link or its cap."""
    room, rate = np.array(rates, float), np.zeros(len(paths))
    open_ = set(range(len(paths)))
    while open_:
        best, freeze = math.inf, set()
        for link in range(len(room)):
            users = {f for f in open_ if link in paths[f]}
            if users and max(room[link], 0) / len(users) < best:
                best, freeze = max(room[link], 0) / len(users), users
        capped = {f for f in open_ if caps[f] <= best}
        if capped:
            best = min(caps[f] for f in capped)
            freeze = {f for f in capped if caps[f] == best}
        for f in freeze:
            rate[f] = best
            for link in paths[f]:
                room[link] -= best
        open_ -= freeze
    return rate


def finish_times(paths, caps, rates, starts, sizes):
    """Return when the last byte of each flow leaves."""
    left, done = np.array(sizes, float), np.full(len(paths), math.nan)
    now = min(starts, default=0.0)
    while np.isnan(done).any():
        on = [f for f in range(len(paths)) if starts[f] <= now and math.isnan(done[f])]
        later = [t for f, t in enumerate(starts) if t > now and math.isnan(done[f])]
        rate = max_min([paths[f] for f in on], [caps[f] for f in on], rates)
        ends = [left[f] / r if left[f] > 0 else 0.0 for f, r in zip(on, rate, strict=True)]
        step = min([*ends, *(t - now for t in later)])
        for f, r, end in zip(on, rate, ends, strict=True):
            left[f] -= r * step
            if end <= step * (1 + 1e-14):
                done[f], left[f] = now + step, 0.0
        now = min(later) if later and step == min(later) - now else now + step
    return done
