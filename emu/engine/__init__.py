"""The engine: a trace and a cluster in, the time of everything out.

`resolve` times a whole trace; `Engine` is fed as a program runs and answers its questions. Both are the
same discrete-event simulation at the level of flows. Its floors, bottom up: `layout` and `memory` (how
state lies in memory), `events` (what happens next), `sharing` (max-min rates), `transfer` (a message's
life), `matching` (sends meet receives), `steps` (a stream walks its rows), `core` (the loop), `state`,
`program` and `resolve` (Python's side).
"""

from emu.engine.resolve import Engine, resolve

__all__ = ["Engine", "resolve"]
