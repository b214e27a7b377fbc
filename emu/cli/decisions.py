"""What a program decided by looking at its cluster, and what another cluster would have made it decide."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from emu.errors import ConfigError, TraceError
from emu.units import parse_bytes

if TYPE_CHECKING:
    from emu.cluster import Cluster
    from emu.trace import Trace

_CHOICE = re.compile(r"(\w+) of (\d+) bytes on (\d+) ranks")


def changed_decisions(trace: Trace, cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Return the algorithms that would be chosen differently on `cluster`: what was chosen, what would be.

    A choice on fewer ranks than all is judged for the first so many ranks.
    """
    from emu.collectives.choose import choose
    from emu.collectives.network import network_of

    changed = {}
    for name, value in trace.header.get("decisions", {}).items():
        match = _CHOICE.fullmatch(name)
        if match is None:
            continue
        ranks = int(match[3])
        now = choose(match[1], ranks, int(match[2]), network_of(cluster, range(ranks)))
        if now != value:
            changed[name] = (str(value), now)
    return changed


def fit(trace: Trace, path: str, cluster: Cluster, profile: str, keep: bool) -> tuple[Trace, str]:
    """Return the trace to time on `cluster`, and a note on decisions that change there; empty if none does.

    Unless they are to be kept, the program is recorded again, dry. Raise TraceError where emu can't do that.
    """
    changed = changed_decisions(trace, cluster)
    if not changed:
        return trace, ""
    listed = "; ".join(f"{name}: {now} instead of {before}" for name, (before, now) in changed.items())
    recorded = trace.header.get("cluster", "another cluster")
    note = f"recorded on {recorded}, the program would decide otherwise on {cluster.name} ({listed})"
    if keep:
        return trace, f"{note}; timed as recorded"
    again = record_again(trace, cluster, profile)
    if again is None:
        raise TraceError(f"{path}: {note}; run it again with --cluster {cluster.name}, or pass --keep-decisions")
    return again, f"{note}; recorded again, dry"


def record_again(trace: Trace, cluster: Cluster, profile: str) -> Trace | None:
    """Record the trace's program on `cluster`, dry; None for a program that only its user can start."""
    program = dict(trace.header.get("program", {}))
    if program.pop("name", None) != "train":
        return None
    from emu.parallel.training import Plan
    from emu.parallel.training import train as main
    from emu.program import run_here

    plan = _filled(Plan, program | {"checkpoint": None, "resume": False})
    made = {"name": "train", **program}
    _, recorded, _ = run_here(
        lambda gpu: main(gpu, plan), cluster, trace.world_size, dry=True, profile=profile, program=made
    )
    return recorded


def _bytes(text: str) -> int:
    return parse_bytes(text, "bucket")


PLAN_AXES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "bucket": ("bucket_bytes", _bytes),
    "batch": ("batch", int),
    "micro_batches": ("micro_batches", int),
    "strategy": ("strategy", str),
    "algorithm": ("algorithm", str),
}
"""What a sweep may change of a training run: the plan's field, and how its values are read."""


def planned_anew(trace: Trace, path: str, cluster: Cluster, profile: str, changes: Mapping[str, str]) -> Trace:
    """Record a training run again, dry, with another plan. Raise ConfigError for a trace of something else."""
    from emu.parallel.training import Plan, check

    program = dict(trace.header.get("program", {}))
    if program.get("name") != "train":
        raise ConfigError(f"{path}: a trace of emu train is expected for {', '.join(changes)}, got another program's")
    for key, text in changes.items():
        field, read = PLAN_AXES[key]
        try:
            program[field] = read(text)
        except ValueError:
            raise ConfigError(f"sweep: {key} must be a whole number, got {text!r}") from None
    if "bucket" in changes:
        program["first_bucket_bytes"] = min(program["bucket_bytes"], Plan.first_bucket_bytes)
    plain = {"name": None, "checkpoint": None, "resume": False}
    plan = _filled(Plan, {key: value for key, value in (program | plain).items() if key != "name"})
    check(plan, trace.world_size, dry=True)
    again = record_again(replace(trace, header={**trace.header, "program": program}), cluster, profile)
    assert again is not None
    return again


def _filled(kind: Any, values: Mapping[str, Any]) -> Any:
    """Make a dataclass from plain values, its parts that are dataclasses too."""
    default = kind()
    found = {}
    for item in fields(kind):
        if item.name in values:
            part, value = getattr(default, item.name), values[item.name]
            found[item.name] = _filled(type(part), value) if is_dataclass(part) else value
    return kind(**found)
