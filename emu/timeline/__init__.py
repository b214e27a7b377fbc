"""Spans and flows of a timed trace, and what can be asked of them: accounting, critical path, link use."""

from emu.timeline.path import Stretch, stragglers, summarize
from emu.timeline.tiling import LINK_CLASSES, Cause
from emu.timeline.timeline import Timeline

__all__ = ["LINK_CLASSES", "Cause", "Stretch", "Timeline", "stragglers", "summarize"]
