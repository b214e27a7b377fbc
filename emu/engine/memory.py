"""Typed views of the engine's state for compiled code; see `layout`.

Compiled code is cached on disk. Numba looks only at the file of the function it caches; `entry` makes it
look at every file of the engine, so that a change in one of them is never met by stale code.
"""

import operator
import os
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, njit, types
from numba.core import caching
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, models, register_model

from emu.engine import layout as L

FOLDER = Path(__file__).parent


def _engine_stamp() -> tuple:
    """Return sizes and times of all files of the engine."""
    return tuple((f.name, f.stat().st_mtime, f.stat().st_size) for f in sorted(FOLDER.glob("*.py")))


def _stamped(locator: Any) -> Any:
    class Stamped(locator):
        def get_source_stamp(self):
            return _engine_stamp()

        @classmethod
        def from_function(cls, py_func, py_file):
            if os.path.dirname(os.path.abspath(py_file)) != str(FOLDER):
                return None
            return super().from_function(py_func, py_file)

    return Stamped


class _EngineCache(caching.CompileResultCacheImpl):
    _locator_classes = [_stamped(c) for c in (
        caching.UserProvidedCacheLocator, caching.InTreeCacheLocator, caching.UserWideCacheLocator)]


class _EngineFunctionCache(caching.FunctionCache):
    _impl_class = _EngineCache


def entry(signature: str):
    """Compile a function that Python calls, once per change of any file of the engine."""

    def wrap(function):
        dispatcher = njit(error_model="numpy", nogil=True)(function)
        dispatcher._cache = _EngineFunctionCache(function)
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return wrap


_CODES = {"i": types.int64, "f": types.float64}


def inner(arguments: str, inline: bool = False):
    """Compile a function for one kind of call only: "i" integer, "f" float, each 64 bits wide.

    Numba would compile it again for each width of integer that some caller happens to hold. Nothing is
    compiled before an `entry` needs it. A call of a small function costs as much as what it does: `inline` those
    that every message passes.
    """

    def wrap(function):
        dispatcher = njit(
            no_cpython_wrapper=True, no_cfunc_wrapper=True, error_model="numpy", forceinline=inline
        )(function)
        ask = dispatcher.get_call_template

        def once(args, kws):
            if not dispatcher.overloads:
                dispatcher.compile(tuple(_CODES[code] for code in arguments))
                dispatcher.disable_compile()
            return ask(args, kws)

        dispatcher.get_call_template = once
        return dispatcher

    return wrap


_WORD = ir.IntType(64)


class View(types.Type):
    """An array of the state as compiled code sees it: a pointer. Who indexes it has checked, from 0 on."""

    def __init__(self, dtype: Any):
        self.dtype = dtype
        super().__init__(name=f"View({dtype})")


@register_model(View)
class _ViewModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any):
        super().__init__(dmm, fe_type, ir.IntType(8).as_pointer())


@infer_global(operator.getitem)
class _Read(AbstractTemplate):
    key = operator.getitem

    def generic(self, args, kws):
        if isinstance(args[0], View) and isinstance(args[1], types.Integer):
            return signature(args[0].dtype, args[0], types.int64)
        return None


@infer_global(operator.setitem)
class _Write(AbstractTemplate):
    key = operator.setitem

    def generic(self, args, kws):
        if isinstance(args[0], View) and isinstance(args[1], types.Integer):
            return signature(types.none, args[0], types.int64, args[0].dtype)
        return None


def _place(context, builder, view, data, index):
    """Return the pointer to an entry of a view."""
    typed = builder.bitcast(data, context.get_data_type(view.dtype).as_pointer())
    return builder.gep(typed, [index])


@lower_builtin(operator.getitem, View, types.int64)
def _lower_read(context, builder, sig, args):
    place = _place(context, builder, sig.args[0], *args)
    return context.data_model_manager[sig.return_type].load_from_data_pointer(builder, place)


@lower_builtin(operator.setitem, View, types.int64, types.Any)
def _lower_write(context, builder, sig, args):
    data, index, value = args
    place = _place(context, builder, sig.args[0], data, index)
    builder.store(context.data_model_manager[sig.args[2]].as_data(builder, value), place)


