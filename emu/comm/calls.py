"""A collective call: ranks agree on it, it is one span, and it is recorded once (a template) and then by reference.

    @collective("all_reduce", "ring")
    def ring_all_reduce(comm, x, op="sum"): ...

A call's messages may depend only on the algorithm, the group's size, the rank in it and the arguments; a call that
breaks this (any-source receives, peers outside the group) is recorded flat.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from emu.comm.plan import Plan, sketch
from emu.comm.recording import Log, relative
from emu.comm.sites import user_site
from emu.comm.wire import Call
from emu.errors import ConfigError
from emu.trace import COLLECTIVE, ROW, Op, Template

if TYPE_CHECKING:
    from emu.comm.communicator import Comm

ORDER_CHECKED = 64  # up to so many communicators at a time, their order of use is compared at every call
CALLS_KEPT = 1024  # sorts of calls that a communicator knows
_NO_ORDER: dict[int, Any] = {}  # of a rank that uses one communicator, or very many
SAMPLE_EVERY = 1024  # every so many calls, a template is recorded again and compared


@dataclass(frozen=True)
class Collective:
    """An algorithm of a collective operation, and which of its array arguments all ranks must agree on."""

    operation: str
    algorithm: str
    function: Callable[..., Any]
    names: tuple[str, ...]  # its parameters after comm
    defaults: Mapping[str, Any]
    agree: tuple[str, ...] | None  # None: every array
    planned: bool = False  # it leaves all that happens to arrays to its communicator

    @functools.cached_property
    def label(self) -> str:
        """Its name in traces: ring_all_reduce."""
        return f"{self.algorithm}_{self.operation}" if self.algorithm else self.operation


@dataclass
class Known:
    """What is known of a call that was made before with arguments of these sizes."""

    terms: Any  # what a template depends on
    agreed: Any  # what ranks must agree on
    nbytes: int  # of the payload
    arrays: int  # among its arguments
    plan: Plan | None = None
    plannable: bool = True
    bound: dict[tuple[int, ...], Any] = field(default_factory=dict)  # addresses of the arguments -> the plan's calls


def collective(
    operation: str, algorithm: str, agree: Sequence[str] | None = None, planned: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a function (comm, …) as an algorithm of a collective.

    `agree` names the arguments that must have the same size and dtype on all ranks (None: every array);
    arguments that are not arrays must be equal in any case. `planned` promises that the function neither reads
    values nor calls numpy on its arrays, but leaves that to `comm`: it is then run once for arguments of these sizes,
    and what it does to them is repeated.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(function).parameters.values())[1:]
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        names = tuple(p.name for p in parameters)
        agreed = tuple(agree) if agree is not None else None
        spec = Collective(operation, algorithm, function, names, defaults, agreed, planned)

        @functools.wraps(function)
        def call(comm: Any, *args: Any, **kwargs: Any) -> Any:
            run = getattr(comm, "call", None)
            if run is None and not hasattr(comm, "isend"):
                raise ConfigError(f"{spec.label}: a communicator is expected first, such as gpu.comm, "
                                  f"got {type(comm).__name__}")  # fmt: skip
            return function(comm, *args, **kwargs) if run is None else run(spec, args, kwargs)

        call.collective = spec  # type: ignore[attr-defined]
        return call

    return decorate


def run_call(comm: Comm, spec: Collective, args: tuple, kwargs: dict) -> Any:
    """Run one collective call on `comm`; a call inside another one is part of it."""
    log = comm.log
    if log.flag:
        return spec.function(comm, *args, **kwargs)
    for value in args:
        if value.__class__ is not np.ndarray and hasattr(value, "dtype") or (
            value.__class__ is np.ndarray and (value.ndim != 1 or not value.flags.c_contiguous)
        ):
            args = tuple([_line(comm, spec, value) for value in args])
            break
    if kwargs:
        kwargs = {name: _line(comm, spec, value) for name, value in kwargs.items()}
    known = _known(comm, spec, args, kwargs)
    if comm.checks and comm.size > 1:
        turns = comm.turns
        order = dict(turns) if 1 < len(turns) <= ORDER_CHECKED else _NO_ORDER
        agreed = (*known.agreed, ("about", log.about)) if log.about else known.agreed
        call = Call(spec.label, agreed, user_site(), comm.calls_begun, order)
        latest = call if order is _NO_ORDER else call._replace(order=_NO_ORDER)  # or calls would hold all before them
        turns[comm.context] = (comm.calls_begun, comm.group, latest)
        comm.wire.agree(call)
    comm.calls_begun += 1
    if log.muted:
        return _run_muted(comm, spec, args, kwargs, known)
    label = spec.label
    if not comm.templates or label in log.tables.untemplated:
        return _run_flat(comm, spec, args, kwargs)
    key = (label, comm.size, comm.rank, known.terms)
    number = log.tables.template_of(*key)
    if number is None and comm.dry and _record_together(comm, spec, args, kwargs, known.terms):
        number = log.tables.template_of(*key)
    if number is None or (not comm.dry and comm.calls_begun % SAMPLE_EVERY == 0):
        return _run_recording(comm, spec, args, kwargs, key, known.nbytes)
    _write(comm, number, key, known.nbytes)
    if comm.dry:
        log.posted[log.stream] += log.tables.requests[number]
        return None
    return _run_muted(comm, spec, args, kwargs, known)


def _line(comm: Comm, spec: Collective, value: Any) -> Any:
    """Return an array as one line of elements, which is what algorithms cut; anything else as it is."""
    flags = getattr(value, "flags", None)
    if flags is None or not hasattr(value, "dtype"):
        return value
    if not comm.dry and not flags.c_contiguous:
        raise ConfigError(
            f"{spec.label}: a contiguous array is expected, got shape {value.shape} with strides {value.strides}; "
            "copy it first (numpy.ascontiguousarray)"
        )
    return value if value.ndim == 1 else value.reshape(-1)


def _run_muted(comm: Comm, spec: Collective, args: tuple, kwargs: dict, known: Known) -> Any:
    """Move the bytes of a call that is recorded already, or is not to be."""
    log = comm.log
    muted, log.flag, log.muted = log.muted, COLLECTIVE, True
    try:
        if spec.planned and getattr(comm.wire, "replays", False) and _replay(comm, spec, args, kwargs, known):
            return None
        return spec.function(comm, *args, **kwargs)
    finally:
        log.flag, log.muted = 0, muted


def _replay(comm: Comm, spec: Collective, args: tuple, kwargs: dict, known: Known) -> bool:
    """Do what the call's plan says; tell whether there is one for these arguments."""
    arrays = [value for value in (*args, *kwargs.values()) if value.__class__ is np.ndarray]
    if len(arrays) != known.arrays:
        return False  # some are on a device
    for array in arrays:
        if not array.flags.writeable:
            return False
    plan = known.plan
    if plan is None:
        plan = known.plan = sketch(comm, spec.function, args, kwargs) if known.plannable else None
        known.plannable = plan is not None
        if plan is None:
            return False
    comm.wire.replay(plan, arrays, known.bound)
    comm.log.posted[comm.log.stream] += plan.requests
    return True


