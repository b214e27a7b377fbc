"""The wall clock: the same program live, every message held back until the engine says that it has arrived.

One process of the job, the referee, holds the engine. Ranks tell it what they do as they do it; as soon as no
rank can change the answer any more, it tells each how long to wait, mostly long before that time has come. A rank
then sleeps until `origin + dilation * time_s` on its host's clock. Both clocks thus have one model and, message by
message, the same times.

Where a rank's host is late, emulated time stands still for all (the origin moves): nothing is ever caught up by
letting messages through faster than their links would. How long it stood still, and which messages were late for
it, is told at the end.

Floors, bottom up: `frames` (what ranks and the referee say to each other), `referee` (who may go on, and when),
`agent` (its process), `seat` (one stream's place at the table), `pace` (precise sleep), `log`, `wire`, `streams`,
`device` (what a program holds), `lateness`, `run`. The engine is used as `emu.engine.live` offers it.
"""
