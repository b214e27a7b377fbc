"""Templates and groups that rows call: written into the engine's state once, changed as the library runs them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from emu.engine import layout as L
from emu.engine.library import Library
from emu.engine.state import State
from emu.errors import TraceError
from emu.trace import Lengths, Template

_NOT_IN_TEMPLATES = (L.CALL, L.SYNC, L.AWAIT, L.RECORD)


class Calls:
    """What may be called so far. `posts` are the requests that a template makes, `kept` those it leaves unwaited for,
    `window` how far back its waits look, `messages` how many it sends.
    """

    def __init__(self, state: State, library: Library, renumber: bool):
        self.state = state
        self.renumber = renumber  # requests within calls get no numbers of their own
        self.library = library
        self.plain = False  # calls go as they were recorded, whatever the library makes of them
        self.templates: list[Template] = []
        self.groups: list[tuple[int, ...]] = []
        self.members: list[np.ndarray] = []
        self.places: list[dict[int, int]] = []  # rank -> its place in the group
        self.sends: list[np.ndarray] = []  # (way, peer - me) as way * group size + peer - me
        self.receives: list[np.ndarray] = []
        self.posts = np.zeros(0, np.int64)
        self.kept = np.zeros(0, np.int64)
        self.window = np.zeros(0, np.int64)
        self.messages = np.zeros(0, np.int64)
        self._lengths: dict[int, tuple[np.ndarray, int, int, int]] = {}
        self._used: dict[int, int] = {}  # entries of the state's arrays of lengths
        self._numbers: list[int] = []  # of the templates as they were declared
        self._variants: dict[tuple[int, Any], int] = {}

    def declare_groups(self, groups: Sequence[Sequence[int]]) -> None:
        """Add groups; their numbers go on from those before."""
        if not groups:
            return
        used = sum(len(m) for m in self.members)
        table = self.state.room(L.T_GROUP, 2 * (len(self.groups) + len(groups)))
        for group in groups:
            members = np.asarray(group, np.int32)
            g = len(self.groups)
            self.state.room(L.T_MEMBER, used + len(members))[used : used + len(members)] = members
            table[2 * g : 2 * g + 2] = used, len(members)
            used += len(members)
            self.groups.append(tuple(group))
            self.members.append(members)
            self.places.append({r: i for i, r in enumerate(members.tolist())})

    def declare_templates(self, templates: Sequence[Template], labels: Sequence[int]) -> None:
        """Add templates with their labels; their numbers go on from those before."""
        first = len(self.templates)
        self._write(templates, labels)
        self._numbers += range(first, len(self.templates))

    def _write(self, templates: Sequence[Template], labels: Sequence[int]) -> None:
        if not templates:
            return
        state, width = self.state, L.TEMPLATE_WIDTH
        table = state.room(L.T_TEMPLATE, width * (len(self.templates) + len(templates)))
        told = []
        for template, label in zip(templates, labels, strict=True):
            rows, op = template.rows, template.rows["op"]
            if np.isin(op, _NOT_IN_TEMPLATES).any():
                raise TraceError(
                    f"template {template.name}: sends, receives, waits and computation are expected, got another "
                    "operation; record such a collective without a template"
                )
            first = state.append_rows(rows, np.arange(len(rows), dtype=np.int32))
            posts, kept = _requests(rows, op)
            entry = table[width * len(self.templates) :][:width]
            entry[:4] = first, first + len(rows), label, self.renumber and kept == 0
            if template.lengths is not None:
                entry[4:] = self._write_lengths(template.lengths)
            self.templates.append(template)
            way = (rows["b"].astype(np.int64) >> L.WAY_SHIFT) * template.group_size + rows["a"]
            self.sends.append(np.unique(way[op == L.SEND]))
            self.receives.append(np.unique(way[op == L.RECV]))
            told.append((posts, kept, rows["a"][op == L.WAIT].max(initial=0),
                         np.count_nonzero((op == L.SEND) | (op == L.COPY))))
        more = np.array(told, np.int64).T
        for name, values in zip(("posts", "kept", "window", "messages"), more, strict=True):
            setattr(self, name, np.concatenate([getattr(self, name), values]))

    def _write_lengths(self, lengths: Lengths) -> tuple[int, int, int, int]:
        """Put what differs between a template's ranks into the state, once; return where it stands."""
        known = self._lengths.get(id(lengths.codes))
        if known is None:
            width = lengths.codes.shape[1]
            code = self._append(L.T_CODE, lengths.codes.reshape(-1))
            known = lengths.codes, code - width, width, self._append(L.T_COLUMN, lengths.column)
            self._lengths[id(lengths.codes)] = known
        return known[1], known[2], self._append(L.T_LENGTH, lengths.values), known[3]

    def _append(self, slot: int, values: np.ndarray) -> int:
        """Add to an array of the state; return where."""
        first = self._used.get(slot, 0)
        self._used[slot] = first + len(values)
        self.state.exact_room(slot, first + len(values), first)[first : first + len(values)] = values
        return first

    def number(self, rows: np.ndarray) -> None:
        """Number the templates that CALL rows name as they stand here: as the library runs them. In place."""
        if self.plain or not self.library.tunes:
            rows["a"] = np.array(self._numbers)[rows["a"]]
            return
        calls, place = np.unique(rows[["a", "b", "n"]], return_inverse=True)
        told = [self._variant(int(a), int(b), int(n)) for a, b, n in calls]
        rows["a"] = np.array([number for number, _ in told])[place]
        rows["x"] = np.array([launch_s for _, launch_s in told])[place]

    def _variant(self, template: int, group: int, nbytes: int) -> tuple[int, float]:
        """Return the template that the library makes of one called by a group, and the call's launch."""
        number = self._numbers[template]
        terms = self.library.terms(self.templates[number].name, self.groups[group], nbytes)
        known = self._variants.get((number, terms))
        if known is None:
            known = self._variants[number, terms] = len(self.templates)
            label = int(self.state[L.T_TEMPLATE][L.TEMPLATE_WIDTH * number + 2])
            self._write([self.library.variant(self.templates[number], terms)], [label])
        return known, terms.launch_s

    def pairs(self, template: int, group: int, ranks: Sequence[int], world_size: int) -> list[np.ndarray]:
        """Return keys ((way * world size + source) * world size + destination) of what a call sends and receives."""
        members, places, size = self.members[group], self.places[group], world_size
        for r in ranks:
            if r not in places:
                raise TraceError(
                    f"rank {r}: a collective of its own group is expected, got group {group} without it"
                )
        if self.templates[template].group_size != len(members):
            raise TraceError(
                f"rank {ranks[0]}: template {self.templates[template].name} is for "
                f"{self.templates[template].group_size} ranks, got a group of {len(members)}"
            )
        me = np.array([places[r] for r in ranks])[:, None]
        mine = members[me].astype(np.int64)
        way, off = np.divmod(self.sends[template], len(members))
        to = (way * size + mine) * size + members[(off + me) % len(members)]
        way, off = np.divmod(self.receives[template], len(members))
        return [to.ravel(), ((way * size + members[(off + me) % len(members)]) * size + mine).ravel()]


def _requests(rows: np.ndarray, op: np.ndarray) -> tuple[int, int]:
    """Return how many requests rows make, and how many of them no wait is for."""
    made = np.cumsum((op == L.SEND) | (op == L.RECV))
    if not len(rows) or not made[-1]:
        return 0, 0
    waits = op == L.WAIT
    first = made[waits] - rows["a"][waits]
    change = np.zeros(made[-1] + 1, np.int64)
    np.add.at(change, first.clip(0), 1)
    np.add.at(change, (first + rows["b"][waits]).clip(0, made[-1]), -1)
    return int(made[-1]), int(np.count_nonzero(np.cumsum(change)[:-1] <= 0))
