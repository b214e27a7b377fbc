"""Running a script written for mpi4py: as `__main__`, with a stand-in for mpi4py among its imports.

Where all ranks share a process, each has a `__main__` and modules of its own from the script's folder, as it would
have in a process of its own; modules from elsewhere are shared.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emu.errors import ConfigError


@dataclass(frozen=True)
class Script:
    """A compiled script and its arguments."""

    path: Path
    argv: tuple[str, ...]
    code: types.CodeType

    @property
    def folder(self) -> str:
        """Where its own modules are."""
        return str(self.path.parent)

    def run(self, main: types.ModuleType) -> int:
        """Run it as `__main__`; return its exit status. What it raises passes."""
        try:
            exec(self.code, main.__dict__)
        except SystemExit as ended:
            return _status(ended.code)
        return 0

    def main(self) -> types.ModuleType:
        """Return a fresh `__main__` for it."""
        module = types.ModuleType("__main__")
        module.__file__ = str(self.path)
        module.__builtins__ = __builtins__  # type: ignore[attr-defined]
        return module


def read_script(path: str, args: Sequence[str]) -> Script:
    """Read and compile a script. Raise ConfigError where that can't be."""
    file = Path(path)
    try:
        source = file.read_bytes()
        code = compile(source, str(file), "exec", dont_inherit=True)
    except OSError as error:
        raise ConfigError(f"{path}: a Python script is expected, got: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""
        raise ConfigError(f"{path}: a Python script is expected, got: {error}{line}") from None
    return Script(file.resolve(), (path, *args), code)


def _status(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


@contextmanager
def surroundings(script: Script, mpi: types.ModuleType) -> Iterator[None]:
    """Let imports find the script's folder, and mpi4py's stand-in; afterwards all is as it was."""
    before = (sys.argv, list(sys.path), list(sys.meta_path))
    kept = {name: module for name, module in sys.modules.items() if name == "__main__" or _is_mpi4py(name)}
    for name in kept:
        if _is_mpi4py(name):
            del sys.modules[name]
    sys.argv = list(script.argv)
    sys.path.insert(0, script.folder)
    sys.meta_path.insert(0, _Refusing())
    sys.modules.update(_stand_in(mpi))
    try:
        yield
    finally:
        sys.argv, sys.path[:], sys.meta_path[:] = before
        for name in [name for name in sys.modules if _is_mpi4py(name)]:
            del sys.modules[name]
        sys.modules.update(kept)


def _is_mpi4py(name: str) -> bool:
    return name == "mpi4py" or name.startswith("mpi4py.")


def _stand_in(mpi: types.ModuleType) -> dict[str, types.ModuleType]:
    package = types.ModuleType("mpi4py", "mpi4py, emulated")
    package.__path__ = []
    package.__version__ = "4.1.0"  # type: ignore[attr-defined]
    rc = types.ModuleType("mpi4py.rc")
    vars(rc).update(
        initialize=True, threads=True, thread_level="multiple", finalize=None, fast_reduce=True, recv_mprobe=True,
        irecv_bufsz=32768, errors="exception",
    )  # fmt: skip
    package.MPI, package.rc = mpi, rc  # type: ignore[attr-defined]
    package.get_config = lambda: {}  # type: ignore[attr-defined]
    return {"mpi4py": package, "mpi4py.MPI": mpi, "mpi4py.rc": rc}


class _Refusing:
    """Says by name which parts of mpi4py there are not."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise ModuleNotFoundError for a part of mpi4py; leave all else to others."""
        if _is_mpi4py(name):
            raise ModuleNotFoundError(f"{name}: not supported by emu; there is mpi4py.MPI", name=name)


class Modules:
    """Each rank's own modules, where ranks share a process: swapped when another rank runs."""

    def __init__(self, script: Script, mains: Sequence[types.ModuleType]) -> None:
        self.folder = script.folder + os.sep
        self.mains = mains
        self.own: list[dict[str, types.ModuleType]] = [{} for _ in mains]
        self.current = -1
        self.shared = set(sys.modules)
        self.known = len(sys.modules)

    def switch(self, rank: int) -> None:
        """Put in place what rank `rank` has imported."""
        if rank == self.current:
            return
        if self.current >= 0:
            self._store(self.current)
        self.current = rank
        sys.modules["__main__"] = self.mains[rank]
        sys.modules.update(self.own[rank])
        self.known = len(sys.modules)

    def _store(self, rank: int) -> None:
        if len(sys.modules) != self.known or self.own[rank]:
            for name in [name for name in sys.modules if name not in self.shared]:
                file = getattr(sys.modules[name], "__file__", None)
                if file and os.path.abspath(file).startswith(self.folder):
                    self.own[rank][name] = sys.modules[name]
                else:
                    self.shared.add(name)
        for name in self.own[rank]:
            sys.modules.pop(name, None)


def end_of(script: Script, error: BaseException) -> str:
    """Return the traceback of an error of the script's, from its own first line on."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, f in enumerate(frames) if f.filename == str(script.argv[0])), 0)
    lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames[first:])]
    return "".join([*lines, *traceback.format_exception_only(error)])


