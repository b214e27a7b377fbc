"""The design note's floors: a module imports only what stands on its own floor or below."""

import ast
import re

import pytest
from jobs import ROOT

PACKAGE = ROOT / "emu"
TABLE = (ROOT / "docs" / "design.md").read_text().partition("## Floors")[2].partition("## The trace")[0]
ROWS = [line.split("|")[1] for line in TABLE.splitlines() if line.startswith("| `")]
FLOOR = {name: number for number, row in enumerate(ROWS) for name in re.findall(r"`(\w+)/?`", row)}
MODULES = sorted(PACKAGE.rglob("*.py"))
DOORS = ("__init__", "__main__")  # of the package itself: they open what is above


def imported(path):
    """Return the names of all modules that a module imports, at its head or later."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "emu":
            found |= {f"emu.{each.name}" for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found


def part(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_part_of_the_package_has_a_floor():
    assert {part(path) for path in MODULES} - set(DOORS) == set(FLOOR)


@pytest.mark.parametrize("name", FLOOR)
def test_imports_go_down(name):
    up = {
        f"{path.relative_to(ROOT)} imports {module}"
        for path in MODULES
        if part(path) == name
        for module in imported(path)
        if module.startswith("emu.") and FLOOR[module.split(".")[1]] > FLOOR[name]
    }
    assert not up


def test_mpi4py_is_imported_by_few():
    users = {
        str(path.relative_to(PACKAGE)) for path in MODULES if any(m.split(".")[0] == "mpi4py" for m in imported(path))
    }
    assert users and all(user.startswith("comm/mpi") for user in users)


def test_numba_is_imported_by_the_engine_and_the_wall_clock():
    users = {part(path) for path in MODULES if any(m.split(".")[0] == "numba" for m in imported(path))}
    assert "engine" in users and users <= {"engine", "wall"}
