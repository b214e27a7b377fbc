"""The trace: what every rank did, without times, as one compact columnar log a rank.

Not its business: who records it (`emu.comm.recording`) and how long anything takes (`emu.engine`).

A row is 32 bytes. What the columns mean depends on the operation:

| operation | a          | b     | c       | n                  | x       |
|-----------|------------|-------|---------|--------------------|---------|
| COMPUTE   | dtype code | label |         | bytes touched      | FLOPs   |
| ELAPSED   |            | label |         |                    | seconds |
| SEND RECV | peer       | tag   | context | bytes              |         |
| WAIT      | back       | count |         |                    |         |
| COPY      | direction  | label |         | bytes              |         |
| RECORD    |            |       |         |                    |         |
| AWAIT     | back       |       |         |                    |         |
| BEGIN END | label      | index | context |                    |         |
| CALL      | template   | group | context | payload bytes      |         |
| SYNC      |            |       |         |                    |         |

References are relative (`back` counts from the newest request or event), so equal steps are equal
bytes. SEND and RECV never block: they start when their stream reaches them and make a request, which a
later WAIT of the same stream waits for. In a template, c of SEND, RECV and COMPUTE is a number of `Lengths`, or 0.
The i-th SEND matches the i-th RECV of equal (context, source,
destination, tag); rows of collectives match among themselves, stream by stream.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from emu.errors import ConfigError, TraceError

VERSION = 2  # from 2 on, templates may have lengths


class Op(IntEnum):
    """The operations of a trace row."""

    COMPUTE = 1
    ELAPSED = 2
    SEND = 3
    RECV = 4
    WAIT = 5
    COPY = 6
    RECORD = 7
    AWAIT = 8
    BEGIN = 9
    END = 10
    CALL = 11
    SYNC = 12


ROW = np.dtype([
    ("op", "u1"), ("stream", "u1"), ("flag", "u2"),
    ("a", "i4"), ("b", "i4"), ("c", "i4"),
    ("n", "i8"), ("x", "f8"),
])  # fmt: skip
ROW_FORMAT = "<BBHiiiqd"  # the same row for struct.pack

COLLECTIVE = 1  # flag: the row belongs to a collective
STEP = 2  # flag of BEGIN: the span is one training step

ANY = -1  # peer or tag of a RECV that takes any

H2D, D2H, D2D = 0, 1, 2  # directions of a COPY

DTYPES = (
    "float64", "float32", "tf32", "float16", "bfloat16", "float8",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool", "complex64", "complex128",
)  # fmt: skip
DTYPE_CODE: Mapping[str, int] = {name: code for code, name in enumerate(DTYPES)}


MOST_LENGTHS = 255  # that ranks may have of one template


@dataclass(frozen=True)
class Lengths:
    """Numbers of elements that differ between the ranks of one template.

    `column[place]` is the column of a place in the group, -1 of those that do otherwise. A row of the template with
    c = k > 0 is about values[codes[k - 1, column]] elements: its `n` and `x` are those of one element.
    """

    column: np.ndarray  # int32
    codes: np.ndarray  # uint8
    values: np.ndarray  # int64

    @cached_property
    def digest(self) -> bytes:
        """What tells equal ones."""
        parts = (self.column, self.codes, self.values)
        return hashlib.sha256(b"".join(hashlib.sha256(part.tobytes()).digest() for part in parts)).digest()

    def at(self, place: int) -> np.ndarray:
        """Return all numbers of elements of the rank at a place."""
        return self.values[self.codes[:, self.column[place]]]


@dataclass(frozen=True)
class Template:
    """A part in a collective, recorded once: `rows` with peers as (peer - me) mod group_size.

    Of ranks that do the same with other lengths there is one template, with `lengths`.
    """

    name: str
    group_size: int
    rows: np.ndarray
    lengths: Lengths | None = None

    def rows_at(self, place: int) -> np.ndarray:
        """Return the rows of the rank at a place of the group, with its own lengths."""
        if self.lengths is None:
            return self.rows
        rows = self.rows.copy()
        some = np.flatnonzero(rows["c"])
        elements = self.lengths.at(place)[rows["c"][some] - 1]
        rows["n"][some] *= elements
        rows["x"][some] *= elements
        rows["c"] = 0
        return rows

    def sent_bytes(self, to_itself: bool = False) -> np.ndarray:
        """Return the bytes that the rank at each place sends to others; 0 for a place that does otherwise."""
        sends = self.rows[(self.rows["op"] == Op.SEND) & (to_itself | (self.rows["a"] != 0))]
        total = np.full(self.group_size, sends["n"][sends["c"] == 0].sum(), np.int64)
        if self.lengths is not None:
            each = np.zeros(len(self.lengths.codes), np.int64)
            np.add.at(each, sends["c"][sends["c"] > 0] - 1, sends["n"][sends["c"] > 0])
            by_column = sum(n * self.lengths.values[codes] for n, codes in zip(each, self.lengths.codes, strict=True))
            total = np.where(self.lengths.column < 0, 0, total + np.asarray(by_column)[self.lengths.column])
        return total


@dataclass(frozen=True)
class Trace:
    """What `world_size` ranks did.

    `ranks[r]` are rank r's rows (dtype ROW); labels, templates and groups are shared tables that rows
    point into; a group lists world ranks in group order. `header` tells what a reader needs to know:
    `version`, `world_size`, `streams` (their names by index), `decisions` taken by looking at the cluster,
    `marks` (such as `order`), and the program that was run.
    """

    header: Mapping[str, Any]
    labels: tuple[str, ...]
    ranks: tuple[np.ndarray, ...]
    templates: tuple[Template, ...] = ()
    groups: tuple[tuple[int, ...], ...] = ()
    _cache: dict = field(default_factory=dict, repr=False, compare=False)

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the streams by index; 0 is the default stream."""
        return tuple(self.header.get("streams", ("default",)))

    def place(self, group: int, rank: int) -> int:
        """Return the place of a world rank in a group. Raise KeyError where it is no member."""
        places = self._cache.setdefault("places", {})
        if group not in places:
            places[group] = {member: i for i, member in enumerate(self.groups[group])}
        return places[group][rank]

    def save(self, path: str | os.PathLike) -> None:
        """Write the trace to `path`, whole or not at all. Raise ConfigError where that is impossible."""
        write_whole(Path(path), _to_bytes(self))

    @staticmethod
    def load(path: str | os.PathLike) -> Trace:
        """Read a trace. Raise TraceError for a file that is not one, is cut off, or is of a newer version."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: a readable trace file is expected, got: {error.strerror}") from None
        return _from_bytes(data, str(path))


def _to_bytes(trace: Trace) -> bytes:
    header = dict(trace.header) | {"version": VERSION, "world_size": trace.world_size}
    index = {
        "header": header,
        "labels": list(trace.labels),
        "groups": [list(group) for group in trace.groups],
        "templates": [[t.name, t.group_size] for t in trace.templates],
        "lengths": {str(i): len(t.lengths.codes) for i, t in enumerate(trace.templates) if t.lengths is not None},
    }
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("trace.json", json.dumps(index))
        for name, logs in (("ranks", trace.ranks), ("templates", [t.rows for t in trace.templates])):
            lengths = np.array([len(log) for log in logs], dtype=np.int64)
            archive.writestr(f"{name}.lengths", lengths.tobytes())
            with archive.open(f"{name}.rows", "w", force_zip64=True) as entry:
                for log in logs:
                    entry.write(np.ascontiguousarray(log).tobytes())
        for i, template in enumerate(trace.templates):
            for name in ("column", "codes", "values") if template.lengths is not None else ():
                archive.writestr(f"lengths.{i}.{name}", getattr(template.lengths, name).tobytes())
    return target.getvalue()


def _from_bytes(data: bytes, where: str) -> Trace:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            index = json.loads(archive.read("trace.json"))
            found = index["header"]["version"]
            if not isinstance(found, int) or found > VERSION or found < 1:
                raise TraceError(
                    f"{where}: a trace of version 1 to {VERSION} is expected, got {found}; "
                    "record it again with this emu"
                )
            ranks, rows = _read_logs(archive, "ranks"), _read_logs(archive, "templates")
            lengths = {int(i): _read_lengths(archive, int(i), count) for i, count in index.get("lengths", {}).items()}
        templates = tuple(
            Template(name, size, log, lengths.get(i))
            for i, ((name, size), log) in enumerate(zip(index["templates"], rows, strict=True))
        )
        trace = Trace(
            header=index["header"],
            labels=tuple(index["labels"]),
            ranks=tuple(ranks),
            templates=templates,
            groups=tuple(tuple(group) for group in index["groups"]),
        )
        _check(trace)
    except TraceError:
        raise
    except Exception as error:
        raise TraceError(
            f"{where}: a whole emu trace is expected, got {_what_is_wrong(data, error)}; record it again"
        ) from None
    return trace


def _what_is_wrong(data: bytes, error: Exception) -> str:
    """Say in a user's words why these bytes are no trace."""
    if not data:
        return "an empty file"
    if not data.startswith(b"PK"):
        return "a file that is not an emu trace"
    if isinstance(error, zipfile.BadZipFile) and "not a zip" in str(error):
        return f"a file that is cut off after {len(data)} bytes"
    if isinstance(error, KeyError) and "trace.json" in str(error):
        return "an archive that is not an emu trace"
    return f"a damaged file ({error})"


