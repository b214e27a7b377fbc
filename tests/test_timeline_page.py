"""The page on timelines holds: its program prints what it says, its columns and commands are all there are."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from emu.cli import replay, sweep
from emu.timeline.table import COLUMNS

PAGE = (Path(__file__).parent.parent / "docs" / "timeline.md").read_text(encoding="utf-8")
PROGRAM, OUTPUT = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.S)[0]
COMMANDS = re.findall(r"^emu (replay|sweep) (TRACE.*?)(?:  .*)?$", PAGE, re.M)


def test_the_program_on_the_page_prints_what_it_says():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(PROGRAM, {})
    assert printed.getvalue() == OUTPUT


def test_every_column_is_on_the_page():
    assert re.findall(r"^\| ([a-z ]+\.?) \| `(\w+)` \|", PAGE, re.M) == list(COLUMNS)


@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_the_commands_on_the_page_are_understood(name, arguments):
    command = {"replay": replay.replay, "sweep": sweep.sweep}[name]
    context = command.make_context(name, shlex.split(arguments))
    assert context.params["trace"] == "TRACE"
