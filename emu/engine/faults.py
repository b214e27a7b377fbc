"""Faults over time: links that change their rate, ranks that pause or die.

Link changes stand in a short table beside the event queue: a link that flaps for ever must not keep a
simulation alive in which nothing moves any more.
"""

from math import inf
from typing import Any

import numpy as np

from emu.engine import layout as L
from emu.engine.fans import dissolve_at
from emu.engine.groups import mark_dirty
from emu.engine.memory import counts, fault_table, inner, links, pauses, ranks, reals
from emu.engine.state import State

# Columns of the fault table: the next change, the link, the rate it gets then; then, for a flap, the time until
# the change after that, the rate it gets then, and the time until the one after that.
NEXT, LINK, RATE, HOLD, OTHER_RATE, OTHER_HOLD = range(6)
WIDTH = 6


def set_faults(state: State, cluster: Any, world_size: int) -> None:
    """Write a cluster's faults into the state."""
    rates = [link.bandwidth_bytes_per_s for link in cluster.links]
    table = [[c.time_s, c.link, rates[c.link] * c.factor, inf, 0.0, inf] for c in getattr(cluster, "link_changes", ())]
    table += [[f.start_s, f.link, 0.0, f.down_s, rates[f.link], f.period_s - f.down_s]
              for f in getattr(cluster, "link_flaps", ())]
    for row in table:
        while row[NEXT] <= 0.0:
            state[L.T_LINK]["rate"][int(row[LINK])] = row[RATE]
            row[NEXT] += row[HOLD]
            row[RATE], row[OTHER_RATE] = row[OTHER_RATE], row[RATE]
            row[HOLD], row[OTHER_HOLD] = row[OTHER_HOLD], row[HOLD]
    state.put(L.T_FAULT, np.array(table or [[inf] * WIDTH], np.float64).ravel())
    state.count[L.FAULT_COUNT] = len(table)
    state.real[L.NEXT_FAULT] = min((row[NEXT] for row in table), default=inf)
    faults = getattr(cluster, "faults", None)
    if faults is None:
        return
    rank = state[L.T_RANK]
    for death in faults.deaths:
        if death.rank < world_size:
            rank["death"][death.rank] = min(rank["death"][death.rank], death.at_s)
    times: list[float] = []
    for r in sorted({p.rank for p in faults.pauses if p.rank < world_size}):
        mine = sorted((p.at_s, p.at_s + p.duration_s) for p in faults.pauses if p.rank == r)
        rank["first_pause"][r], rank["pauses"][r] = len(times) // 2, len(mine)
        times += [t for pause in mine for t in pause]
    state.put(L.T_PAUSE, np.array(times or [0.0, 0.0]))


@inner("iif")
def after_pauses(s, rank_number, time):
    """Return when a rank that would start something at `time` does so."""
    rank, pause = ranks(s)[rank_number], pauses(s)
    for k in range(rank.first_pause, rank.first_pause + rank.pauses):
        if pause[2 * k] <= time < pause[2 * k + 1]:
            time = pause[2 * k + 1]
    return time


@inner("i")
def change_links(s):
    """Make the changes of this instant, and find when the next one is."""
    real, count, table, link = reals(s), counts(s), fault_table(s), links(s)
    following = inf
    for k in range(count[L.FAULT_COUNT]):
        row = k * WIDTH
        if table[row + NEXT] <= real[L.NOW]:
            number = int(table[row + LINK])
            link[number].rate = table[row + RATE]
            if link[number].flows > 0:
                dissolve_at(s, number, real[L.NOW])
                mark_dirty(s, number)
                count[L.CROWDED] = 1
            table[row + RATE], table[row + OTHER_RATE] = table[row + OTHER_RATE], table[row + RATE]
            table[row + NEXT] += table[row + HOLD]
            table[row + HOLD], table[row + OTHER_HOLD] = table[row + OTHER_HOLD], table[row + HOLD]
        following = min(following, table[row + NEXT])
    real[L.NEXT_FAULT] = following
