"""A communicator that also answers to mpi4py's upper-case names, for submissions written with them."""

from __future__ import annotations

from typing import Any

from emu.comm.communicator import Comm


class FacedComm(Comm):
    """emu's communicator; `Sendrecv`, `Isend`, `Get_rank` and their kin are those of mpi4py's face."""

    _face: Any = None

    def __getattr__(self, name: str) -> Any:
        """Find what the communicator itself has not, on its face."""
        if not name[:1].isupper():
            raise AttributeError(f"a communicator has no {name!r}; it has isend, irecv, sendrecv, waitall, reduce")
        if self._face is None:
            self._face = _face_of(self)
        return getattr(self._face, name)


def faced(comm: Comm) -> FacedComm:
    """Return the same communicator with mpi4py's names."""
    made = FacedComm(comm.wire, comm.log, comm.group, comm.context)
    made.cluster, made.decisions = comm.cluster, comm.decisions
    return made


def _face_of(comm: Comm) -> Any:
    from emu.comm.answers import HostAnswers
    from emu.comm.background import Background
    from emu.comm.local import LocalTurns
    from emu.face.intracomm import Intracomm
    from emu.face.session import Session

    world: Any = comm.wire.world  # type: ignore[attr-defined]
    return Intracomm._made_of(Session(comm, HostAnswers(), Background(LocalTurns(world))), comm)
