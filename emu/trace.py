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
later WAIT of the same stream waits for. The i-th SEND matches the i-th RECV of equal (context, source,
destination, tag); rows of collectives match among themselves, stream by stream.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from emu.errors import ConfigError, TraceError

VERSION = 1


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


@dataclass(frozen=True)
class Template:
    """One rank's part in a collective, recorded once: `rows` with peers as (peer - me) mod group_size."""

    name: str
    group_size: int
    rows: np.ndarray


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
        templates = tuple(
            Template(name, size, log) for (name, size), log in zip(index["templates"], rows, strict=True)
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
