"""Faults over time: links that change their rate, ranks that pause or die.

Link changes stand in a short table beside the event queue: a link that flaps for ever must not keep a
simulation alive in which nothing moves any more.
"""

from math import inf

from emu.engine import layout as L
from emu.engine.fans import dissolve_at
from emu.engine.groups import mark_dirty
from emu.engine.memory import counts, fault_table, inner, links, pauses, ranks, reals


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
        row = k * L.FAULT_WIDTH
        if table[row + L.FAULT_NEXT_S] <= real[L.NOW]:
            number = int(table[row + L.FAULT_LINK])
            link[number].rate = table[row + L.FAULT_RATE]
            if link[number].flows > 0:
                dissolve_at(s, number, real[L.NOW])
                mark_dirty(s, number)
                count[L.CROWDED] = 1
            table[row + L.FAULT_NEXT_S] += table[row + L.FAULT_HOLD_S]
            for a, b in ((L.FAULT_RATE, L.FAULT_OTHER_RATE), (L.FAULT_HOLD_S, L.FAULT_OTHER_HOLD_S)):
                table[row + a], table[row + b] = table[row + b], table[row + a]
        following = min(following, table[row + L.FAULT_NEXT_S])
    real[L.NEXT_FAULT] = following