def _run_flat(comm: Comm, spec: Collective, args: tuple, kwargs: dict) -> Any:
    log = comm.log
    log.begin(log.tables.label(spec.label), flag=COLLECTIVE, context=comm.context)
    log.flag = COLLECTIVE
    try:
        return spec.function(comm, *args, **kwargs)
    finally:
        log.flag = 0
        log.end()


def _run_recording(comm: Comm, spec: Collective, args: tuple, kwargs: dict, key: Any, nbytes: int) -> Any:
    """Run and record into a log of its own, then write it as a template and its call, or flat with the reason."""
    log, outer = comm.log, comm.log.data
    log.data, log.flag = bytearray(), COLLECTIVE
    log.inner, log.spilled = (log.tables.label(spec.label), comm.context), False
    try:
        result = spec.function(comm, *args, **kwargs)
    finally:
        inner, log.data, log.flag = log.data, outer, 0
        log.inner = None
    if log.spilled:
        log.data += inner
        log.end()
        return result
    rows = relative(np.frombuffer(bytes(inner), dtype=ROW), comm.group, comm.rank, log.stream)
    known = log.tables.template_ids.get(key)
    if not isinstance(rows, str) and known is not None:
        if not np.array_equal(rows, log.tables.templates[known].rows):
            rows = "two calls with equal arguments did different things"
    if isinstance(rows, str):
        log.tables.untemplated[spec.label] = rows
        log.begin(log.tables.label(spec.label), flag=COLLECTIVE, context=comm.context)
        log.data += inner
        log.end()
    else:
        log.tables.label(spec.label)
        number = log.tables.add_template(key, Template(spec.label, comm.size, rows))
        _write(comm, number, key, nbytes)
    return result


def _write(comm: Comm, number: int, key: Any, nbytes: int) -> None:
    """Write a call by its template."""
    log = comm.log
    log.call(number, group_number(comm), comm.context, nbytes)
    if log.signatures is not None:
        label, _, _, terms = key
        log.signatures.append((label, terms))


def _record_together(comm: Comm, spec: Collective, args: tuple, kwargs: dict, terms: Any) -> bool:
    from emu.comm.together import record_together

    return record_together(comm, spec, args, kwargs, terms)


def spill(log: Log) -> None:
    """Write what a call that is being recorded as a template has done so far into the log itself, for an engine."""
    if log.inner is None or log.data is log.base:
        return
    if not log.spilled:
        log.spilled = True
        inner, log.data = log.data, log.base
        log.begin(log.inner[0], flag=COLLECTIVE, context=log.inner[1])
        log.data = inner
    log.base += log.data
    del log.data[:]


