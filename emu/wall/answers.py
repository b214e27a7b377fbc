"""Questions of time and order under the wall clock: answered when their moment has come, by the engine."""

from __future__ import annotations

from emu.comm.answers import HostAnswers
from emu.comm.communicator import Comm


class WallAnswers(HostAnswers):
    """One rank's questions: what has happened here has happened in emulated time, for the wire has waited for it."""

    def now_s(self, comm: Comm) -> float:
        """Return the emulated time at which the rank's program stands."""
        return comm.wire.now_s()  # type: ignore[attr-defined]
