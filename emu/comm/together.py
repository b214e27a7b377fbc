"""One recording for all ranks of a group: a collective's function runs once for every class of ranks.

Ranks of a ring do the same at each step, with chunks of other lengths; thousands of them have thousands of steps each.
The function is run with all ranks at once (`at_once`) on a communicator that moves nothing, and gives one template a
class, whose rows tell where lengths differ (`emu.trace.Lengths`). What can't be done so is recorded rank by rank.
"""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from emu.comm.at_once import Bytes, Extent, NotAtOnce, Parted, Ranks, Table
from emu.comm.communicator import Comm
from emu.comm.recording import Log, Tables
from emu.errors import ConfigError
from emu.trace import ANY, COLLECTIVE, MOST_LENGTHS, ROW, Lengths, Op, Template

if TYPE_CHECKING:
    from emu.comm.calls import Collective

FEWEST = 64  # ranks of a group; fewer are as quickly recorded one by one
MOST_CLASSES = 32  # ranks that fall into more are recorded one by one


def record_together(comm: Comm, spec: Collective, args: tuple, kwargs: dict, terms: Any) -> bool:
    """Record a call's templates for all ranks of `comm` that make it with these arguments.

    Return whether this rank's is among them. Dry runs only: there a call depends on nothing but its terms and ranks.
    """
    tables, key = comm.log.tables, (spec.label, comm.size, terms)
    if comm.size < FEWEST or spec.label in tables.one_by_one or key in tables.families:
        return False
    family = _family(comm, spec, args, kwargs)
    if family is None or 2 * np.count_nonzero(family >= 0) < comm.size:  # or few ranks share their arguments' sizes
        tables.one_by_one.add(spec.label)
    if family is None or family[comm.rank] < 0:
        return False
    tables.families[key] = family
    return True


def _family(comm: Comm, spec: Collective, args: tuple, kwargs: dict) -> np.ndarray | None:
    """Return each place's template, -1 where the arguments are wrong; None where ranks can't be run at once."""
    family = np.full(comm.size, -1, np.int32)
    classes, found = [np.arange(comm.size)], 1
    while classes:
        places = classes.pop()
        try:
            template = _record(comm, spec, args, kwargs, places)
        except Parted as parted:
            which = np.unique(parted.values, return_inverse=True)[1]
            found += int(which.max())
            if found > MOST_CLASSES:
                return None
            classes += [places[which == k] for k in range(int(which.max()) + 1)]
        except ConfigError:  # those ranks do not call with such arguments
            continue
        except (NotAtOnce, AttributeError, IndexError, TypeError, ValueError):
            return None
        else:
            family[places] = comm.log.tables.add_template(None, template)
    return family


def _record(comm: Comm, spec: Collective, args: tuple, kwargs: dict, places: np.ndarray) -> Template:
    """Run the function for the ranks at these places of the group."""
    log = _Log(comm.log.tables, comm.group, places)
    silent: Any = _Silent(Ranks.of(places), comm.size)
    on = _AtOnce(silent, log, comm.group, comm.context)
    on.group = Table(comm.group)
    on.cluster, on.profile, on.decisions = comm.cluster, comm.profile, comm.decisions
    log.tables.label(spec.label)
    spec.function(
        on, *[_extent(value) for value in args], **{name: _extent(value) for name, value in kwargs.items()}
    )
    return Template(spec.label, comm.size, *log.told())


def _extent(value: Any) -> Any:
    return Extent(value.size, value.dtype) if hasattr(value, "dtype") else value


class _Silent:
    """A wire that moves nothing, of many ranks."""

    dry = True

    def __init__(self, rank: Ranks, size: int) -> None:
        self.rank, self.size = rank, size

    def isend(self, *_: Any) -> None:
        """Do nothing."""

    irecv = sendrecv = wait = isend


class _AtOnce(Comm):
    """A communicator of many ranks at once."""

    def empty(self, size: Any, dtype: Any, like: Any = None) -> Any:
        """Return scratch of each rank."""
        return Extent(size, dtype)


