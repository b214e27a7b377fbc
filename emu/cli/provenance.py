"""What a reader needs to repeat a run: versions, the command, the machine."""

from __future__ import annotations

import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("emu", "numpy", "mpi4py", "numba", "greenlet", "scikit-learn")


def provenance() -> dict[str, Any]:
    """Return `versions`, `command` and `host`."""
    return {
        "versions": {"python": platform.python_version()} | _versions() | _mpi(),
        "command": shlex.join(["emu", *sys.argv[1:]]),
        "host": {"machine": platform.machine(), "system": platform.platform()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _mpi() -> dict[str, str]:
    """Tell the MPI library, if this process uses one."""
    if "mpi4py.MPI" not in sys.modules:
        return {}
    name, number = sys.modules["mpi4py.MPI"].get_vendor()
    return {"mpi": f"{name} {'.'.join(map(str, number))}"}
