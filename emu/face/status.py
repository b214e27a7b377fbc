"""What has been received, and MPI's special values for ranks and tags."""

from __future__ import annotations

from typing import Any

from emu.face.datatypes import Datatype

ANY_SOURCE = ANY_TAG = -1
PROC_NULL = -2
ROOT = -4
UNDEFINED = -32766
TAG_UB = (1 << 23) - 1  # what every wire can carry beside a message's kind


class Status:
    """Source, tag and size of a message."""

    source: int
    tag: int
    count: int  # bytes

    def __init__(self, status: Status | None = None) -> None:
        self.source = status.source if status else ANY_SOURCE
        self.tag = status.tag if status else ANY_TAG
        self.error = 0
        self.count = status.count if status else 0
        self.cancelled = False

    def set(self, source: int, tag: int, nbytes: int) -> None:
        """Take in what has been received."""
        self.source, self.tag, self.count = source, tag, nbytes

    def Get_source(self) -> int:
        """Return the sender's rank."""
        return self.source

    def Set_source(self, source: int) -> None:
        """Set the sender's rank."""
        self.source = source

    def Get_tag(self) -> int:
        """Return the message's tag."""
        return self.tag

    def Set_tag(self, tag: int) -> None:
        """Set the tag."""
        self.tag = tag

    def Get_error(self) -> int:
        """Return 0: what goes wrong is raised."""
        return self.error

    def Set_error(self, error: int) -> None:
        """Set the error."""
        self.error = error

    def Get_count(self, datatype: Datatype | None = None) -> int:
        """Return the items received, in bytes if no datatype is given; UNDEFINED for part of an item."""
        size = 1 if datatype is None else datatype.Get_size()
        if size == 0:
            return 0
        return self.count // size if self.count % size == 0 else UNDEFINED

    def Get_elements(self, datatype: Datatype) -> int:
        """Return the base elements received."""
        return self.count // datatype.dtype.itemsize

    def Is_cancelled(self) -> bool:
        """Tell whether the operation was cancelled."""
        return self.cancelled


def tell(status: Status | None, source: int, tag: int, nbytes: int) -> None:
    """Set a status, where one was asked for."""
    if status is not None:
        status.set(source, tag, nbytes)


def tell_all(statuses: Any, told: list[Status]) -> None:
    """Fill a list of statuses."""
    if statuses is not None:
        statuses[:] = told