def _read_logs(archive: zipfile.ZipFile, name: str) -> list[np.ndarray]:
    lengths = np.frombuffer(archive.read(f"{name}.lengths"), dtype=np.int64)
    rows = np.frombuffer(archive.read(f"{name}.rows"), dtype=ROW)
    if lengths.size and lengths.min() < 0 or int(lengths.sum()) != len(rows):
        raise ValueError(f"{name}: {int(lengths.sum())} rows are announced, {len(rows)} are there")
    return [rows[end - n : end] for n, end in zip(lengths, np.cumsum(lengths), strict=True)]


def _read_lengths(archive: zipfile.ZipFile, number: int, count: int) -> Lengths:
    parts = {"column": np.int32, "codes": np.uint8, "values": np.int64}
    column, codes, values = (
        np.frombuffer(archive.read(f"lengths.{number}.{name}"), dtype=kind) for name, kind in parts.items()
    )
    return Lengths(column, codes.reshape(count, -1), values)


def _check_lengths(template: Template) -> None:
    lengths, where = template.lengths, f"template {template.name}"
    rows = template.rows[np.isin(template.rows["op"], (Op.SEND, Op.RECV, Op.COMPUTE))]
    _in_range(where, "length", rows["c"], 1 if lengths is None else len(lengths.codes) + 1)
    if lengths is None:
        return
    if len(lengths.column) != template.group_size:
        raise ValueError(f"{where}: {template.group_size} places are expected, got {len(lengths.column)}")
    _in_range(where, "column", lengths.column + 1, lengths.codes.shape[1] + 1)
    _in_range(where, "length", lengths.codes, len(lengths.values))
    _in_range(where, "size", lengths.values, np.iinfo(np.int64).max)


