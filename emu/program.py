"""Run a rank program: on MPI processes, as coroutines in this process, or dry; get its results and its trace.

    run = emu.run(main, cluster="dgx-a100:2", ranks=16)
    print(run.timeline.table())
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from emu.cluster import Cluster, load_cluster
from emu.comm.answers import EngineAnswers
from emu.comm.beside import EngineBeside
from emu.comm.local import World, world_comm
from emu.comm.merging import merge
from emu.comm.recording import Log, Tables
from emu.errors import ConfigError, EmuError
from emu.gpu.arrays import arrays_of
from emu.gpu.device import Gpu
from emu.gpu.memory import Memory
from emu.trace import Trace

if TYPE_CHECKING:
    from emu.comm.mpi_world import MpiWorld
    from emu.timeline import Timeline
    from emu.wall.lateness import Told as Lateness
    from emu.wall.run import Pace, Wall

WAYS = ("auto", "mpi", "local", "dry")
CLOCKS = ("virtual", "wall")


@dataclass(frozen=True)
class Run:
    """A program that has run: what each rank returned (under MPI: this rank's alone), its trace, its cluster."""

    results: list[Any]
    trace: Trace
    cluster: Cluster
    profile: str
    memory: tuple[Memory, ...] = field(repr=False, default=())
    lateness: Lateness | None = None  # under the wall clock

    @cached_property
    def timeline(self) -> Timeline:
        """The trace's times on the cluster."""
        return replay(self.trace, self.cluster, profile=self.profile)


def run(
    main: Callable[[Gpu], Any],
    cluster: str | PathLike[str] | Cluster,
    ranks: int | None = None,
    *,
    way: str = "auto",
    device: str = "numpy",
    profile: str = "ideal",
    clock: str = "virtual",
    dilation: float | str = 1.0,
    compute: str = "model",
    **settings: str,
) -> Run:
    """Run main(gpu) on every rank of a cluster.

    `ranks` defaults to the cluster's GPUs (under MPI: to the job's processes). `way` is "local" (coroutines in this
    process), "dry" (the same without bytes), "mpi", or "auto": MPI where an mpirun started this process, else local.
    Settings change the cluster, as `nic="100 Gb/s"`. An error of one rank ends all.

    Under MPI, `clock="wall"` holds every message really back: an emulated second takes `dilation` seconds of the
    host's ("auto": as few as the host can keep up with); a kernel takes its modelled time, or its "measured" one,
    or "none" (`compute`).
    """
    if not callable(main):
        raise ConfigError(f"main: a function of one Gpu is expected, got {type(main).__name__}")
    if ranks is not None and ranks < 1:
        raise ConfigError(f"ranks: at least 1 is expected, got {ranks}")
    if way not in WAYS:
        raise ConfigError(f"way: one of {', '.join(WAYS)} is expected, got {way!r}")
    _refuse_ways(settings)
    if clock not in CLOCKS:
        raise ConfigError(f"clock: one of {', '.join(CLOCKS)} is expected, got {clock!r}")
    if way == "mpi" or (way == "auto" and _started_by_mpirun()):
        pace = _pace(dilation, compute) if clock == "wall" else None
        return _run_mpi(main, cluster, ranks, device, profile, settings, pace)
    if clock == "wall":
        raise ConfigError("clock: ranks that are processes are expected for the wall clock; start with mpirun -n 4")
    made = _cluster(cluster, settings, ranks)
    results, trace, memory = run_here(main, made, ranks or made.size, dry=way == "dry", device=device, profile=profile)
    return Run(results, trace, made, profile, tuple(memory))


def _refuse_ways(settings: Mapping[str, Any]) -> None:
    """Refuse a way to run that was given as if it were a setting of the cluster."""
    for name in ("dry", "local", "mpi"):
        if name in settings:
            raise ConfigError(f"{name}: no such setting of a cluster, got {name}={settings[name]!r}; use way={name!r}")


def replay(
    trace: Trace | str | PathLike[str],
    cluster: str | PathLike[str] | Cluster,
    *,
    profile: str = "ideal",
    detail: str = "flows",
    watch: Callable[[Any], None] | None = None,
    **settings: str,
) -> Timeline:
    """Return the times on a cluster of a trace, or of the file of one; nothing is run.

    `watch` is called with the engine before it begins, for who shows how far it is.
    """
    from emu.engine import resolve
    from emu.timeline import Timeline

    if not isinstance(trace, (Trace, str, PathLike)):
        raise ConfigError(f"trace: a Trace or the path of its file is expected, got {type(trace).__name__}")
    if not isinstance(trace, Trace):
        trace = Trace.load(trace)
    made = _cluster(cluster, settings, trace.world_size)
    return Timeline(resolve(trace, made, profile=profile, detail=detail, watch=watch), trace, made)


def run_here(
    main: Callable[[Gpu], Any],
    cluster: Cluster,
    ranks: int,
    *,
    dry: bool = False,
    device: str = "numpy",
    profile: str = "ideal",
    program: Mapping[str, Any] | None = None,
) -> tuple[list[Any], Trace, list[Memory]]:
    """Run main(gpu) on `ranks` coroutines of this process; return results, trace, and each GPU's memory."""
    world, tables = World(ranks, dry), Tables()
    logs = [Log(rank, tables) for rank in range(ranks)]
    decisions: dict[str, Any] = {}
    arrays = arrays_of(device, dry)
    engine = EngineBeside(world, logs, cluster, profile)
    gpus = [Gpu(world_comm(world, log), arrays, _memory(cluster, log.rank), decisions) for log in logs]

    def trace() -> Trace:
        return merge([(log.data, tables) for log in logs], _header(cluster, decisions, program, engine.marks))

    clock = _Clock(trace, cluster, profile)
    for gpu in gpus:
        gpu.comm.cluster, gpu.comm.profile, gpu.comm.answers = cluster, profile, EngineAnswers(engine)
        gpu._host = lambda gpu: clock.time_s(gpu, bool(gpu.comm.wire.exchange(None)))
    results = world.run(lambda rank: main(gpus[rank]))
    return results, trace(), [gpu.memory for gpu in gpus]


class _Clock:
    """Resolves the time so far, once for all ranks that synchronise together."""

    def __init__(self, trace: Callable[[], Trace], cluster: Cluster, profile: str) -> None:
        self.trace, self.cluster, self.profile = trace, cluster, profile
        self.asked: dict[int, int] = {}
        self.times: list[Any] = []

    def time_s(self, gpu: Gpu, _: bool) -> float:
        """Return the emulated time at which this rank's streams are all done."""
        turn = self.asked[gpu.rank] = self.asked.get(gpu.rank, 0) + 1
        while len(self.times) < turn:
            from emu.engine import resolve

            raw = resolve(self.trace(), self.cluster, profile=self.profile, detail="totals")
            self.times.append(raw.rank_end_s)
        return float(self.times[turn - 1][gpu.rank])


def mpi_gpu(world: MpiWorld, cluster: Cluster, device: str = "numpy", profile: str = "ideal") -> Gpu:
    """Return this process's GPU, which records and sends over MPI."""
    from emu.comm.communicator import Comm

    log = Log(world.rank)
    comm = Comm(world.wire, log, range(world.size))
    comm.cluster, comm.profile = cluster, profile
    return Gpu(comm, arrays_of(device, allocate=comm.wire.empty), _memory(cluster, world.rank))


def mpi_trace(
    world: MpiWorld, gpu: Gpu, cluster: Cluster, program: Mapping[str, Any] | None = None,
    marks: Mapping[str, str] | None = None,
) -> Trace | None:  # fmt: skip
    """Bring all ranks' logs together: the trace on rank 0, None elsewhere."""
    logs = world.gather_logs(bytes(gpu.comm.log.data), gpu.comm.log.tables)
    if logs is None:
        return None
    return merge(logs, _header(cluster, gpu.decisions, program, marks))


def _run_mpi(
    main: Callable[[Gpu], Any], spec: str | PathLike[str] | Cluster, ranks: int | None, device: str, profile: str,
    settings: Any, pace: Pace | None = None,
) -> Run:  # fmt: skip
    from emu.comm.mpi_world import MpiWorld

    world = MpiWorld()
    try:
        if ranks is not None and ranks != world.size:
            raise ConfigError(f"ranks: as many as mpirun started ({world.size}) are expected, got {ranks}")
        cluster = _cluster(spec, settings, world.size)
        wall = wall_gpu(world, cluster, pace, device, profile) if pace is not None else None
        gpu = wall.gpu if wall is not None else mpi_gpu(world, cluster, device, profile)
        watch(world, gpu.comm.log)
        marks: dict[str, str] = {}
        lateness = None
        if wall is None:
            result, marks = _ask_along(main, world, gpu, cluster, profile)
        else:
            result = main(gpu)
            lateness = wall.end()
        trace = world.tell(mpi_trace(world, gpu, cluster, marks=marks))
    except BaseException as error:
        end_job(world, error)
        raise
    finally:
        world.watch.stop()
    return Run([result], trace, cluster, profile, (gpu.memory,), lateness)


def _ask_along(
    main: Callable[[Gpu], Any], world: MpiWorld, gpu: Gpu, cluster: Cluster, profile: str
) -> tuple[Any, dict[str, str]]:
    """Run main(gpu) beside an engine that answers its questions; return its result and the trace's marks."""
    from emu.comm.mpi_sequencer import seat_at

    seat = seat_at(gpu.comm, world.watch, world.control(), cluster, profile)
    clock = _MpiClock(world, gpu, cluster, profile)
    gpu._host = lambda gpu: clock.time_s()
    seat.start()
    result = main(gpu)
    seat.finish()
    asked = world.tell(any(world.gather(seat.asked) or ()))
    seat.stop()
    return result, {"order": cluster.name} if asked else {}


def wall_gpu(world: MpiWorld, cluster: Cluster, pace: Pace, device: str = "numpy", profile: str = "ideal") -> Wall:
    """Return this process's GPU under the wall clock; `end()` it. Collective."""
    from emu.wall.run import begin

    return begin(
        world, cluster, pace, device=device, profile=profile, failed=lambda error: end_job(world, error)
    )


def _pace(dilation: float | str, compute: str) -> Pace:
    from emu.wall.run import read_pace

    return read_pace(dilation, compute)


class _MpiClock:
    """Resolves the time so far on rank 0 and tells every rank its own."""

    def __init__(self, world: MpiWorld, gpu: Gpu, cluster: Cluster, profile: str) -> None:
        self.world, self.gpu, self.cluster, self.profile = world, gpu, cluster, profile

    def time_s(self) -> float:
        """Return the emulated time at which this rank's streams are all done. Collective."""
        from emu.engine import resolve

        trace = mpi_trace(self.world, self.gpu, self.cluster)
        times = None
        if trace is not None:
            times = resolve(trace, self.cluster, profile=self.profile, detail="totals").rank_end_s
        return float(self.world.tell(times)[self.world.rank])


def watch(world: MpiWorld, log: Log) -> None:
    """Give every wait of this process its deadline, and name those that can't end."""
    from emu.comm.mpi_envelope import Envelope

    Envelope(world, log, lambda text: print(text, file=sys.stderr, flush=True), world.abort).start()


def end_job(world: MpiWorld, error: BaseException) -> None:
    """End the whole job for one rank's error, told once: by the lowest rank that meets it."""
    if world.size == 1:
        return
    if isinstance(error, EmuError):
        # All ranks may have met the same error; the lowest one's words end the job for all.
        time.sleep(0.5 * min(world.rank, 4))
        text = f"emu: {error}"
    else:
        text = f"emu: rank {world.rank} raised:\n" + "".join(traceback.format_exception(error))
    print(text, file=sys.stderr, flush=True)
    world.abort(2 if isinstance(error, EmuError) else 1)


def _cluster(spec: str | PathLike[str] | Cluster, settings: Mapping[str, str], ranks: int | None) -> Cluster:
    if not isinstance(spec, (Cluster, str, PathLike)):
        raise ConfigError(f"cluster: a name, the path of a file or a Cluster is expected, got {type(spec).__name__}")
    if not isinstance(spec, Cluster):
        return load_cluster(fspath(spec), settings, ranks)
    if settings:
        raise ConfigError(f"cluster {spec.name}: settings change one that is named, got {', '.join(settings)} beside "
                          "a Cluster that is made; give them to load_cluster")  # fmt: skip
    return spec


def _memory(cluster: Cluster, rank: int) -> Memory:
    gpu = cluster.gpu(rank)
    return Memory(gpu.memory_bytes, f"rank {rank} ({gpu.name})")


def _header(
    cluster: Cluster,
    decisions: Mapping[str, Any],
    program: Mapping[str, Any] | None,
    marks: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    told = {"decisions": dict(decisions), "marks": dict(marks or {}), "program": dict(program or {})}
    return {"cluster": cluster.name, "cluster_sha256": cluster.sha256, **told}


def _started_by_mpirun() -> bool:
    from emu.comm.mpi_start import started_by_mpirun

    return started_by_mpirun()