class _Log(Log):
    """Rows of many ranks: with peers relative to each, and lengths by rank where they differ."""

    def __init__(self, tables: Tables, group: tuple[int, ...], places: np.ndarray) -> None:
        super().__init__(-1, tables)
        self.flag = COLLECTIVE
        self._places, self._size = places, len(group)
        self._of = np.full(max(group) + 1, -1, np.int64)
        self._of[list(group)] = np.arange(len(group))
        self._rows: list[tuple] = []
        self._relative: dict[int, tuple[Any, int]] = {}  # by a number's identity
        self._numbers: dict[int, tuple[Any, int]] = {}  # the same of lengths
        self._codes: dict[bytes, int] = {}
        self._values: list[int] = []

    def send(self, peer: Any, tag: int, context: int, nbytes: Any) -> int:
        """Record a send of each rank."""
        self._move(Op.SEND, peer, tag, nbytes)
        self.posted[0] += 1
        return self.posted[0] - 1

    def recv(self, peer: Any, tag: int, context: int, nbytes: Any) -> int:
        """Record a receive of each rank."""
        self._move(Op.RECV, peer, tag, nbytes)
        self.posted[0] += 1
        return self.posted[0] - 1

    def exchange(self, source: Any, n_in: Any, to: Any, n_out: Any, tag: int, context: int) -> None:
        """Record a receive, a send and the wait for both."""
        self.recv(source, tag, context, n_in)
        self.wait(self.send(to, tag, context, n_out) - 1, 2)

    def wait(self, number: int, count: int = 1) -> None:
        """Record that each rank waits for `count` requests."""
        self._rows.append((Op.WAIT, 0, 0, self.posted[0] - number, count, 0, 0, 0.0))

    def compute(self, dtype_code: int, label: int, nbytes: Any, flops: Any) -> None:
        """Record a kernel of each rank."""
        if nbytes.__class__ is not Bytes:
            self._rows.append((Op.COMPUTE, 0, COLLECTIVE, dtype_code, label, 0, nbytes, flops))
            return
        each = 0.0 if flops.__class__ is float and flops == 0.0 else 1.0
        if each and flops is not nbytes.elements:
            raise NotAtOnce
        row = Op.COMPUTE, 0, COLLECTIVE, dtype_code, label, self._number(nbytes.elements), nbytes.each, each
        self._rows.append(row)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotAtOnce

    elapsed = copy = record = await_event = begin = end = sync = reach = call = _refuse

    def _move(self, op: Op, peer: Any, tag: int, nbytes: Any) -> None:
        number, n = 0, nbytes
        if nbytes.__class__ is Bytes:
            number, n = self._number(nbytes.elements), nbytes.each
        self._rows.append((op, 0, COLLECTIVE, self._relative_to_each(peer), index(tag), number, n, 0.0))

    def _relative_to_each(self, peer: Any) -> int:
        """Return a peer's place less each rank's own. Raise Parted where they differ."""
        known = self._relative.get(id(peer))
        if known is None or known[0] is not peer:
            if peer is ANY:
                raise NotAtOnce
            off = (self._of[peer] - self._places) % self._size
            known = _keep(self._relative, peer, index(off.view(Ranks)))
        return known[1]

    def _number(self, elements: Ranks) -> int:
        """Return the number, from 1 on, of lengths."""
        known = self._numbers.get(id(elements))
        if known is None or known[0] is not elements:
            codes = self._coded(np.asarray(elements)).tobytes()
            known = _keep(self._numbers, elements, self._codes.setdefault(codes, 1 + len(self._codes)))
        return known[1]

    def _coded(self, elements: np.ndarray) -> np.ndarray:
        """Return each length's place among the values."""
        codes = np.full(len(elements), MOST_LENGTHS, np.uint8)
        for k, value in enumerate(self._values):
            codes[elements == value] = k
        fresh = np.unique(elements[codes == MOST_LENGTHS]).tolist()
        if len(self._values) + len(fresh) > MOST_LENGTHS:
            raise NotAtOnce
        for value in fresh:
            codes[elements == value] = len(self._values)
            self._values.append(value)
        return codes

    def told(self) -> tuple[np.ndarray, Lengths | None]:
        """Return the rows, and the lengths that differ between ranks."""
        rows = np.array(self._rows, ROW)
        if not self._codes:
            return rows, None
        column = np.full(self._size, -1, np.int32)
        column[self._places] = np.arange(len(self._places))
        codes = np.frombuffer(b"".join(self._codes), np.uint8).reshape(len(self._codes), len(self._places))
        return rows, Lengths(column, codes, np.array(self._values, np.int64))


def _keep(known: dict[int, tuple[Any, int]], what: Any, found: int) -> tuple[Any, int]:
    """Note what was found out about an object, for its next uses, which come soon."""
    if len(known) > 64:
        known.clear()
    known[id(what)] = what, found
    return known[id(what)]
