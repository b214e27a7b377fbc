"""Write into a virtual environment what its own MPI needs, so that a plain `mpirun -n 4 emu train` works.

Only an Open MPI wheel inside the environment is touched: a system's MPI belongs to its administrator, and
MPICH needs nothing. Parameters go into Open MPI's own parameter files, where a user's environment and home
directory still override them. Leave to run as root can only be given by environment variables, so the
launchers get a wrapper of three lines that gives it.
"""

import shutil
from pathlib import Path

from emu.comm.mpi_start import OPENMPI_SETTINGS, PRTE_SETTINGS, Mpi

_MARK = "# written by `emu doctor --fix`"
_END = "# end of what `emu doctor --fix` wrote"

_WRAPPER = f"""#!/bin/sh
{_MARK}: lets root start ranks, as in a container; set the variables to another value to forbid it
export OMPI_ALLOW_RUN_AS_ROOT="${{OMPI_ALLOW_RUN_AS_ROOT-1}}"
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="${{OMPI_ALLOW_RUN_AS_ROOT_CONFIRM-1}}"
exec "$(dirname "$(readlink -f "$0")")/openmpi-%s" "$@"
"""

NO_SINGLE_COPY = {"smsc": "^cma"}  # where a container forbids one process to read another's memory


def fixable(mpi: Mpi, prefix: Path) -> bool:
    """Say whether this MPI is an Open MPI wheel inside the environment `prefix`."""
    return mpi.family == "openmpi" and Path(mpi.library).is_relative_to(prefix) and (prefix / "etc").is_dir()


def write_settings(prefix: Path, single_copy: bool = True) -> list[Path]:
    """Write the settings into the environment `prefix`; return the files. Calling again is safe."""
    openmpi = OPENMPI_SETTINGS if single_copy else OPENMPI_SETTINGS | NO_SINGLE_COPY
    return [
        _write_block(prefix / "etc" / "prte-mca-params.conf", PRTE_SETTINGS),
        _write_block(prefix / "etc" / "openmpi-mca-params.conf", openmpi),
        *(_wrap(prefix / "bin" / name) for name in ("mpirun", "mpiexec")),
    ]


def _write_block(path: Path, settings: dict[str, str]) -> Path:
    """Replace our block at the end of a parameter file, or append it."""
    text = path.read_text() if path.exists() else ""
    before, _, rest = text.partition(_MARK)
    after = rest.partition(_END)[2].lstrip("\n")
    lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
    path.write_text(f"{before.rstrip()}\n{_MARK}\n{lines}{_END}\n{after}".lstrip("\n"))
    return path


def _wrap(launcher: Path) -> Path:
    """Move the wheel's launcher aside and put the wrapper in its place, unless it stands there already."""
    if launcher.read_bytes().startswith(b"#!/bin/sh\n" + _MARK.encode()):
        return launcher
    aside = launcher.with_name(f"openmpi-{launcher.name}")
    shutil.move(launcher, aside)
    launcher.write_text(_WRAPPER % launcher.name)
    launcher.chmod(0o755)
    return launcher
