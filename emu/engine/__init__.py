"""The engine: a trace and a cluster in, the time of everything out.

`resolve` times a whole trace; `Engine` is fed as a program runs and answers its questions; `live.Live` is one fed
message by message, whose times a program waits for on the wall. All are the same discrete-event simulation
at the level of flows. Compiled floors, bottom up: `layout` and `memory` (how
state lies in memory), `events` (what happens next), `groups`, `fans` and `sharing` (max-min rates), `tcp`
(windows and ports), `transfer` (a message's life), `matching` (sends meet receives), `steps` (a stream walks
its rows), `faults`, `core` (the loop). Python's side: `state`, `routes`, `order`, `program`, `questions`,
`folding`, `deadlock`, `resolve`.
"""

from emu.engine.resolve import Engine, resolve

__all__ = ["Engine", "resolve"]
