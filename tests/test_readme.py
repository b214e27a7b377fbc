"""The README's commands run, and its programs print what it says.

In README.md, ```sh blocks are commands, one a line; ```python blocks are programs. A ```text block right after
either is its output, where `...` stands for anything. Lines for a scheduler or for other hosts cannot run here.
"""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
from jobs import ROOT

README = ROOT / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
LIMIT_S = 120.0

# what this test itself is part of, what changes the shell, and what needs other hosts or the network
ELSEWHERE = ("./launch/check", ". .venv", "source ", "sbatch ", "qsub ", "git clone", "cd ", "pip install")


def blocks(language):
    text = README.read_text() if README.exists() else ""
    return [(code, output) for found, code, output in BLOCK.findall(text) if found == language]


def commands():
    """Return (command, its output or nothing) of every line that can run here, each once."""
    found = {}
    for code, output in blocks("sh"):
        lines = [line.partition("  #")[0].strip() for line in code.replace("\\\n", " ").splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        here = [line for line in lines if not line.startswith(ELSEWHERE) and "--hostfile" not in line]
        for line in here:
            found[line] = (output if line is lines[-1] else "") or found.get(line, "")
    return list(found.items())


def same(wanted, got):
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    checker = doctest.OutputChecker()
    example = doctest.Example("", wanted)
    assert checker.check_output(wanted, got, flags), checker.output_difference(example, got, flags)


def test_the_readme_has_commands_and_a_program():
    assert commands() and blocks("python")


@pytest.mark.timeout(LIMIT_S + 30)
@pytest.mark.parametrize("command, output", commands())
def test_a_command_of_the_readme_runs(command, output):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    job = jobs.start_line(["/bin/bash", "-c", command], {**os.environ, "PATH": path}, cwd=ROOT)
    ended = job.wait(LIMIT_S)
    assert ended.returncode == 0, ended.output
    if output:
        same(output, ended.stdout)


@pytest.mark.parametrize("program, output", blocks("python"))
def test_a_program_of_the_readme_prints_what_it_says(program, output, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=LIMIT_S
    )
    assert ended.returncode == 0, ended.stderr
    if output:
        same(output, ended.stdout)
