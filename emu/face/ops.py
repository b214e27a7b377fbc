"""MPI's reduction operations: by name for the collectives, and as functions of two objects or buffers."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from emu.comm.operations import OPERATIONS
from emu.errors import ConfigError
from emu.face.datatypes import Datatype


class Op:
    """A reduction. `word` is its name among the collectives' own; without one, ranks' parts are folded in order."""

    def __init__(
        self, name: str, word: str | None, combine: Callable[[Any, Any], Any], commutative: bool = True,
        on_memory: Callable[[Any, Any, Any], Any] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.word = word
        self.combine = combine
        self.commutative = commutative
        self._on_memory = on_memory

    @staticmethod
    def Create(function: Callable[[Any, Any, Any], Any], commute: bool = False) -> Op:
        """Return an operation of the user's: function(inbuf, inoutbuf, datatype) on memory."""
        return Op(getattr(function, "__name__", "user"), None, _of_objects(function), commute, function)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and (self.name, self.word) == (other.name, other.word)  # ranks compare theirs

    def __hash__(self) -> int:
        return hash(self.name)

    def Free(self) -> None:
        """Nothing is held."""

    def Is_commutative(self) -> bool:
        """Tell whether ranks' parts may be combined in any order."""
        return self.commutative

    def Is_predefined(self) -> bool:
        """Tell whether this is one of MPI's own."""
        return self._on_memory is None

    is_predefined = property(Is_predefined)
    is_commutative = property(Is_commutative)

    def __call__(self, x: Any, y: Any) -> Any:
        return self.combine(x, y)

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """Set inoutbuf = op(inbuf, inoutbuf)."""
        from emu.face.buffers import buffer_of

        source, target = buffer_of(inbuf, "Reduce_local"), buffer_of(inoutbuf, "Reduce_local")
        self.fold(source.x, target.x, target.datatype)
        target.unpack()

    def fold(self, left: np.ndarray, right: np.ndarray, datatype: Datatype) -> None:
        """Set right = op(left, right), in rank order."""
        if self._on_memory is not None:
            self._on_memory(left.view(np.uint8).data, right.view(np.uint8).data, datatype)
        elif self.name in ("MAXLOC", "MINLOC"):
            _locate(self.name == "MAXLOC", left, right)
        elif self.word is not None:
            OPERATIONS[self.word](left, right, out=right)
        else:
            right[...] = self.combine(left, right)

    def check(self, dtype: np.dtype) -> None:
        """Raise ConfigError if numbers of this dtype can't be reduced so."""
        if self.word and self.word[0] == "b" and dtype.kind not in "iub":
            raise ConfigError(f"MPI.{self.name}: integers are expected, got {dtype}; use MPI.SUM, MAX, MIN or PROD")
        if self.name in ("MAXLOC", "MINLOC") and dtype.names is None:
            raise ConfigError(
                f"MPI.{self.name}: pairs of a value and an index are expected, got {dtype}; use MPI.DOUBLE_INT"
            )
        if self.word and dtype.names is not None:
            raise ConfigError(f"MPI.{self.name}: an array of numbers is expected, got records; use MPI.Op.Create")

    def __repr__(self) -> str:
        return f"MPI.{self.name}"


def _of_objects(function: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return what the lower-case calls do with a user's operation: mpi4py hands it two objects."""
    return lambda x, y: function(x, y, None)


def _locate(largest: bool, left: np.ndarray, right: np.ndarray) -> None:
    """Keep the larger (smaller) value and its index; of equal values the lower index."""
    value, index = right.dtype.names or ("", "")
    better = left[value] > right[value] if largest else left[value] < right[value]
    equal = (left[value] == right[value]) & (left[index] < right[index])
    take = better | equal
    right[take] = left[take]


def _locate_objects(largest: bool) -> Callable[[Any, Any], Any]:
    def combine(x: Any, y: Any) -> Any:
        (u, i), (v, j) = x, y
        if u == v:
            return u, min(i, j)
        return x if (u > v) == largest else y

    return combine


NAMED = {
    "SUM": Op("SUM", "sum", operator.add),
    "PROD": Op("PROD", "prod", operator.mul),
    "MAX": Op("MAX", "max", lambda x, y: y if y > x else x),
    "MIN": Op("MIN", "min", lambda x, y: y if y < x else x),
    "LAND": Op("LAND", "land", lambda x, y: bool(x) & bool(y)),
    "LOR": Op("LOR", "lor", lambda x, y: bool(x) | bool(y)),
    "LXOR": Op("LXOR", "lxor", lambda x, y: bool(x) ^ bool(y)),
    "BAND": Op("BAND", "band", operator.and_),
    "BOR": Op("BOR", "bor", operator.or_),
    "BXOR": Op("BXOR", "bxor", operator.xor),
    "MAXLOC": Op("MAXLOC", None, _locate_objects(True)),
    "MINLOC": Op("MINLOC", None, _locate_objects(False)),
    "REPLACE": Op("REPLACE", None, lambda x, y: y, commutative=False),
    "NO_OP": Op("NO_OP", None, lambda x, y: x, commutative=False),
}
OP_NULL = Op("OP_NULL", None, lambda x, y: None)