def called_rows(rows: np.ndarray, log: Log) -> tuple[np.ndarray, int]:
    """Return rows of this rank with its calls written out, as if they had been recorded flat.

    The second value is how many requests the last of these calls makes.
    """
    calls = np.flatnonzero(rows["op"] == Op.CALL)
    if not calls.size:
        return rows, 0
    tables, groups = log.tables, list(log.tables.groups)
    pieces, at, last = [], 0, 0
    for k in calls.tolist():
        call = rows[k]
        template = tables.templates[call["a"]]
        pieces += [rows[at:k], _flat(template, call, groups[call["b"]], log.rank, tables.label(template.name))]
        at, last = k + 1, tables.requests[call["a"]]
    return np.concatenate([*pieces, rows[at:]]), last


def _flat(template: Template, call: Any, group: Sequence[int], rank: int, label: int) -> np.ndarray:
    """Return the rows of one call of a template by a rank of `group`."""
    inner = template.rows_at(group.index(rank)).copy()
    messages = (inner["op"] == Op.SEND) | (inner["op"] == Op.RECV)
    inner["a"][messages] = np.asarray(group)[(inner["a"][messages] + group.index(rank)) % len(group)]
    inner["c"][messages] = call["c"]
    whole = np.zeros(len(inner) + 2, ROW)
    whole[1:-1] = inner
    whole["stream"] = call["stream"]
    for at, op in ((0, Op.BEGIN), (-1, Op.END)):
        whole["op"][at] = op
    whole["flag"][0], whole["a"][0], whole["b"][0], whole["c"][0] = COLLECTIVE, label, -1, call["c"]
    return whole


def group_number(comm: Comm) -> int:
    """Return the number of a communicator's group in the tables, which is looked up once: groups may be large."""
    if comm.group_number is None:
        groups = comm.log.tables.groups
        comm.group_number = groups.setdefault(comm.group, len(groups))
    return comm.group_number


def _known(comm: Comm, spec: Collective, args: tuple, kwargs: dict) -> Known:
    """Return what is known of a call, looked up by its arguments' sizes."""
    key: Any = (spec.function, *[_size(value) for value in args])
    if kwargs:
        key = (*key, *[(name, _size(value)) for name, value in kwargs.items()])
    try:
        known = comm.known.get(key)
    except TypeError:  # an argument that has no hash
        return _learn(spec, args, kwargs)
    if known is None:
        if len(comm.known) >= CALLS_KEPT:
            comm.known.clear()
        known = comm.known[key] = _learn(spec, args, kwargs)
    return known


def _learn(spec: Collective, args: tuple, kwargs: dict) -> Known:
    given = dict(zip(spec.names, args, strict=False)) | kwargs
    arrays = [name for name, value in given.items() if hasattr(value, "dtype") and hasattr(value, "nbytes")]
    for name in arrays:
        dtype = given[name].dtype
        if dtype.hasobject or ("op" in spec.names and dtype.kind in _NO_NUMBERS):
            raise ConfigError(f"{spec.label} {name}: an array of numbers is expected, got dtype {dtype}")
    if given.get("x") is not None and "x" not in arrays:  # None: on ranks that have nothing to scatter
        raise ConfigError(f"{spec.label} x: an array is expected, got {type(given['x']).__name__}")
    return Known(*_terms(spec, args, kwargs), len(arrays))


_NO_NUMBERS = "SUmM"  # numpy's kinds of strings and times


def _size(value: Any) -> Any:
    if value.__class__ is np.ndarray:
        return value.size, value.dtype
    if hasattr(value, "dtype"):
        return value.size, value.dtype, value.__class__
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _terms(spec: Collective, args: tuple, kwargs: dict) -> tuple[Any, Any, int]:
    """Return what a template depends on, what ranks must agree on, and the payload's bytes."""
    terms: list[tuple[str, Any]] = []
    agreed: list[tuple[str, Any]] = []
    nbytes = 0
    given = {**spec.defaults, **dict(zip(spec.names, args, strict=False)), **kwargs}
    for name, value in given.items():
        if hasattr(value, "nbytes") and hasattr(value, "dtype"):
            told = f"{value.size} {value.dtype}"
            nbytes = max(nbytes, value.nbytes)
            terms.append((name, told))
            if spec.agree is None or name in spec.agree:
                agreed.append((name, told))
        else:
            value = tuple(value) if isinstance(value, (list, tuple)) else value
            terms.append((name, value))
            if spec.agree is None or name in spec.agree or not isinstance(value, tuple) and value is not None:
                agreed.append((name, value))
    return tuple(terms), tuple(agreed), nbytes