@intrinsic
def prefetch(typingctx, view, index, line):
    """Ask for line number `line` of an entry of a view to be in the nearest cache soon."""

    def codegen(context, builder, sig, args):
        data, index, line = args
        place = builder.bitcast(_place(context, builder, view, data, index), ir.IntType(8).as_pointer())
        place = builder.gep(place, [builder.mul(line, _WORD(L.CACHE_LINE))])
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer(), flag, flag, flag])
        function = builder.module.globals.get("llvm.prefetch.p0i8") or ir.Function(
            builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [place, flag(0), flag(3), flag(1)])  # to read, to keep, data
        return context.get_dummy_value()

    if not isinstance(view, View):
        return None
    return types.none(view, types.int64, types.int64), codegen


def _view(slot: int, dtype):
    """Make the function that views slot `slot` of the table at an address as an array of `dtype`."""
    view_type = View(from_dtype(np.dtype(dtype)))

    @intrinsic
    def view(typingctx, table):
        def codegen(context, builder, signature, args):
            words = builder.inttoptr(args[0], _WORD.as_pointer())
            address = builder.load(builder.gep(words, [_WORD(slot)]))
            address.set_metadata("invariant.load", builder.module.add_metadata([]))  # until compiled code returns
            return builder.inttoptr(address, ir.IntType(8).as_pointer())

        return view_type(types.int64), codegen

    return view


lanes = _view(L.T_LANE, L.LANE)
messages = _view(L.T_MSG, L.MSG)
links = _view(L.T_LINK, L.LINK)
fans = _view(L.T_FAN, L.FAN)
connections = _view(L.T_TCP, L.CONNECTION)
ports = _view(L.T_PORT, L.PORT)
losses = _view(L.T_LOST, L.LOST)
shuffle = _view(L.T_SHUFFLE, np.int32)
window_log = _view(L.T_WINDOW_LOG, L.WINDOW)
queue_log = _view(L.T_QUEUE_LOG, L.QUEUE)
routes = _view(L.T_ROUTE, L.ROUTE)
channels = _view(L.T_CHANNEL, L.CHANNEL)
channel_hash = _view(L.T_CHANNEL_HASH, np.int32)
requests = _view(L.T_REQUEST, np.float64)
request_peers = _view(L.T_REQUEST_PEER, np.int32)  # source and tag of each received message
heap = _view(L.T_HEAP, L.EVENT)
queues = _view(L.T_QUEUE, L.EVENT)
queue_ends = _view(L.T_QUEUE_ENDS, np.int64)
queue_times = _view(L.T_QUEUE_TIMES, np.float64)  # of each queue's last event, then of each one's first; the heap's
rows = _view(L.T_ROWS, L.ROW)
row_ids = _view(L.T_ROW_ID, np.int32)
segments = _view(L.T_SEGMENT, L.SEGMENT)
templates = _view(L.T_TEMPLATE, np.int64)
codes = _view(L.T_CODE, np.uint8)  # of lengths that differ between the ranks of a template
lengths = _view(L.T_LENGTH, np.int64)
columns = _view(L.T_COLUMN, np.int32)
groups = _view(L.T_GROUP, np.int64)
members = _view(L.T_MEMBER, np.int32)
spans = _view(L.T_SPAN, L.SPAN)
flows = _view(L.T_FLOW, L.FLOW)
gpus = _view(L.T_GPU, np.float64)
knots = _view(L.T_KNOT, np.float64)
ranks = _view(L.T_RANK, L.RANK)
event_times = _view(L.T_EVENT_TIME, np.float64)
event_waiters = _view(L.T_EVENT_WAITER, np.int32)
counts = _view(L.T_COUNT, np.int64)
reals = _view(L.T_REAL, np.float64)
nodes = _view(L.T_NODE, np.int32)
route_links = _view(L.T_ROUTE_LINKS, np.int32)
flow_set = _view(L.T_SET, np.int32)
fill_heap = _view(L.T_FILL_HEAP, L.EVENT)
touched_links = _view(L.T_TOUCHED, np.int32)
dirty_links = _view(L.T_DIRTY, np.int32)
regroup_links = _view(L.T_REGROUP, np.int32)
new_flows = _view(L.T_NEW, np.int32)
pair_keys = _view(L.T_PAIR_KEY, np.int64)
pair_routes = _view(L.T_PAIR_ROUTE, np.int32)
fault_table = _view(L.T_FAULT, np.float64)
pauses = _view(L.T_PAUSE, np.float64)
host_routes = _view(L.T_HOST_ROUTE, np.int32)
