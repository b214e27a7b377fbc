"""Write what a cluster declares of its faults into the engine's state; what they do is told in `faults`."""

from math import inf
from typing import Any

import numpy as np

from emu.engine import layout as L
from emu.engine.state import State


def set_faults(state: State, cluster: Any, world_size: int) -> None:
    """Write a cluster's faults into the state."""
    rates = [link.bandwidth_bytes_per_s for link in cluster.links]
    table = [[c.time_s, c.link, rates[c.link] * c.factor, inf, 0.0, inf] for c in getattr(cluster, "link_changes", ())]
    table += [[f.start_s, f.link, 0.0, f.down_s, rates[f.link], f.period_s - f.down_s]
              for f in getattr(cluster, "link_flaps", ())]
    for row in table:
        while row[L.FAULT_NEXT_S] <= 0.0:
            state[L.T_LINK]["rate"][int(row[L.FAULT_LINK])] = row[L.FAULT_RATE]
            row[L.FAULT_NEXT_S] += row[L.FAULT_HOLD_S]
            row[L.FAULT_RATE], row[L.FAULT_OTHER_RATE] = row[L.FAULT_OTHER_RATE], row[L.FAULT_RATE]
            row[L.FAULT_HOLD_S], row[L.FAULT_OTHER_HOLD_S] = row[L.FAULT_OTHER_HOLD_S], row[L.FAULT_HOLD_S]
    state.put(L.T_FAULT, np.array(table or [[inf] * L.FAULT_WIDTH], np.float64).ravel())
    state.count[L.FAULT_COUNT] = len(table)
    state.real[L.NEXT_FAULT] = min((row[L.FAULT_NEXT_S] for row in table), default=inf)
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
