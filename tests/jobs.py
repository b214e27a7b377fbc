"""Start programs under mpirun from a test, with a hard limit and nothing left behind.

`run_job(["emu", "train"], ranks=4)` is what most tests need; `start_job` gives the running job to tests that
signal it.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

import pytest

from emu.comm.mpi_start import Mpi, find_mpi, mpirun_environment, mpirun_line
from emu.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 60.0
_MARK = "EMU_TEST_JOB"


@dataclass(frozen=True)
class Finished:
    """How a job ended; `timed_out` says that it was killed at its limit."""

    returncode: int
    stdout: str
    stderr: str
    wall_s: float
    timed_out: bool

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


@dataclass
class Job:
    """A running job. Every process of it carries `mark` in its environment, whatever its process group."""

    process: subprocess.Popen
    mark: str
    files: tuple[IO[str], IO[str]]
    started_s: float

    def wait(self, limit_s: float = LIMIT_S) -> Finished:
        """Wait for the end, or kill all of the job after `limit_s`."""
        timed_out = False
        try:
            self.process.wait(max(0.1, self.started_s + limit_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            timed_out = True
        self.kill()
        self.process.wait()
        out, err = (_read(file) for file in self.files)
        return Finished(self.process.returncode, out, err, time.monotonic() - self.started_s, timed_out)

    def output(self) -> str:
        """Return what the job has written so far."""
        return "".join(Path(file.name).read_text() for file in self.files)

    def rank_pids(self) -> dict[int, int]:
        """Return the process of each rank that has started."""
        pids = {}
        for pid, environment in _marked(self.mark):
            rank = environment.get("OMPI_COMM_WORLD_RANK", environment.get("PMI_RANK"))
            if rank is not None:
                pids.setdefault(int(rank), pid)
        return pids

    def kill(self) -> None:
        """Kill whatever of the job still runs: mpirun first asked to clean up, then all by their mark."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        for pid, _ in _marked(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def run_job(
    argv: Sequence[str],
    ranks: int | None = None,
    mpi: str = "openmpi",
    limit_s: float = LIMIT_S,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Finished:
    """Run `argv` on `ranks` ranks (None: as it stands, without mpirun) and return how it ended.

    `python` and `emu` as first word are those of the environment with the asked MPI. The test is skipped
    where that MPI is not installed, and fails if the job outlasts `limit_s`.
    """
    finished = start_job(argv, ranks, mpi, env, cwd).wait(limit_s)
    if finished.timed_out:
        pytest.fail(f"{' '.join(argv)} on {ranks} ranks ran longer than {limit_s:.0f} s:\n{finished.output}")
    return finished


def start_job(
    argv: Sequence[str],
    ranks: int | None = None,
    mpi: str = "openmpi",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Job:
    """Start what `run_job` runs; the caller must `wait` or `kill`."""
    python = python_with(mpi)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_LEFT_BY_MPI)}
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)
    environment |= env or {}
    line = resolved(argv, python)
    if ranks is not None:
        found = installed_mpi(python)
        line, environment = mpirun_line(found, ranks, line), mpirun_environment(found, environment)
    return start_line(line, environment, cwd)


def refused(ended: Finished, *said: str) -> bool:
    """Assert that a user's error ended the job: one line with these words, shown once; exit status 2."""
    message = [line for line in ended.output.splitlines() if line.lstrip("\0 ").startswith("emu: ")]
    assert len(message) == 1, ended.output
    for word in said:
        assert word in message[0]
    assert "Traceback" not in ended.output and "Usage:" not in ended.output
    assert ended.returncode == 2
    return True


def _heed_ctrl_c() -> None:
    """Undo what a shell does to a job in the background: such a job ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start_line(line: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None) -> Job:
    """Start a line in a session of its own, its output in files so that it never blocks on a full pipe."""
    import tempfile

    mark = uuid.uuid4().hex
    files = tuple(tempfile.NamedTemporaryFile("w+", prefix="emu-job-") for _ in range(2))
    process = subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=files[0],
        stderr=files[1],
        env={**environment, _MARK: mark},
        cwd=cwd,
        start_new_session=True,
        preexec_fn=_heed_ctrl_c,
    )
    return Job(process, mark, files, time.monotonic())


def python_with(mpi: str) -> Path:
    """Return the Python whose mpi4py uses this MPI family, or skip the test."""
    candidates = [Path(sys.executable), *(ROOT / venv / "bin" / "python" for venv in (".venv", ".venv-mpich"))]
    extra = os.environ.get("EMU_TEST_PYTHONS", "")
    for python in [*candidates, *map(Path, filter(None, extra.split(os.pathsep)))]:
        if python.exists() and (found := _mpi_or_none(python)) and found.family == mpi:
            return python
    pytest.skip(f"no environment with {mpi}: `./launch/check {mpi}` makes one")


def resolved(argv: Sequence[str], python: Path) -> list[str]:
    """Return a line whose first word, `python` or `emu`, is the one of that Python's environment."""
    programs = {"python": [str(python)], "emu": [str(python), "-m", "emu"]}
    return [*programs.get(argv[0], argv[:1]), *argv[1:]]


@cache
def installed_mpi(python: Path) -> Mpi:
    return find_mpi(str(python))


def have(program: str) -> bool:
    return shutil.which(program) is not None


# Variables of an mpirun around the tests would make the inner one believe it is a rank.
_LEFT_BY_MPI = ("OMPI_COMM_", "OMPI_FIRST_", "OMPI_APP_", "PMIX_", "PMI_", "PRTE_LAUNCHED", "HYDI_", "MPI_LOCAL")


@cache
def _mpi_or_none(python: Path) -> Mpi | None:
    try:
        return find_mpi(str(python))
    except ConfigError:
        return None


def _read(file: IO[str]) -> str:
    file.seek(0)
    text = file.read()
    file.close()
    return text


def _marked(mark: str) -> list[tuple[int, dict[str, str]]]:
    """Return (pid, environment) of every process that carries the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{_MARK}={mark}".encode() in words:
            pairs = (word.decode(errors="replace").partition("=") for word in words)
            found.append((int(entry.name), {key: value for key, _, value in pairs}))
    return sorted(found)
