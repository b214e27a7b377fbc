"""Running a script's ranks: as coroutines of this process, or as this process of an MPI job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from emu.cluster import Cluster
from emu.comm.answers import Answers, EngineAnswers
from emu.comm.background import Background
from emu.comm.beside import EngineBeside
from emu.comm.communicator import Comm
from emu.comm.local import LocalTurns, World, world_comm
from emu.comm.merging import merge
from emu.comm.recording import Log, Tables
from emu.face.measured import Stopwatch
from emu.face.module import make, observed
from emu.face.script import Modules, Script, surroundings
from emu.face.session import Session
from emu.trace import Trace

if TYPE_CHECKING:
    from emu.comm.mpi_world import MpiWorld


@dataclass(frozen=True)
class Plan:
    """What to run a script with. `speedup` None: computation is not costed."""

    script: Script
    cluster: Cluster
    profile: str = "ideal"
    speedup: float | None = None

    def header(self, decisions: Mapping[str, Any], marks: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trace's header."""
        measured = {} if self.speedup is None else {"compute": f"measured, speedup {self.speedup:g}"}
        return {
            "cluster": self.cluster.name,
            "cluster_sha256": self.cluster.sha256,
            "decisions": dict(decisions),
            "marks": {**marks, **measured},
            "program": {"name": "run", "script": self.script.path.name, "arguments": list(self.script.argv[1:])},
        }


@dataclass(frozen=True)
class Ended:
    """How a script has ended: the worst rank's exit status, and what was recorded (under MPI: on rank 0)."""

    status: int
    trace: Trace | None


def run_here(plan: Plan, ranks: int) -> Ended:
    """Run the script on `ranks` coroutines of this process."""
    world, tables = World(ranks), Tables()
    logs = [Log(rank, tables) for rank in range(ranks)]
    engine = EngineBeside(world, logs, plan.cluster, plan.profile)
    decisions: dict[str, Any] = {}
    sessions = []
    for log in logs:
        core = world_comm(world, log)
        sessions.append(session_for(plan, core, EngineAnswers(engine), Background(LocalTurns(world)), decisions))
    mains = [plan.script.main() for _ in logs]
    modules = Modules(plan.script, mains)

    def program(rank: int) -> int:
        return plan.script.run(mains[rank])

    with module_for(plan, lambda: sessions[world.current]) as module, surroundings(plan.script, module):
        world.on_switch = modules.switch
        statuses = world.run(program)
    trace = merge([(bytes(log.data), tables) for log in logs], plan.header(decisions, engine.marks))
    return Ended(max(statuses, key=abs), trace)


def run_as_rank(plan: Plan, world: MpiWorld, watched: Callable[[Log], None]) -> Ended:
    """Run the script as this process of an MPI job. `watched` gives the log's waits their deadline."""
    import sys

    from emu.comm.mpi_sequencer import seat_at
    from emu.comm.mpi_turns import MpiTurns

    log = Log(world.rank)
    core = Comm(world.wire, log, range(world.size))
    seat = seat_at(core, world.watch, world.control(), plan.cluster, plan.profile)
    core.templates = False  # calls beside the program are recorded piece by piece
    decisions: dict[str, Any] = {}
    session = session_for(plan, core, core.answers, Background(MpiTurns(world.watch)), decisions)
    watched(log)
    main = plan.script.main()
    if world.rank == 0:
        warm_up(plan, world.size)
    world.tell(None)  # the others sleep until then
    seat.start()
    with module_for(plan, lambda: session) as module, surroundings(plan.script, module):
        sys.modules["__main__"] = main
        status = plan.script.run(main)
    seat.finish()
    told = world.gather((status, seat.asked, bytes(log.data), log.tables))
    world.tell(None)
    seat.stop()
    if told is None:
        return Ended(status, None)
    marks = {"order": plan.cluster.name} if any(asked for _, asked, _, _ in told) else {}
    trace = merge([(data, tables) for _, _, data, tables in told], plan.header(decisions, marks))
    return Ended(max((each for each, *_ in told), key=abs), trace)


def warm_up(plan: Plan, ranks: int) -> None:
    """Load the engine, which a first run also compiles, while the other ranks sleep."""
    import numpy as np

    from emu.engine import resolve
    from emu.trace import ROW

    nothing = np.zeros(0, ROW)
    resolve(Trace({"streams": ["default"]}, (), (nothing,) * ranks), plan.cluster, profile=plan.profile)


def session_for(plan: Plan, core: Comm, answers: Answers, background: Background, decisions: dict[str, Any]) -> Session:
    core.cluster, core.decisions, core.answers = plan.cluster, decisions, answers
    node = plan.cluster.node_of(core.rank)
    session = Session(core, answers, background, host=f"node{node}")
    if plan.speedup is not None:
        watch = Stopwatch(core.log, plan.speedup)
        session.enter, session.leave = watch.enter, watch.leave
    return session


@contextmanager
def module_for(plan: Plan, session: Callable[[], Session]) -> Iterator[Any]:
    module = make(session)
    if plan.speedup is None:
        yield module
        return
    with observed(module, session):
        yield module
