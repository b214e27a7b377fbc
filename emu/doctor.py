"""Find out what this machine offers to emu: its MPI, cores, timers and GPUs, and how ranks start here.

Everything is really tried: ranks are started, one-sided calls made and sleeps measured.
"""

import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from emu.comm.mpi_probe import run_probe
from emu.comm.mpi_settings import fixable, write_settings
from emu.comm.mpi_start import Mpi, find_mpi, mpirun_line, start_settings
from emu.errors import ConfigError

_SLEEPS_S = (50e-6, 1e-3, 10e-3)
_SHM_ENOUGH_BYTES = 256 << 20


@dataclass(frozen=True)
class Sleep:
    """How much later than asked a sleep returned."""

    asked_s: float
    median_late_s: float
    worst_late_s: float


@dataclass(frozen=True)
class Health:
    """What was found. `start_line` is None when ranks cannot start; `fixable` when `--fix` would help."""

    python: str
    mpi: Mpi | None
    mpi_error: str | None
    trials: dict[str, str]
    start_line: str | None
    fixable: bool
    cores: int
    sleeps: tuple[Sleep, ...]
    gpus: tuple[str, ...]
    gpu_error: str | None
    container: str | None
    hints: tuple[str, ...]

    @property
    def healthy(self) -> bool:
        """Whether ranks start here and every trial worked."""
        failed = any(outcome.startswith("failed") for outcome in self.trials.values())
        return self.start_line is not None and not failed


def examine(environment: Mapping[str, str]) -> Health:
    """Try everything out; `environment` is the one that ranks would be started from. Takes a few seconds."""
    mpi, mpi_error = _mpi()
    container = container_kind(environment)
    trials = run_probe(mpi, environment) if mpi else {}
    plain = mpi is not None and starts(mpi, environment)
    works = plain and trials.get("large message") == "works"
    can_fix = mpi is not None and not works and fixable(mpi, Path(sys.prefix))
    gpus, gpu_error = visible_gpus()
    return Health(
        python=f"{sys.version.split()[0]} ({sys.executable})",
        mpi=mpi,
        mpi_error=mpi_error,
        trials=trials,
        start_line=start_line(mpi, environment, plain) if mpi else None,
        fixable=can_fix,
        cores=usable_cores(),
        sleeps=tuple(measure_sleep(asked_s) for asked_s in _SLEEPS_S),
        gpus=gpus,
        gpu_error=gpu_error,
        container=container,
        hints=tuple(_hints(mpi, trials, container, can_fix)),
    )


def fix(environment: Mapping[str, str]) -> list[Path]:
    """Write the settings that a plain mpirun needs into this virtual environment; return the files written.

    Raises ConfigError where the MPI is not a wheel of this environment.
    """
    mpi = find_mpi(program="--fix")
    prefix = Path(sys.prefix)
    if not fixable(mpi, prefix):
        raise ConfigError(
            f"--fix: MPI must be a wheel inside {prefix}, got {mpi.name} at {mpi.library}; "
            "`emu train -n 4` starts a system's mpirun with the right settings"
        )
    files = write_settings(mpi, prefix)
    if run_probe(mpi, environment)["large message"] != "works":
        files = write_settings(mpi, prefix, single_copy=False)
    return files


def start_line(mpi: Mpi, environment: Mapping[str, str], plain: bool) -> str | None:
    """Return the shortest line that really starts 4 ranks here, or None when none does.

    `plain` says whether mpirun starts them without any setting.
    """
    program = "emu" if shutil.which("emu") else f"{shlex.quote(sys.executable)} -m emu"
    launcher = "mpirun" if shutil.which("mpirun") == mpi.mpirun else shlex.quote(mpi.mpirun)
    if plain:
        return f"{launcher} -n 4 {program} train"
    needed = {key: value for key, value in start_settings(mpi).items() if key not in environment}
    if needed and starts(mpi, {**environment, **needed}):
        words = [f"{key}={value}" for key, value in needed.items()]
        return " ".join([*words, f"{launcher} -n 4 {program} train"])
    return None


def usable_cores() -> int:
    """Return the cores that this process may run on, within the container's share of processor time."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def measure_sleep(asked_s: float) -> Sleep:
    """Measure how late sleeps return; the wall clock can hold a message no more precisely than that."""
    late = []
    for _ in range(max(10, min(200, int(0.1 / asked_s)))):
        started = time.perf_counter()
        time.sleep(asked_s)
        late.append(time.perf_counter() - started - asked_s)
    return Sleep(asked_s, statistics.median(late), max(late))


def visible_gpus() -> tuple[tuple[str, ...], str | None]:
    """Return the names of the GPUs that cupy sees, or why it sees none."""
    try:
        import cupy
    except ImportError:
        return (), "cupy is not installed (`pip install .[cupy]` in the checkout)"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
        return tuple(cupy.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in range(count)), None
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return (), str(error)


def container_kind(environment: Mapping[str, str]) -> str | None:
    """Return what kind of container this is, as far as it shows."""
    if Path("/.dockerenv").exists():
        return "docker"
    if "container" in environment:
        return environment["container"]  # set by podman, systemd-nspawn and lxc
    return "podman" if Path("/run/.containerenv").exists() else None


def _mpi() -> tuple[Mpi | None, str | None]:
    try:
        return find_mpi(), None
    except ConfigError as error:
        return None, str(error)


def starts(mpi: Mpi, environment: Mapping[str, str]) -> bool:
    """Try whether a plain mpirun starts 4 ranks in this environment."""
    line = mpirun_line(mpi, 4, [sys.executable, "-c", "pass"])
    try:
        return subprocess.run(line, env=dict(environment), capture_output=True, timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _hints(mpi: Mpi | None, trials: Mapping[str, str], container: str | None, can_fix: bool) -> list[str]:
    hints = []
    if can_fix:
        hints.append("`emu doctor --fix` lets a plain `mpirun -n 4 emu train` work in this environment")
    if mpi is not None and (container or trials["large message"] != "works"):
        hints += _single_copy_hint(mpi)
    shm_bytes = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").exists() else 0
    if shm_bytes < _SHM_ENOUGH_BYTES:
        hints.append(f"/dev/shm holds {shm_bytes >> 20} MiB: start the container with --shm-size=1g")
    return hints


def _single_copy_hint(mpi: Mpi) -> list[str]:
    """Say what to set where a container forbids one rank to read another's memory."""
    if mpi.family == "mpich":
        symptom, setting = "process_vm_readv failed", "MPIR_CVAR_CH4_CMA_ENABLE=0"
    elif mpi.family == "openmpi":
        symptom, setting = "Read -1, expected N, errno = 1", "OMPI_MCA_smsc=^cma"
        if int(mpi.version.split(".")[0]) < 5:
            setting = "OMPI_MCA_btl_vader_single_copy_mechanism=none"
    else:
        return []
    return [f"if ranks stop with `{symptom}`: export {setting}"]
