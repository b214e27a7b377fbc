"""mpi4py's Cartesian communicators: ranks in a grid, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from emu.errors import ConfigError
from emu.face.intracomm import COMM_NULL, Intracomm
from emu.face.status import PROC_NULL

CART = 1


class Cartcomm(Intracomm):
    """A communicator whose ranks stand in a grid of `dims`; along a periodic dimension the ends meet."""

    dims: list[int]
    periods: list[int]

    def Get_topology(self) -> int:
        """Return CART."""
        return CART

    def Get_dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.dims)

    dim = ndim = property(Get_dim)

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        """Return (dims, periods, my coordinates)."""
        return list(self.dims), list(self.periods), self.coords

    topo = property(Get_topo)

    @property
    def coords(self) -> list[int]:
        """My coordinates."""
        return self.Get_coords(self.rank)

    def Get_coords(self, rank: int) -> list[int]:
        """Return a rank's coordinates."""
        if not 0 <= rank < self.size:
            raise ConfigError(f"Get_coords: a rank from 0 to {self.size - 1} is expected, got {rank}")
        coords = []
        for extent in reversed(self.dims):
            rank, place = divmod(rank, extent)
            coords.append(place)
        return coords[::-1]

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """Return the rank at coordinates; they wrap round along periodic dimensions."""
        rank = 0
        for place, extent, periodic in zip(coords, self.dims, self.periods, strict=True):
            if not periodic and not 0 <= place < extent:
                raise ConfigError(f"Get_cart_rank: coordinates within {self.dims} are expected, got {list(coords)}")
            rank = rank * extent + place % extent
        return rank

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return (source, destination) of a shift by `disp` along a dimension; PROC_NULL beyond an end."""
        if not 0 <= direction < len(self.dims):
            raise ConfigError(f"Shift: a direction from 0 to {len(self.dims) - 1} is expected, got {direction}")
        return self._neighbour(direction, -disp), self._neighbour(direction, disp)

    def _neighbour(self, direction: int, disp: int) -> int:
        coords = self.coords
        coords[direction] += disp
        if not self.periods[direction] and not 0 <= coords[direction] < self.dims[direction]:
            return PROC_NULL
        return self.Get_cart_rank(coords)

    def Sub(self, remain_dims: Sequence[bool]) -> Cartcomm:
        """Make a communicator of the ranks that share my coordinates in the dimensions that are left out."""
        coords = self.coords
        color = 0
        for place, extent, kept in zip(coords, self.dims, remain_dims, strict=True):
            color = color if kept else color * extent + place
        part = self._core.split(color, self.rank)
        kept_dims = [d for d, kept in zip(self.dims, remain_dims, strict=True) if kept]
        kept_periods = [p for p, kept in zip(self.periods, remain_dims, strict=True) if kept]
        return _cart(self, part, kept_dims, kept_periods)

    def Dup(self, info: Any = None) -> Cartcomm:
        """Make a communicator of the same grid."""
        return _cart(self, self._core.split(0, self.rank), self.dims, self.periods)


def make_cart(comm: Intracomm, dims: Sequence[int], periods: Any) -> Any:
    """Make a grid of the first ranks of a communicator; the others get COMM_NULL."""
    dims = [int(dims)] if isinstance(dims, int) else [int(d) for d in dims]
    if periods is None or isinstance(periods, (bool, int)):
        periods = [bool(periods)] * len(dims)
    if len(periods) != len(dims) or min(dims, default=1) < 1 or prod(dims) > comm.size:
        raise ConfigError(
            f"Create_cart: dimensions of at most {comm.size} places with as many periods are expected, got "
            f"{dims} and {list(periods)}; see MPI.Compute_dims"
        )
    core = comm._core.split(0 if comm.rank < prod(dims) else None, comm.rank)
    return COMM_NULL if core is None else _cart(comm, core, dims, periods)


def _cart(comm: Intracomm, core: Any, dims: Sequence[int], periods: Sequence[Any]) -> Cartcomm:
    made = Cartcomm._made_of(comm._session, core)
    made.dims, made.periods = list(dims), [int(bool(p)) for p in periods]
    return made


def compute_dims(nnodes: int, dims: int | Sequence[int]) -> list[int]:
    """Return dimensions, as equal as can be, of a grid of `nnodes`; entries that are not 0 stay.

    >>> compute_dims(12, 2)
    [4, 3]
    >>> compute_dims(12, [0, 2])
    [6, 2]
    """
    found = [0] * dims if isinstance(dims, int) else [int(d) for d in dims]
    fixed = prod(d for d in found if d > 0)
    open_places = [i for i, d in enumerate(found) if d == 0]
    if nnodes % fixed or not open_places and fixed != nnodes:
        raise ConfigError(f"Compute_dims: dimensions that divide {nnodes} are expected, got {found}")
    for i, extent in zip(open_places, _factors(nnodes // fixed, len(open_places)), strict=True):
        found[i] = extent
    return found


def _factors(n: int, count: int) -> list[int]:
    """Return `count` factors of n as equal as can be, the largest first."""
    if count == 0:
        return []
    if count == 1:
        return [n]
    root = round(n ** (1 / count))
    smallest = next(d for d in range(max(1, root + 1), 0, -1) if n % d == 0 and d**count <= n)
    return sorted([smallest, *_factors(n // smallest, count - 1)], reverse=True)
