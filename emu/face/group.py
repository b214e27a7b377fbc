"""mpi4py's groups: ordered sets of processes, without communication."""

from __future__ import annotations

from collections.abc import Sequence

from emu.face.status import UNDEFINED


class Group:
    """World ranks in group order. `me` is the world rank that asks."""

    def __init__(self, members: Sequence[int] = (), me: int = -1) -> None:
        self.members = tuple(members)
        self.me = me

    def Get_size(self) -> int:
        """Return the number of members."""
        return len(self.members)

    def Get_rank(self) -> int:
        """Return my place, UNDEFINED if I am not in it."""
        return self.members.index(self.me) if self.me in self.members else UNDEFINED

    size = property(Get_size)
    rank = property(Get_rank)

    def Incl(self, ranks: Sequence[int]) -> Group:
        """Return the group of these places, in this order."""
        return Group([self.members[r] for r in ranks], self.me)

    def Excl(self, ranks: Sequence[int]) -> Group:
        """Return the group without these places."""
        return Group([m for r, m in enumerate(self.members) if r not in set(ranks)], self.me)

    def Range_incl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        """Return the group of these ranges (first, last, stride) of places."""
        return self.Incl(_places(ranks))

    def Range_excl(self, ranks: Sequence[tuple[int, int, int]]) -> Group:
        """Return the group without these ranges of places."""
        return self.Excl(_places(ranks))

    @classmethod
    def Union(cls, group1: Group, group2: Group) -> Group:
        """Return all members of the first, then the others of the second."""
        return Group([*group1.members, *(m for m in group2.members if m not in group1.members)], group1.me)

    @classmethod
    def Intersection(cls, group1: Group, group2: Group) -> Group:
        """Return the members of the first that are in the second."""
        return Group([m for m in group1.members if m in group2.members], group1.me)

    @classmethod
    def Difference(cls, group1: Group, group2: Group) -> Group:
        """Return the members of the first that are not in the second."""
        return Group([m for m in group1.members if m not in group2.members], group1.me)

    Intersect = Intersection

    def Translate_ranks(self, ranks: Sequence[int] | None = None, group: Group | None = None) -> list[int]:
        """Return the places in another group of the members at these places."""
        there = group.members if group is not None else ()
        places = range(len(self.members)) if ranks is None else ranks
        return [there.index(self.members[r]) if self.members[r] in there else UNDEFINED for r in places]

    def Compare(self, group: Group) -> int:
        """Compare two groups: 0 identical, 2 similar, 3 unequal."""
        if self.members == group.members:
            return 0
        return 2 if set(self.members) == set(group.members) else 3

    def Dup(self) -> Group:
        """Return the same group."""
        return Group(self.members, self.me)

    def Free(self) -> None:
        """Nothing is held."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self.members == other.members

    def __hash__(self) -> int:
        return hash(self.members)


def _places(ranges: Sequence[tuple[int, int, int]]) -> list[int]:
    return [r for first, last, stride in ranges for r in range(first, last + (1 if stride > 0 else -1), stride)]


GROUP_NULL, GROUP_EMPTY = Group(), Group()
