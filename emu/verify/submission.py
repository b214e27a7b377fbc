"""Finding the function to be checked: of a file, or an algorithm of the table by name."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from emu.collectives import find
from emu.errors import ConfigError
from emu.verify.contract import contract_of
from emu.verify.trial import Submission


def load(collective: str, what: str, options: dict[str, Any] | None = None) -> Submission:
    """Return the submission `FILE.py:FUNCTION`, or the algorithm of that name.

    Runs the file. Raises ConfigError if it is not there, cannot be run, or has no such function.
    """
    contract_of(collective)
    if ":" not in what:
        if what.endswith(".py"):
            raise ConfigError(f"submission: FILE.py:FUNCTION is expected, got {what!r}; name the function in the file")
        return Submission(collective, find(collective, what), what, options or {})
    path, _, name = what.rpartition(":")
    return Submission(collective, _function(Path(path), name), name, options or {})


def _function(path: Path, name: str) -> Callable[..., Any]:
    if not path.is_file():
        raise ConfigError(f"submission: a Python file is expected, got {path}, which is not there; check the path")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"submission: a Python file is expected, got {path}; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigError(f"{path.name}:{error.lineno}: valid Python is expected, got {error.msg}; mend it") from None
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        raise ConfigError(
            f"{path.name}:{line}: a file that can be imported is expected, got {type(error).__name__}: {error}"
        ) from None
    function = getattr(module, name, None)
    if not callable(function):
        there = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise ConfigError(f"{path.name}: a function {name!r} is expected, got {', '.join(there) or 'none'}; name one")
    return function
