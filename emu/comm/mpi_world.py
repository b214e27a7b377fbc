"""The processes of an MPI job, and what is told between them that is no message of the program."""

from __future__ import annotations

import os
import pickle
import time
from typing import Any

from mpi4py import MPI

from emu.comm.mpi import MpiWire
from emu.comm.mpi_mail import open_mail
from emu.comm.mpi_start import check_launcher
from emu.comm.recording import Tables
from emu.comm.watch import Watch

_FORWARD_S = 0.2  # a launcher gets so long to take a rank's last words before the job ends: MPICH's loses them else


class MpiWorld:
    """All processes of the job."""

    def __init__(self, watch: Watch | None = None) -> None:
        world = MPI.COMM_WORLD
        self.rank = world.rank
        self.size = world.size
        check_launcher(self.size)
        self.watch = watch if watch is not None else Watch()
        self._comm = world.Dup()
        self._wire: MpiWire | None = None

    @property
    def wire(self) -> MpiWire:
        """The wire between all ranks."""
        if self._wire is None:
            world = MPI.COMM_WORLD
            self._wire = MpiWire(world.Dup(), world.Dup(), self.watch, range(self.size), open_mail(world))
        return self._wire

    def control(self) -> MPI.Comm:
        """Make an MPI communicator for what is told beside the program."""
        return MPI.COMM_WORLD.Dup()

    def gather_logs(self, data: bytes, tables: Tables) -> list[tuple[bytes, Tables]] | None:
        """Bring every rank's log to rank 0."""
        return self.gather((data, tables))

    def gather(self, value: Any) -> list[Any] | None:
        """Bring a value of every rank to rank 0, without burning a core while others still work."""
        self.watch.meet(None, "its end, or a synchronization of all", patient=self.rank != 0)
        values = None
        if self.rank != 0:
            self._comm.isend(value, 0, tag=1).wait()
        else:
            values = [value] + [self._quiet_recv(source, 1) for source in range(1, self.size)]
        self.watch.end()
        return values

    def tell(self, value: Any) -> Any:
        """Bring rank 0's value to every rank; who waits sleeps, for as long as rank 0 works."""
        self.watch.meet(None, "its end, or a synchronization of all", patient=self.rank != 0)
        if self.rank != 0:
            value = self._quiet_recv(0, 2)
        else:
            data = pickle.dumps(value)
            MPI.Request.waitall([self._comm.isend(data, rank, tag=2) for rank in range(1, self.size)])
        self.watch.end()
        return value

    def abort(self, status: int) -> None:
        """End the job on every rank, with this status. Does not return."""
        time.sleep(_FORWARD_S)
        MPI.COMM_WORLD.Abort(status)
        os._exit(status)  # MPICH's abort returns until its launcher kills this process

    def _quiet_recv(self, source: int, tag: int) -> Any:
        pause = 1e-4
        while not self._comm.iprobe(source, tag):
            time.sleep(pause)
            pause = min(2 * pause, 5e-3)
        value = self._comm.recv(source=source, tag=tag)
        return pickle.loads(value) if tag == 2 else value
