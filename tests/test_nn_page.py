"""The page on models holds: its program prints what it says, its files load, its names and kinds are all there are."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from emu.nn.architectures import FAMILIES
from emu.nn.catalogue import find, names
from emu.nn.describe import describe
from emu.nn.own import KINDS

PAGE = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")


def _blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def _section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", PAGE, re.S)


@pytest.mark.parametrize("program, output", PROGRAMS, ids=["costs", "loop"])
def test_the_programs_on_the_page_print_what_it_says(program, output):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    assert printed.getvalue() == output


@pytest.mark.parametrize("suffix, index, parameters", [("toml", 0, None), ("toml", 1, None), ("csv", 0, 25_557_032)])
def test_the_files_on_the_page_are_models(tmp_path, suffix, index, parameters):
    path = tmp_path / f"mine.{suffix}"
    path.write_text(_blocks(suffix)[index])
    shape = find(str(path))
    costs = describe(shape.build(), *shape.inputs(2))
    assert sum(cost.parameters for cost in costs) == (parameters or shape.build().size) > 0


def test_every_model_and_family_is_on_the_page():
    section = _section("Public shapes")
    assert {name for name in names() if f"`{name}`" not in section} == set()
    assert {family for family in FAMILIES if f"| `{family}` |" not in section} == set()


def test_every_kind_of_layer_with_its_keys_is_on_the_page():
    rows = [line for line in _section("A model of your own").splitlines() if line.startswith("| `")]
    told = {}
    for row in rows:
        kinds, keys = row.strip("|").split("|", 1)
        for kind in re.findall(r"`(\w+)`", kinds):
            told[kind] = set(re.findall(r"`(\w+)`", keys))
    assert told == {kind: {*row.needs, *row.may} for kind, row in KINDS.items()}
