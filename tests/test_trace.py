"""The trace's file: whole, without code in it, and checked before anything is believed."""

import json
import pickle
import zipfile

import numpy as np
import pytest

from emu.collectives.table import TABLE
from emu.comm import run_local
from emu.errors import ConfigError, TraceError
from emu.trace import ROW, VERSION, Op, Trace


def program(comm):
    for n in (10, 20):
        TABLE["all_reduce"]["ring"].function(comm, np.zeros(n))
    comm.sendrecv(np.zeros(3), (comm.rank + 1) % comm.size, np.zeros(3), (comm.rank - 1) % comm.size)
    comm.split(comm.rank % 2)


@pytest.fixture
def trace():
    return run_local(program, 3, program="a test")[1]


def equal(a, b):
    return (
        all((x == y).all() for x, y in zip(a.ranks, b.ranks, strict=True))
        and all(
            s.name == t.name and s.group_size == t.group_size and (s.rows == t.rows).all()
            for s, t in zip(a.templates, b.templates, strict=True)
        )
        and (a.labels, a.groups, a.streams) == (b.labels, b.groups, b.streams)
    )


def test_a_saved_trace_is_loaded_as_it_was(trace, tmp_path):
    trace.save(tmp_path / "t.emu")
    loaded = Trace.load(tmp_path / "t.emu")
    assert equal(trace, loaded)
    assert loaded.header["program"] == "a test" and loaded.header["version"] == VERSION
    assert loaded.world_size == 3


def test_a_trace_without_rows_is_saved_too(tmp_path):
    run_local(lambda comm: None, 2)[1].save(tmp_path / "t.emu")
    assert [len(rows) for rows in Trace.load(tmp_path / "t.emu").ranks] == [0, 0]


def test_the_file_holds_arrays_and_json_and_no_pickle(trace, tmp_path):
    trace.save(tmp_path / "t.emu")
    with zipfile.ZipFile(tmp_path / "t.emu") as archive:
        json.loads(archive.read("trace.json"))
        for name in archive.namelist():
            if name.endswith(".rows"):
                np.frombuffer(archive.read(name), ROW)
            with pytest.raises(pickle.UnpicklingError):
                pickle.loads(archive.read(name))


def test_a_file_cut_anywhere_is_refused(trace, tmp_path):
    path = tmp_path / "t.emu"
    trace.save(path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(TraceError, match="t.emu: a whole emu trace is expected"):
            Trace.load(path)


def test_a_file_with_any_byte_changed_is_refused_or_equal(trace, tmp_path):
    path = tmp_path / "t.emu"
    trace.save(path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            loaded = Trace.load(path)
        except TraceError:
            continue
        assert equal(loaded, trace)


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", pickle.dumps({"a": 1}), b"\0" * 1000])
def test_a_foreign_file_is_refused(content, tmp_path):
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(TraceError, match="record it again"):
        Trace.load(tmp_path / "t")


def test_another_zip_file_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "t", "w") as archive:
        archive.writestr("other.txt", "hello")
    with pytest.raises(TraceError):
        Trace.load(tmp_path / "t")


def test_a_newer_version_is_told(trace, tmp_path, monkeypatch):
    monkeypatch.setattr("emu.trace.VERSION", VERSION + 1)
    trace.save(tmp_path / "t.emu")
    monkeypatch.undo()
    with pytest.raises(TraceError, match=f"got {VERSION + 1}; record it again with this emu"):
        Trace.load(tmp_path / "t.emu")


def test_a_file_that_is_not_there_or_cannot_be_written_is_told(trace, tmp_path):
    with pytest.raises(ConfigError, match="a readable trace file is expected"):
        Trace.load(tmp_path / "none")
    with pytest.raises(ConfigError, match="a folder that can be written is expected"):
        trace.save(tmp_path / "none" / "t.emu")
    with pytest.raises(ConfigError):
        trace.save(tmp_path)


BROKEN = {
    "peer": (Op.SEND, "a", 3),
    "a peer below any": (Op.RECV, "a", -2),
    "template": (Op.CALL, "a", 99),
    "group": (Op.CALL, "b", -1),
    "size": (Op.SEND, "n", -5),
    "stream": (Op.SEND, "stream", 200),
    "cost": (Op.SEND, "x", np.nan),
    "operation": (Op.SEND, "op", 77),
}


@pytest.mark.parametrize("what", BROKEN)
def test_rows_that_point_nowhere_are_refused(what, trace, tmp_path):
    op, column, value = BROKEN[what]
    rows = trace.ranks[1].copy()
    rows[column][np.flatnonzero(rows["op"] == op)[0]] = value
    broken = Trace(trace.header, trace.labels, (trace.ranks[0], rows, trace.ranks[2]), trace.templates, trace.groups)
    broken.save(tmp_path / "t.emu")
    with pytest.raises(TraceError):
        Trace.load(tmp_path / "t.emu")


def test_saving_over_an_old_trace_leaves_the_old_one_when_it_fails(trace, tmp_path, monkeypatch):
    path = tmp_path / "t.emu"
    trace.save(path)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "no space left")))
    with pytest.raises(ConfigError, match="no space left"):
        trace.save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["t.emu"]
