"""The module that a program gets for `from mpi4py import MPI`.

One module serves every rank of the process: its world communicator finds out which rank is asking.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from emu.face import buffers, cart, comm, datatypes, group, intracomm, ops, requests, status
from emu.face.session import Session, Unsupported

VERSION, SUBVERSION = 3, 1


class World(intracomm.Intracomm):
    """COMM_WORLD or COMM_SELF of whichever rank is running."""

    _find: Callable[[], Session]
    _of: Callable[[Session], Any]

    @classmethod
    def found(cls, name: str, session: Callable[[], Session], core: Callable[[Session], Any]) -> World:
        """Return a communicator that finds out who is asking."""
        made = cls.__new__(cls)
        made.name, made._find, made._of = name, session, core
        return made

    @property
    def _session(self) -> Session:
        return self._find()

    @property
    def _core(self) -> Any:
        return self._of(self._find())

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return hash(self.name)

    def Free(self) -> None:
        """Raise: the world stays."""
        raise Unsupported(f"MPI.{self.name}.Free: a communicator that the program has made is expected")


class Exception_(RuntimeError):
    """mpi4py's MPI.Exception. emu raises errors of its own, which say what to do."""

    def Get_error_class(self) -> int:
        """Return ERR_OTHER."""
        return _ERROR_CLASSES["ERR_OTHER"]

    def Get_error_code(self) -> int:
        """Return ERR_OTHER."""
        return _ERROR_CLASSES["ERR_OTHER"]

    def Get_error_string(self) -> str:
        """Return the message."""
        return str(self)


_ERRORS = (
    "BUFFER", "COUNT", "TYPE", "TAG", "COMM", "RANK", "REQUEST", "ROOT", "GROUP", "OP", "TOPOLOGY", "DIMS", "ARG",
    "UNKNOWN", "TRUNCATE", "OTHER", "INTERN", "IN_STATUS", "PENDING",
)  # fmt: skip
_ERROR_CLASSES = {f"ERR_{name}": number for number, name in enumerate(_ERRORS, 1)}


class Info(dict):
    """mpi4py's Info: a dict of hints, which nothing reads."""

    @classmethod
    def Create(cls, items: Any = ()) -> Info:
        """Return hints."""
        return cls(items)

    def Set(self, key: str, value: str) -> None:
        """Set a hint."""
        self[key] = value

    def Get(self, key: str, *_: Any) -> Any:
        """Return a hint, None if it is not set."""
        return self.get(key)

    def Free(self) -> None:
        """Nothing is held."""


def make(session: Callable[[], Session]) -> types.ModuleType:
    """Build the module `mpi4py.MPI`; session() returns what belongs to the rank that is running."""
    module = types.ModuleType("mpi4py.MPI", "mpi4py's MPI, emulated")
    names: dict[str, Any] = {
        "Comm": comm.Comm, "Intracomm": intracomm.Intracomm, "Cartcomm": cart.Cartcomm, "Group": group.Group,
        "Request": requests.Request, "Prequest": requests.Prequest, "Message": requests.Message,
        "Status": status.Status, "Datatype": datatypes.Datatype, "Op": ops.Op, "Info": Info, "Exception": Exception_,
        "COMM_WORLD": World.found("MPI_COMM_WORLD", session, lambda found: found.core),
        "COMM_SELF": World.found("MPI_COMM_SELF", session, _alone),
        "COMM_NULL": intracomm.COMM_NULL, "GROUP_NULL": group.GROUP_NULL, "GROUP_EMPTY": group.GROUP_EMPTY,
        "REQUEST_NULL": requests.REQUEST_NULL, "MESSAGE_NULL": requests.MESSAGE_NULL,
        "MESSAGE_NO_PROC": requests.MESSAGE_NULL, "DATATYPE_NULL": datatypes.DATATYPE_NULL, "OP_NULL": ops.OP_NULL,
        "INFO_NULL": Info(), "INFO_ENV": Info(), "ERRORS_RETURN": None, "ERRORS_ARE_FATAL": None,
        "ERRHANDLER_NULL": None,
        "ANY_SOURCE": status.ANY_SOURCE, "ANY_TAG": status.ANY_TAG, "PROC_NULL": status.PROC_NULL, "ROOT": status.ROOT,
        "UNDEFINED": status.UNDEFINED, "IN_PLACE": buffers.IN_PLACE, "BOTTOM": buffers.BOTTOM,
        "IDENT": comm.IDENT, "CONGRUENT": comm.CONGRUENT, "SIMILAR": comm.SIMILAR, "UNEQUAL": comm.UNEQUAL,
        "COMM_TYPE_SHARED": comm.COMM_TYPE_SHARED, "CART": cart.CART, "ORDER_C": datatypes.ORDER_C,
        "ORDER_FORTRAN": datatypes.ORDER_FORTRAN, "ORDER_F": datatypes.ORDER_FORTRAN,
        "THREAD_SINGLE": 0, "THREAD_FUNNELED": 1, "THREAD_SERIALIZED": 2, "THREAD_MULTIPLE": 3,
        "MAX_PROCESSOR_NAME": 256, "MAX_ERROR_STRING": 256, "BSEND_OVERHEAD": 128, "SUCCESS": 0,
        "VERSION": VERSION, "SUBVERSION": SUBVERSION, "Compute_dims": cart.compute_dims,
        **comm.KEYVALS, **datatypes.NAMED, **ops.NAMED, **_ERROR_CLASSES,
    }  # fmt: skip
    names |= _functions(session)
    for name, value in names.items():
        setattr(module, name, value)
    module.__getattr__ = _missing  # type: ignore[method-assign]
    return module


