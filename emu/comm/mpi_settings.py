"""Write into a virtual environment what its own MPI needs, so that a plain `mpirun -n 4 emu train` works.

Only an MPI wheel inside the environment is touched: a system's MPI belongs to its administrator. Parameters
go into Open MPI's own parameter files, where a user's environment and home directory still override them.
What only environment variables can say (that root may start ranks) is said by a short wrapper around the
launchers, which the wheel's own launchers stand beside.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from emu.comm.mpi_start import NO_SINGLE_COPY, OPENMPI_SETTINGS, PRTE_SETTINGS, ROOT_ALLOWED, Mpi

_MARK = "# written by `emu doctor --fix`"
_END = "# end of what `emu doctor --fix` wrote"


def fixable(mpi: Mpi, prefix: Path) -> bool:
    """Say whether this MPI is a wheel inside the environment `prefix` whose settings are known."""
    return mpi.family in ("openmpi", "mpich") and Path(mpi.library).is_relative_to(prefix)


def write_settings(mpi: Mpi, prefix: Path, single_copy: bool = True) -> list[Path]:
    """Write the settings into the environment `prefix`; return the files. Calling again is safe.

    `single_copy` false keeps one rank from reading another's memory, for containers that forbid it.
    """
    launchers = [prefix / "bin" / name for name in ("mpirun", "mpiexec")]
    if mpi.family == "mpich":
        return [] if single_copy else [_wrap(path, mpi, NO_SINGLE_COPY["mpich"]) for path in launchers]
    parameters = OPENMPI_SETTINGS if single_copy else OPENMPI_SETTINGS | NO_SINGLE_COPY["openmpi"]
    return [
        _write_block(prefix / "etc" / "prte-mca-params.conf", PRTE_SETTINGS),
        _write_block(prefix / "etc" / "openmpi-mca-params.conf", parameters),
        *(_wrap(path, mpi, ROOT_ALLOWED) for path in launchers),
    ]


def _write_block(path: Path, settings: dict[str, str]) -> Path:
    """Replace our block at the end of a parameter file, or append it."""
    text = path.read_text() if path.exists() else ""
    before, _, rest = text.partition(_MARK)
    after = rest.partition(_END)[2].lstrip("\n")
    lines = "".join(f"{key} = {value}\n" for key, value in settings.items())
    path.write_text(f"{before.rstrip()}\n{_MARK}\n{lines}{_END}\n{after}".lstrip("\n"))
    return path


def _wrap(launcher: Path, mpi: Mpi, variables: Mapping[str, str]) -> Path:
    """Put a wrapper in the place of a launcher, which moves aside unless it has before."""
    aside = launcher.with_name(f"{mpi.family}-{launcher.name}")
    if _MARK.encode() not in launcher.read_bytes():
        shutil.move(launcher, aside)
    exports = "".join(f'export {name}="${{{name}-{value}}}"\n' for name, value in variables.items())
    run = f'exec "$(dirname "$(readlink -f "$0")")/{aside.name}" "$@"\n'
    launcher.write_text(f"#!/bin/sh\n{_MARK}; a variable that is set already stays\n{exports}{run}")
    launcher.chmod(0o755)
    return launcher
