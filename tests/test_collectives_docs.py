"""docs/collectives.md: it lists every algorithm with the cost its docstring claims, and its examples run as shown."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from emu.cli.main import emu
from emu.collectives import TABLE

PAGE = (Path(__file__).parent.parent / "docs" / "collectives.md").read_text()
PROGRAM = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
EXAMPLES = re.findall(r"```\n\$ emu (.*?)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("collective, algorithm", [(c, a) for c, table in TABLE.items() for a in table])
def test_the_page_tells_every_algorithm_and_its_cost(collective, algorithm):
    words = " ".join(TABLE[collective][algorithm].function.__doc__.split())
    cost = words[words.index("Cost:") + 6 : words.index("Source:")].strip().rstrip(".")
    assert f"| {collective} | {algorithm} | {cost} |" in PAGE


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_prints_what_the_page_shows(number, tmp_path, monkeypatch):
    command, shown = EXAMPLES[number]
    monkeypatch.chdir(tmp_path)
    program = PROGRAM if number == 0 else PROGRAM.replace("2 * p - 3", "2 * p - 2")
    Path("my_lab.py").write_text(program)
    told = CliRunner().invoke(emu, shlex.split(command), standalone_mode=False)
    assert told.exception is None, told.output
    assert told.output.rstrip() == shown.rstrip()
