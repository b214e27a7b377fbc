"""Where in the user's source something was called: cheap to note, turned into file:line only when told."""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType

Site = tuple[CodeType, int]  # code, and the offset of the instruction in it

_INNER = ("emu.comm", "emu.collectives", "emu.face")


def outer(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame that is not emu's own communication code."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_INNER) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def user_site() -> Site:
    """Return where the program called into emu's communication code."""
    frame = outer(sys._getframe(1))
    assert frame is not None
    return frame.f_code, frame.f_lasti


def told(site: Site | None) -> str:
    """Return file:line of a site."""
    if site is None:
        return "an unknown place"
    code, at = site
    for start, end, line in code.co_lines():
        if start <= at < end and line is not None:
            return f"{os.path.basename(code.co_filename)}:{line}"
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


def frame_told(frame: FrameType | None) -> str:
    """Return file:line of the program's own line in a suspended call."""
    frame = outer(frame)
    return "an unknown place" if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
