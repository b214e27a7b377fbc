"""Running a script's ranks under the wall clock: every message really held back, time and order as they are met."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from emu.comm.background import Background
from emu.comm.merging import merge
from emu.comm.recording import Log
from emu.face.launch import Ended, Plan, module_for, session_for
from emu.face.script import surroundings
from emu.wall.answers import WallAnswers
from emu.wall.lateness import Told
from emu.wall.run import Pace, begin

if TYPE_CHECKING:
    from emu.comm.mpi_world import MpiWorld


def run_live(
    plan: Plan, world: MpiWorld, watched: Callable[[Log], None], pace: Pace, failed: Callable[[BaseException], None]
) -> tuple[Ended, Told]:
    """Run the script as this process of an MPI job, live; return how it ended and how late it was."""
    from emu.comm.mpi_turns import MpiTurns

    wall = begin(world, plan.cluster, pace, profile=plan.profile, failed=failed)
    log, core = wall.gpu.log, wall.gpu.comm
    decisions: dict[str, Any] = {}
    session = session_for(plan, core, WallAnswers(), Background(MpiTurns(world.watch)), decisions)
    watched(log)
    main = plan.script.main()
    with module_for(plan, lambda: session) as module, surroundings(plan.script, module):
        sys.modules["__main__"] = main
        status = plan.script.run(main)
    lateness = wall.end()
    told = world.gather((status, bytes(log.data), log.tables))
    world.tell(None)
    if told is None:
        return Ended(status, None), lateness
    trace = merge([(data, tables) for _, data, tables in told], plan.header(decisions, {"order": plan.cluster.name}))
    return Ended(max((each for each, _, _ in told), key=abs), trace), lateness
