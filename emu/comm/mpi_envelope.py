"""Who waits for whom under mpirun, told beside the program: waits that can't end are named before their deadline.

Each process's watch tells rank 0's what its rank waits for, once it has stood still for a while. Rank 0 finds the
waits that can't end: for a rank that has ended, or in a circle. Nothing of this is emulated traffic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from emu.comm.mpi import MpiWire, Parts
from emu.comm.mpi_world import MpiWorld
from emu.comm.recording import Log
from emu.comm.sites import told
from emu.comm.wire import Call
from emu.trace import Op

STILL_S = 1.0  # a rank that has stood still for so long tells rank 0
SURE_LOOKS = 2  # looks for which a circle must have stood
_TAG, _ANSWER = 9, 10
ANSWER_S = 3.0  # how long a sender may take to say where it sent
END = "its end, or a synchronization of all"


@dataclass(frozen=True)
class Stand:
    """What a rank waits for: `others` are the world ranks that it needs, `key` what they should be in."""

    rank: int
    serial: int
    what: str
    where: str
    key: tuple[Any, ...] = ()
    others: tuple[int, ...] = ()
    last: str = ""


class Envelope:
    """One process's part. `say` prints a line; `end` ends the job with a status."""

    def __init__(self, world: MpiWorld, log: Log, say: Callable[[str], None], end: Callable[[int], None]) -> None:
        self.world, self.log, self.say, self.end = world, log, say, end
        self.comm = world.control()
        self._collecting = threading.Lock()
        self.told = -1  # the serial of the stand that rank 0 knows
        self.stands: dict[int, Stand] = {}  # rank 0: who stands where
        self.looks: dict[tuple[int, ...], int] = {}

    def start(self) -> None:
        """Begin to watch."""
        self.world.watch.where_sent = self.where_sent
        self.world.watch.start(self.warn, self.expire, self.look)

    def look(self, waited_s: float) -> None:
        """Look at this rank's wait; on rank 0 at all."""
        watch = self.world.watch
        if waited_s >= STILL_S and self.told != watch.count:
            misfit = self._misfit(watch.waiting)
            if misfit is not None:
                self.say(f"emu: {misfit}")
                self.end(2)
            self._send(self._stand())
        elif waited_s == 0.0 and self.told >= 0:
            self.told = -1
            self.comm.send(("moving", self.world.rank, None), 0, _TAG)
        self._collect()
        if self.world.rank == 0:
            self._judge()

    def where_sent(self, wire: MpiWire, source: int, tag: int) -> str:
        """Ask the rank that has sent a message where that stands in its source; empty if it does not say."""
        place = (wire.context, wire.group, wire.rank, tag)
        self.comm.send(("where", self.world.rank, place), wire.group[source], _TAG)
        until = time.monotonic() + ANSWER_S
        while time.monotonic() < until:
            if self.comm.Iprobe(wire.group[source], _ANSWER):
                return self.comm.recv(source=wire.group[source], tag=_ANSWER)
            self._collect()
            time.sleep(0.01)
        return ""

    def _where(self, context: int, group: tuple[int, ...], to: int, tag: int) -> str:
        for wire in list(self.world.watch.wires):
            if (wire.context, wire.group) == (context, group) and (to, tag) in wire.sent:
                return told(wire.sent[to, tag])
        return ""

    def warn(self, seconds: float) -> None:
        """Tell at a tenth of the deadline what this rank waits for, and who is missing."""
        stand = self._stand()
        missing = self._missing(stand)
        self.say(
            f"emu: rank {stand.rank} at {stand.where} has waited {seconds:.0f} s for {stand.what}{missing}; "
            f"it gives up at {self.world.watch.deadline_s:.0f} s"
        )

    def expire(self, seconds: float) -> None:
        """Tell at the deadline what this rank has done last, and end the job."""
        stand = self._stand()
        self.say(
            f"emu: rank {stand.rank} at {stand.where} has waited {seconds:.0f} s for {stand.what}"
            f"{self._missing(stand)}; its last operations: {stand.last}; the deadline has passed, the job ends"
        )
        time.sleep(1.0)  # lets the other ranks tell theirs
        self.end(3)

    def _send(self, stand: Stand) -> None:
        self.told = stand.serial
        self.comm.send(("stands", self.world.rank, stand), 0, _TAG)

    def _stand(self) -> Stand:
        watch, rank = self.world.watch, self.world.rank
        waiting: tuple[Any, str, Any] = watch.waiting or (None, "nothing", None)
        wire, what, detail = waiting
        where = told(self.log.sites[-1]) if self.log.sites else "its start"
        last = last_operations(self.log)
        call: Call | None = detail if what == "agreement" else wire.latest if wire and self.log.flag else None
        if call is not None:
            words = f"{call} with rank {_listed(wire.group)}"
            key = ((wire.context, wire.group), call.ordinal)
            return Stand(rank, watch.count, words, call.site, key, wire.group, last)
        if what == "messages":
            pendings = [p for p in detail if isinstance(p, Parts) and not p.done and p.kind >= 0 and not p.held]
            peers = tuple(wire.group[p.source] for p in pendings if p.source >= 0)
            words = "messages from rank " + _listed(peers) if peers else "its messages"
            return Stand(rank, watch.count, words, where, (), peers, last)
        if what == "a message from":
            peer = wire.group[detail] if detail >= 0 else None
            others = () if peer is None else (peer,)
            return Stand(rank, watch.count, f"a message from rank {peer}", where, (), others, last)
        if wire is not None:
            return Stand(rank, watch.count, what, where, ((wire.context, wire.group), what), wire.group, last)
        if what == END:
            return Stand(rank, watch.count, what, where, ("all",), tuple(range(self.world.size)), last)
        return Stand(rank, watch.count, what, where, (), (), last)

    def _misfit(self, waiting: Any) -> str | None:
        """Tell of a message that is there for a wait, but made of something else."""
        if waiting is None or waiting[1] != "messages" or not isinstance(waiting[0], MpiWire):
            return None
        return waiting[0].misfit_of(waiting[2])

    def _missing(self, stand: Stand) -> str:
        if self.world.rank != 0 or not stand.key:
            return ""
        missing = [r for r in stand.others if r != stand.rank and not _is_there(self._key_of(r), stand.key)]
        return f"; missing: rank {_listed(missing)}" if missing else ""

    def _key_of(self, rank: int) -> tuple[Any, ...]:
        return self.stands[rank].key if rank in self.stands else ()

    def _collect(self) -> None:
        """Take in what the other ranks' watches tell and ask."""
        with self._collecting:  # the program's thread takes part when it asks where a message was sent
            while self.comm.Iprobe(MPI.ANY_SOURCE, _TAG):
                self._take(*self.comm.recv(source=MPI.ANY_SOURCE, tag=_TAG))

    def _take(self, kind: str, rank: int, stand: Any) -> None:
        if kind == "where":
            self.comm.send(self._where(*stand), rank, _ANSWER)
        elif kind == "stands":
            self.stands[rank] = stand
        else:
            self.stands.pop(rank, None)

    # On rank 0

    def _judge(self) -> None:
        """End the job if ranks wait in a circle."""
        circle = self._circle()
        serials = tuple(x for r in circle for x in (r, self.stands[r].serial))
        self.looks = {serials: self.looks.get(serials, 0) + 1} if circle else {}
        if circle and self.looks[serials] > SURE_LOOKS:
            self.say(f"emu: {self._told_circle(circle)}")
            self.end(2)

    def _needs(self, rank: int) -> list[int]:
        """Return the ranks that a rank waits for and that stand still elsewhere."""
        stand = self.stands[rank]
        return [
            r for r in stand.others
            if r != rank and r in self.stands and not _is_there(self.stands[r].key, stand.key)
        ]  # fmt: skip

    def _circle(self) -> list[int]:
        """Return ranks that wait for each other in a circle; empty if there is none."""
        done: set[int] = set()
        for start in sorted(self.stands):
            path: list[int] = []
            rank: int | None = start
            while rank is not None and rank not in done:
                if rank in path:
                    return path[path.index(rank) :]
                path.append(rank)
                rank = next(iter(self._needs(rank)), None)
            done.update(path)
        return []

    def _told_circle(self, circle: Sequence[int]) -> str:
        parts = []
        for rank in sorted(circle):
            stand = self.stands[rank]
            parts.append(f"rank {rank} waits for {stand.what} (at {stand.where})")
        return (
            f"deadlock: every rank must be able to go on, got {'; '.join(parts)}; "
            "make all ranks make the same calls in the same order"
        )


def _is_there(theirs: tuple[Any, ...], mine: tuple[Any, ...]) -> bool:
    """Tell whether a rank that stands at `theirs` has come to `mine`, or has passed it."""
    if not mine or not theirs or theirs[0] != mine[0]:
        return False
    return len(mine) == 1 or theirs[1] == mine[1] or isinstance(mine[1], int) and theirs[1] > mine[1]


def last_operations(log: Log, count: int = 5) -> str:
    """Return the latest rows of a log in words."""
    rows = log.rows()[-count:]
    return ", ".join(_row_told(row) for row in rows) or "nothing yet"


def _row_told(row: Any) -> str:
    op = Op(int(row["op"]))
    if op in (Op.SEND, Op.RECV):
        return f"{op.name.lower()} {'to' if op == Op.SEND else 'from'} rank {row['a']} of {row['n']} bytes"
    return op.name.lower()


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
