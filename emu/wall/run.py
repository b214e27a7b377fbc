"""A run under the wall clock: start the referee, seat the ranks, run, and tell how late it was.

    wall = begin(world, cluster, Pace(dilation=1000))
    main(wall.gpu)
    told = wall.end()          # on every rank
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from emu.errors import ConfigError
from emu.gpu.arrays import arrays_of
from emu.gpu.memory import Memory
from emu.wall import agent
from emu.wall.device import COMPUTE, WallComm, WallGpu
from emu.wall.governor import FIRST_DILATION
from emu.wall.hosts import Clock, place
from emu.wall.lateness import Lateness, Told, summarise
from emu.wall.log import SharedTables, WallLog
from emu.wall.pace import sharpen
from emu.wall.seat import Seat
from emu.wall.streams import Streams
from emu.wall.traffic import Traffic
from emu.wall.wire import WallWire

if TYPE_CHECKING:
    from emu.cluster import Cluster
    from emu.comm.mpi_world import MpiWorld

SWITCH_S = 1e-4  # how long a thread may keep the interpreter while another wants it; by default 50 times this


@dataclass(frozen=True)
class Pace:
    """How emulated time goes by: `dilation` seconds of the host for each; what computation takes."""

    dilation: float = 1.0
    auto: bool = False  # begin with `dilation`, then take as much as the hosts need
    compute: str = "model"
    speedup: float = 1.0  # a measured kernel takes its measured time divided by this

    def __post_init__(self) -> None:
        if not 0 < self.dilation < float("inf"):
            raise ConfigError(f"dilation: a number above 0 is expected, got {self.dilation}")
        if self.compute not in COMPUTE:
            raise ConfigError(f"compute: one of {', '.join(COMPUTE)} is expected, got {self.compute!r}")
        if not 0 < self.speedup < float("inf"):
            raise ConfigError(f"speedup: a number above 0 is expected, got {self.speedup}")


def read_pace(dilation: float | str, compute: str = "model", speedup: float = 1.0) -> Pace:
    """Return a pace from what a user writes: a number, or "auto". Raise ConfigError for what is none."""
    if dilation == "auto":
        return Pace(FIRST_DILATION, True, compute, speedup)
    try:
        value = float(dilation)
    except ValueError:
        raise ConfigError(f"dilation: a number above 0 or 'auto' is expected, got {dilation!r}") from None
    return Pace(value, False, compute, speedup)


@dataclass
class Wall:
    """One rank's side of a run under way."""

    gpu: WallGpu
    pace: Pace
    seat: Seat
    lateness: Lateness
    clock: Clock  # the referee's, as measured at the beginning
    process: Any = None  # the referee's, on the rank that started it

    @property
    def dilation(self) -> float:
        """Seconds of the host for an emulated one, at present."""
        return self.seat.dilation

    @property
    def run_wall_s(self) -> float:
        """How long the run so far takes at the present dilation, host seconds."""
        return self.seat.dilation * self.seat.time_s

    def end(self) -> Told:
        """Wait for all streams, leave, and return how late all ranks' messages were. Collective."""
        gpu, streams = self.gpu, self.gpu.streams
        assert streams is not None
        self.seat.settle()
        streams.join(gpu)
        found = gpu.comm.wire.exchange((self.lateness.found, self._clock_off_s()))
        stood_still_s = self.seat.stood_still_s
        dilation = self.seat.dilation
        took = stood_still_s + dilation * self.seat.time_s
        streams.end()
        gpu.log.close_gaps()
        self.seat.leave()
        if self.process is not None:
            self.process.wait(10)
        off_s = max(off for _, off in found)
        return summarise([f for f, _ in found], dilation, stood_still_s, took, off_s, self.pace.auto)

    def ended(self) -> dict[int, list[tuple[int, float]]]:
        """Return, by stream, when each of this rank's operations really ended, as emulated time by the host's clock."""
        assert self.gpu.streams is not None
        return {0: self.seat.ended, **self.gpu.streams.ended()}

    def _clock_off_s(self) -> float:
        """Return by how much this host's clock may have been off the referee's, drift included."""
        if self.clock.error_s == 0:
            return 0.0
        later = self.seat.compare_clocks()
        return abs(later.ahead_s - self.clock.ahead_s) + later.error_s


def begin(
    world: MpiWorld,
    cluster: Cluster,
    pace: Pace,
    *,
    device: str = "numpy",
    profile: str = "ideal",
    failed: Callable[[BaseException], None] | None = None,
) -> Wall:
    """Seat this rank; all ranks go on together, at emulated time 0. Collective.

    `failed(error)` is called on the thread of a stream whose work has raised; it must end the job.
    """
    process = told = None
    here = place()
    places = world.gather(here)
    if places is not None:
        several = len(set(places)) > 1
        process, at = agent.start(cluster, world.size, profile, pace.dilation, pace.auto, several)
        told = (at, here, several)
    address, referees, several = world.tell(told)
    if here != referees:
        address = replace(address, hosts=address.hosts[1:])
    sys.setswitchinterval(SWITCH_S)
    sharpen()
    lateness, traffic = Lateness(), Traffic()

    clock = Clock()

    def open_seat(stream: int) -> Seat:
        made = Seat(address, world.rank, stream, pace.dilation, world.watch, traffic, clock.ahead_s)
        made.tells_late = pace.auto
        return made

    seat = open_seat(0)
    log = WallLog(world.rank, SharedTables(), seat, profile == "ideal")
    wire = WallWire(world.wire, range(world.size), 0, seat, traffic, lateness)
    spec = cluster.gpu(world.rank)
    memory = Memory(spec.memory_bytes, f"rank {world.rank} ({spec.name})")
    streams = Streams(open_seat, failed if failed is not None else _raise)
    gpu = WallGpu(
        WallComm(wire, log, range(world.size)), arrays_of(device), memory, streams, pace.compute, pace.speedup
    )
    wire.exchange(None)  # the referee is there and everyone is seated
    if several and here != referees:
        clock = seat.compare_clocks()
        seat.ahead_s = clock.ahead_s
    wire.enter()
    wire.exchange(None)
    return Wall(gpu, pace, seat, lateness, clock, process)


def _raise(error: BaseException) -> None:
    raise error
