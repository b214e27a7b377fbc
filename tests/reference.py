"""The slow reference: progressive filling in plain numpy, every rate from scratch at every event."""

import math

import numpy as np


def max_min(on_link, caps, rates):
    """Return the max-min fair rate of each flow: fill all alike, freeze who meets a full link or its cap.

    on_link: (links, flows) bool
    """
    room, rate = np.array(rates, float), np.zeros(len(caps))
    open_ = np.ones(len(caps), bool)
    while open_.any():
        users = (on_link & open_).sum(axis=1)
        share = np.where(users > 0, np.maximum(room, 0) / np.maximum(users, 1), math.inf)
        link = int(share.argmin())
        best, freeze = share[link], on_link[link] & open_
        capped = open_ & (caps <= best)
        if capped.any():
            best = caps[capped].min()
            freeze = capped & (caps == best)
        rate[freeze] = best
        room -= best * (on_link & freeze).sum(axis=1)
        open_ &= ~freeze
    return rate


def finish_times(paths, caps, rates, starts, sizes, after=None):
    """Return when the last byte of each flow leaves.

    Flow f starts at starts[f], or, with after[f] = g >= 0, starts[f] after the last byte of flow g has left.
    """
    on_link = np.array([[link in path for path in paths] for link in range(len(rates))])
    left, done, caps = np.array(sizes, float), np.full(len(paths), math.nan), np.array(caps, float)
    after = [-1] * len(paths) if after is None else after
    start = np.array([math.inf if g >= 0 else t for t, g in zip(starts, after, strict=True)])
    now = start.min(initial=math.inf)
    while np.isnan(done).any():
        on = np.flatnonzero((start <= now) & np.isnan(done))
        later = start[start > now].min(initial=math.inf)
        rate = max_min(on_link[:, on], caps[on], rates)
        ends = left[on] / rate
        step = min(ends.min(initial=math.inf), later - now)
        left[on] -= rate * step
        gone = on[ends <= step * (1 + 1e-14)]
        now = later if step == later - now else now + step
        done[gone], left[gone] = now, 0.0
        for f, g in enumerate(after):
            if g in gone:
                start[f] = now + starts[f]
    return done