def _functions(session: Callable[[], Session]) -> dict[str, Callable[..., Any]]:
    def finalize() -> None:
        session().finalized = True

    return {
        "Init": lambda: None,
        "Init_thread": lambda required=3: 2,
        "Finalize": finalize,
        "Is_initialized": lambda: True,
        "Is_finalized": lambda: session().finalized,
        "Query_thread": lambda: 2,
        "Is_thread_main": lambda: True,
        "Wtime": lambda: _now(session()),
        "Wtick": lambda: 1e-9,
        "Get_processor_name": lambda: session().host,
        "Get_version": lambda: (VERSION, SUBVERSION),
        "Get_library_version": lambda: "emu: emulated MPI",
        "get_vendor": lambda: ("emu", (0, 1, 0)),
        "Alloc_mem": lambda size, info=None: memoryview(bytearray(size)),
        "Free_mem": lambda memory: None,
        "Attach_buffer": lambda buffer: session().attributes.update(attached=buffer),
        "Detach_buffer": lambda: session().attributes.pop("attached", None),
        "Pcontrol": lambda level: None,
        "Get_address": _address,
    }


def _now(found: Session) -> float:
    return found.answers.now_s(found.core)


def _address(location: Any) -> int:
    return int(buffers._memory(location, "Get_address")[0].__array_interface__["data"][0])


def _missing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise Unsupported(f"MPI.{name}: not supported by emu")


def _alone(found: Session) -> Any:
    """Return the communicator of this rank alone, made when it is first used."""
    core = found.attributes.get("self")
    if core is None:
        core = found.attributes["self"] = found.core.alone()
    return core


@contextmanager
def observed(module: types.ModuleType, session: Callable[[], Session]) -> Iterator[None]:
    """Let the session know whenever the program enters MPI and leaves it, so that what is between can be measured.

    The face's classes are as they were at the end: another program of this process may use them.
    """
    before: list[tuple[type, str, Any]] = []
    classes = [comm.Comm, intracomm.Intracomm, cart.Cartcomm, requests.Request, requests.Prequest, requests.Message]
    for each in classes:
        for name, method in list(vars(each).items()):
            if name.startswith("_") or not callable(method) and not isinstance(method, classmethod):
                continue
            before.append((each, name, method))
            setattr(each, name, _around(method, session))
    module.Wtime = _around(module.Wtime, session)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for each, name, method in before:
            setattr(each, name, method)


def _around(method: Any, session: Callable[[], Session]) -> Any:
    function = method.__func__ if isinstance(method, classmethod) else method

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = session()
        outermost = found.enter is not None and found.enter()
        try:
            return function(*args, **kwargs)
        finally:
            if outermost and found.leave is not None:
                found.leave()

    return classmethod(call) if isinstance(method, classmethod) else call