def _check(trace: Trace) -> None:
    """Check that every row points to what exists, so that the engine may index without looking."""
    if trace.world_size != trace.header["world_size"]:
        raise ValueError(f"{trace.header['world_size']} ranks are announced, {trace.world_size} are there")
    for where, rows in [(f"rank {r}", log) for r, log in enumerate(trace.ranks)] + [
        (f"template {t.name}", t.rows) for t in trace.templates
    ]:
        op = rows["op"]
        if len(rows) and (op.min() < Op.COMPUTE or op.max() > Op.SYNC):
            raise ValueError(f"{where}: an unknown operation {int(op.max())}")
        _in_range(where, "label", rows["b"][(op <= Op.ELAPSED) | (op == Op.COPY)], len(trace.labels))
        _in_range(where, "label", rows["a"][op == Op.BEGIN], len(trace.labels))
        _in_range(where, "dtype", rows["a"][op == Op.COMPUTE], len(DTYPES))
        _in_range(where, "stream", rows["stream"], len(trace.streams))
        _in_range(where, "template", rows["a"][op == Op.CALL], len(trace.templates))
        _in_range(where, "group", rows["b"][op == Op.CALL], len(trace.groups))
        _in_range(where, "size", rows["n"], np.iinfo(np.int64).max)
        if not where.startswith("template"):
            _in_range(where, "peer", rows["a"][(op == Op.SEND)], trace.world_size)
            _in_range(where, "peer", rows["a"][(op == Op.RECV)] + 1, trace.world_size + 1)
        if not np.isfinite(rows["x"]).all() or (rows["x"] < 0).any():
            raise ValueError(f"{where}: a cost that is negative or not finite")
    for template in trace.templates:
        _check_lengths(template)
    for group in trace.groups:
        _in_range("groups", "rank", np.array(group), trace.world_size)


def _in_range(where: str, what: str, values: np.ndarray, limit: int) -> None:
    if values.size and (values.min() < 0 or values.max() >= limit):
        raise ValueError(f"{where}: a {what} out of range")


def write_whole(path: Path, data: bytes) -> None:
    """Write beside `path`, then rename: a reader sees the old file or the new one, never half of it."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ConfigError(f"{path}: a folder that can be written is expected, got: {error.strerror}") from None
    try:
        with os.fdopen(handle, "wb") as target:
            target.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError):
            raise ConfigError(f"{path}: a file that can be written is expected, got: {error.strerror}") from None
        raise
