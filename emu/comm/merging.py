"""Merging the ranks' logs into a Trace.

Each log points into tables of its own process. The merged tables are numbered by first use, rank by rank, so that
the same program gives the same trace however it was run: in one process, without bytes, or over MPI.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from emu.comm.recording import Tables
from emu.trace import ROW, Op, Template, Trace

_Map = np.ndarray  # a table's own numbers -> the merged ones


def merge(logs: Sequence[tuple[bytes | bytearray, Tables]], header: Mapping[str, Any]) -> Trace:
    """Merge all ranks' logs, each with its own or a shared table, into one trace."""
    rows = [np.frombuffer(data, dtype=ROW) for data, _ in logs]
    tables = [each for _, each in logs]
    labels, groups, streams, templates = _Numbers(), _Numbers(), _Numbers(), _Numbers()
    streams.number("default")
    contents: dict[Any, Template] = {}
    own: dict[int, tuple[list[Any], ...]] = {
        key: (list(table.labels), list(table.groups), list(table.streams), _contents(table))
        for key, table in {id(table): table for table in tables}.items()
    }
    for log, table in zip(rows, tables, strict=True):
        op = log["op"]
        names, own_groups, own_streams, keys = own[id(table)]
        streams.take(own_streams, log["stream"])
        calls = log[op == Op.CALL]
        groups.take(own_groups, calls["b"])
        for i in _first_uses(calls["a"]):
            template, key = table.templates[i], keys[i]
            if key not in contents:
                contents[key] = replace(template, rows=_by_name(template.rows, names, labels))
                labels.number(template.name)
            templates.number(key)
        labels.take(names, _labels_used(log, op))
    kinds = (labels, groups, streams, templates)
    maps = {key: tuple(kind.map(names) for kind, names in zip(kinds, found, strict=True)) for key, found in own.items()}
    return Trace(
        header={**header, "streams": list(streams.names), "untemplated": _notes(tables)},
        labels=tuple(labels.names),
        ranks=tuple(_renumber(log, maps[id(table)]) for log, table in zip(rows, tables, strict=True)),
        templates=tuple(contents[key] for key in templates.names),
        groups=tuple(groups.names),
    )


class _Numbers:
    """Names in the order of their first use."""

    def __init__(self) -> None:
        self.names: dict[Any, int] = {}

    def number(self, name: Any) -> int:
        """Return a name's number, new or known."""
        return self.names.setdefault(name, len(self.names))

    def take(self, names: Sequence[Any], used: np.ndarray) -> None:
        """Number the names that are used, in the order of use."""
        for i in _first_uses(used):
            self.number(names[i])

    def map(self, names: Iterable[Any]) -> _Map:
        """Return what turns a table's numbers into these; what is used nowhere becomes 0."""
        return np.array([self.names.get(name, 0) for name in names], dtype=np.int32)


def _first_uses(values: np.ndarray) -> list[int]:
    if len(values) == 0:
        return []
    found, first = np.unique(values, return_index=True)
    return [int(value) for value in found[np.argsort(first)]]


def _labels_used(rows: np.ndarray, op: np.ndarray) -> np.ndarray:
    """Return the labels that rows point to, in row order."""
    in_b = (op <= Op.ELAPSED) | (op == Op.COPY)
    labelled = in_b | (op == Op.BEGIN)
    return np.where(in_b, rows["b"], rows["a"])[labelled]


def _contents(table: Tables) -> list[tuple]:
    """Return what makes each template the same in every process: labels by name, not by number."""
    names = list(table.labels)
    found = []
    for template in table.templates:
        used = _first_uses(_labels_used(template.rows, template.rows["op"]))
        bare = _relabel(template.rows, _positions(used, len(names)))
        lengths = None if template.lengths is None else template.lengths.digest
        found.append((template.name, template.group_size, tuple(names[k] for k in used), bare.tobytes(), lengths))
    return found


def _positions(used: Sequence[int], size: int) -> _Map:
    found = np.zeros(size, dtype=np.int32)
    found[list(used)] = np.arange(len(used))
    return found


def _by_name(rows: np.ndarray, names: Sequence[str], labels: _Numbers) -> np.ndarray:
    labels.take(names, _labels_used(rows, rows["op"]))
    return _relabel(rows, labels.map(names))


def _renumber(rows: np.ndarray, maps: tuple[_Map, ...]) -> np.ndarray:
    labels, groups, streams, templates = maps
    rows = _relabel(rows, labels)
    if len(streams) > 1:
        rows["stream"] = streams[rows["stream"]]
    calls = rows["op"] == Op.CALL
    if calls.any():
        rows["a"][calls] = templates[rows["a"][calls]]
        rows["b"][calls] = groups[rows["b"][calls]]
    return rows


def _relabel(rows: np.ndarray, labels: _Map) -> np.ndarray:
    rows = rows.copy()
    op = rows["op"]
    for column, where in (("b", (op <= Op.ELAPSED) | (op == Op.COPY)), ("a", op == Op.BEGIN)):
        if where.any():
            rows[column][where] = labels[rows[column][where]]
    return rows


def _notes(tables: Sequence[Tables]) -> dict[str, str]:
    return {label: why for table in tables for label, why in table.untemplated.items()}
