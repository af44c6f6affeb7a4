"""NumPy's creation functions while a function is traced: what they make is recorded, can be written, and fuses.

They are called in the clone that a trace runs. Sizes may be symbolic. What depends on no argument keeps its elements
known, where Python asks for them. Types that are not traced, and calls outside of a trace, are left to NumPy.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, ShapeError
from tracefuse.frontend.numpy_api.arrangement import grids, strided_views
from tracefuse.frontend.numpy_api.library_calls import random_calls, sampled_functions
from tracefuse.frontend.numpy_api.protocols.list_arguments import TAKING_LISTS
from tracefuse.frontend.numpy_api.registration import array_memory
from tracefuse.frontend.numpy_api.twins import (
    element_iterators,
    inner_loop_iterators,
    scipy_calls,
    tree_functions,
    window_functions,
)
from tracefuse.frontend.numpy_api.twins.even_ranges import are_floats, between_ends, floats, integers
from tracefuse.frontend.numpy_api.twins.index_grids import RecordedGrid, RecordedJoin
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.array_protocols import array_of_object
from tracefuse.frontend.tracer.array_ops.assignment import array_of, filling
from tracefuse.frontend.tracer.array_ops.constant_arrays import constant_calls, recorded_constant
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.array_ops.masked_elements import with_elements
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, iota, recorder_of
from tracefuse.frontend.tracer.record.assigned_numbers import checked_entries, without_none
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, extent_of, wrap
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced
from tracefuse.ir.extents import maximum

_RANDOM = random_calls.recording_functions()
RECORDING: dict[int, Any] = dict(TAKING_LISTS)
"""Recording functions, and objects such as `np.mgrid`, by the id of what each replaces in NumPy."""


def recording_twins(on_host: bool) -> Mapping[int, Any]:
    """The recording functions for a trace on the host or on a GPU, of the modules that are loaded."""
    twins: dict[int, Any] = dict(tree_functions.tree_twins())
    if not on_host:
        scipy_twins = scipy_calls.recording_functions("cupyx.scipy")
        replacements = {**RECORDING, **random_calls.functions_of_cupy(), **scipy_twins, **twins}
        if "cupy" in sys.modules:
            replacements.update(twins_of(sys.modules["cupy"]))
        return replacements
    of_scipy = {**sampled_functions.recording_functions(), **scipy_calls.recording_functions("scipy")}
    return {**RECORDING, **_RANDOM, **of_scipy, **twins}


def module_names(on_host: bool) -> tuple[str, ...]:
    """The modules whose functions `recording_twins` replaces, and those that lead to them."""
    if not on_host:
        names = ("numpy", "cupy", "cupy.random", *scipy_calls.module_names("cupyx.scipy"))
    else:
        names = ("numpy", "numpy.random", "numpy.fft", "numpy.linalg", "numpy.lib", "numpy.lib.stride_tricks")
        names = (*names, *scipy_calls.module_names("scipy"), *sampled_functions.MODULE_NAMES)
    return tuple(dict.fromkeys((*names, *tree_functions.MODULES)))


def _replaces(original: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers what records in place of a function of NumPy, which is called where nothing can be recorded."""

    def register(record: Callable[..., Any]) -> Callable[..., Any]:
        RECORDING[id(original)] = _recording(original, record)
        return record

    return register


def _recording(original: Callable[..., Any], record: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that records in place of `original`, which it calls where nothing can be recorded."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        recorder, like = current.get(), keywords.pop("like", None)
        if recorder is None or not (like is None or isinstance(like, Traced)):
            return original(*arguments, **keywords, like=like)
        try:
            result = record(recorder, *map(with_elements, arguments), **keywords)
        except DtypeError:
            if holds_traced((arguments, keywords)):
                raise
            return original(*arguments, **keywords)
        if isinstance(result, Traced):
            result.own_memory()
        return result

    placed = traced_ops.located(call)
    functools.update_wrapper(placed, original, assigned=("__name__", "__doc__", "__module__"))
    placed.record = record  # type: ignore[attr-defined]
    return placed


def twins_of(module: ModuleType) -> dict[int, Callable[..., Any]]:
    """Returns recording functions by the id of the creation function of CuPy, or of a like module, that each replaces.

    A list of numbers becomes an array of the module, which is copied so that it can be written.
    """
    twins = {}
    for placed in RECORDING.values():
        record, original = getattr(placed, "record", None), getattr(module, placed.__name__, None)
        if record is not None and original is not None:
            twins[id(original)] = _recording(original, _of_module(original, record))
    return twins


def _of_module(original: Callable[..., Any], record: Callable[..., Any]) -> Callable[..., Any]:
    def call(recorder: Recorder, *arguments: Any, **keywords: Any) -> Any:
        if record not in _READING or holds_traced((arguments, keywords)):
            return record(recorder, *arguments, **keywords)
        result = original(*arguments, **keywords)
        return traced_ops.copy(recorder.capture(result)) if getattr(result, "shape", ()) else result

    return call


def _shape(shape: Any) -> Any:
    if isinstance(shape, Traced) and not shape.extents:  # first: the class of a traced array is numpy.ndarray
        return (shape,)
    return tuple(map(int, shape)) if isinstance(shape, (np.ndarray, range)) else shape


def filled(recorder: Recorder, shape: Any, value: Any, dtype: Any) -> Any:
    """An array of `shape` with every element `value`; dtype None: the type of the value."""
    target = None if dtype is None else dtype_of(dtype)
    value = value if target is None else without_none(value, target)
    extents = shaping.new_shape(_shape(shape), recorder)
    if isinstance(value, (bool, int, float, complex, SymbolicSize)):
        if target is not None and isinstance(value, complex):
            traced_ops.warn_of_lost_parts(dtypes.complex128, target)
        return recorder.movement("full", [value], shape=extents, dtype=target)
    if isinstance(value, Traced) and not value.extents:
        return recorder.movement("full", [value], shape=extents, dtype=target)
    first = traced_ops.as_tensor(array_of(value) if isinstance(value, (list, tuple)) else value)
    return traced_ops.copy(filling(first, extents, target or first.value.dtype, first))


@_replaces(np.zeros)
def zeros(recorder: Recorder, shape: Any, dtype: Any = float, order: str = "C", **more: Any) -> Any:
    return views.in_order(filled(recorder, shape, 0, float if dtype is None else dtype), order)


@_replaces(np.ones)
def ones(recorder: Recorder, shape: Any, dtype: Any = None, order: str = "C", **more: Any) -> Any:
    return views.in_order(filled(recorder, shape, 1, float if dtype is None else dtype), order)


@_replaces(np.empty)
def empty(recorder: Recorder, shape: Any, dtype: Any = float, order: str = "C", **more: Any) -> Any:
    """Zeros: the elements of an empty array may be anything."""
    return views.in_order(filled(recorder, shape, 0, float if dtype is None else dtype), order)


def _new_array(shape: Any, dtype: Any = float, buffer: Any = None, *memory: Any, **more: Any) -> Any:
    """Calls of `np.ndarray`: an empty array, or a view of a buffer."""
    if buffer is None and not memory and "strides" not in more:
        return RECORDING[id(np.empty)](shape, dtype)
    return np.ndarray(shape, dtype, buffer, *memory, **more)


CALLED: Mapping[int, Callable[..., Any]] = {id(np.ndarray): _new_array}
"""Recording twins of types, in calls, by the id of the type."""


@_replaces(np.full)
def full(recorder: Recorder, shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", **more: Any) -> Any:
    return views.in_order(filled(recorder, shape, fill_value, dtype), order)


@_replaces(np.arange)
def arange(recorder: Recorder, *bounds: Any, dtype: Any = None, **more: Any) -> Any:
    names = {name: more.pop(name) for name in ("start", "stop", "step") if name in more}
    start, stop, step = (*bounds, None, None, None)[:3]
    start, stop, step = names.get("start", start), names.get("stop", stop), names.get("step", step)
    if stop is None:
        start, stop = 0, start
    start, stop, step = map(as_size, (0 if start is None else start, stop, 1 if step is None else step))
    if dtype is not None and dtype_of(dtype).kind == "bool" and stop - start > 2 * step:
        raise DtypeError("arange() is only supported for booleans when the result has at most length 2",
                         hint="compare np.arange(n) with a number", where=source.user_line())  # fmt: skip
    if all(isinstance(v, (int, SymbolicSize)) and not isinstance(v, bool) for v in (start, stop, step)) and step != 0:
        return integers(recorder, start, stop, step, dtype)
    if dtype is None and are_floats(start, stop, step) and step != 0:
        return floats(recorder, start, stop, step)
    concrete: Any = [
        v if isinstance(v, (int, float, np.generic)) else traced_ops.as_number(v) for v in (start, stop, step)
    ]
    return recorded_constant(recorder, np.arange(*concrete, dtype=dtype))


@_replaces(np.linspace)
def linspace(recorder: Recorder, start: Any, stop: Any, num: Any = 50, *arguments: Any, **keywords: Any) -> Any:
    num = as_size(num)
    if holds_traced((start, stop, num)):
        return grids.linspace(start, stop, num, *arguments, **keywords)
    return recorded_constant(recorder, np.linspace(start, stop, operator.index(num), *arguments, **keywords))


for _function, _between in ((np.logspace, grids.logspace), (np.geomspace, grids.geomspace)):
    _replaces(_function)(between_ends(_function, _between))

for _window in window_functions.WINDOWS:
    _replaces(_window)(window_functions.recorded(_window))


@_replaces(np.fft.fftfreq)
def fftfreq(recorder: Recorder, n: Any, d: Any = 1.0, **more: Any) -> Any:
    """The frequencies k / (n d), with the negative k after the others."""
    k = integers(recorder, 0, n, 1, np.int64)
    return np.where(k < (n - 1) // 2 + 1, k, k - n) * (1.0 / (n * d))


@_replaces(np.fft.rfftfreq)
def rfftfreq(recorder: Recorder, n: Any, d: Any = 1.0, **more: Any) -> Any:
    """The frequencies k / (n d) up to the middle."""
    return integers(recorder, 0, n // 2 + 1, 1, np.int64) * (1.0 / (n * d))


_replaces(np.ndenumerate)(element_iterators.ndenumerate)
_replaces(np.nditer)(inner_loop_iterators.nditer)
_replaces(np.broadcast)(inner_loop_iterators.broadcast)


@_replaces(np.eye)
def eye(
    recorder: Recorder, N: Any, M: Any = None, k: Any = 0, dtype: Any = float, order: str = "C", **more: Any
) -> Any:
    rows, columns = _coordinates(recorder, N, N if M is None else M)
    return traced_ops.astype(apply("eq", apply("add", rows, _offset(k)), columns), dtype or float)


@_replaces(np.identity)
def identity(recorder: Recorder, n: Any, dtype: Any = None, **more: Any) -> Any:
    return eye(recorder, n, dtype=dtype or float)


@_replaces(np.tri)
def tri(recorder: Recorder, N: Any, M: Any = None, k: Any = 0, dtype: Any = float, **more: Any) -> Any:
    rows, columns = _coordinates(recorder, *(_not_negative(recorder, one) for one in (N, N if M is None else M)))
    return traced_ops.astype(apply("ge", apply("add", rows, _offset(k)), columns), dtype or float)


def _not_negative(recorder: Recorder, size: Any) -> Any:
    """Returns a size; 0 for a negative one."""
    extent = extent_of(size)
    return size if extent is None else wrap(maximum(0, extent), recorder)


def _offset(k: Any) -> Any:
    return size if isinstance(size := as_size(k), SymbolicSize) else operator.index(size)


def _coordinates(recorder: Recorder, rows: Any, columns: Any) -> tuple[Any, Any]:
    first, second = (iota(recorder, 0, 1, _length(recorder, size), dtypes.int64) for size in (rows, columns))
    return shaping.expand_dims(first, 1), shaping.expand_dims(second, 0)


def _length(recorder: Recorder, size: Any) -> Any:
    (extent,) = shaping.new_shape(size, recorder)
    return extent


@_replaces(np.indices)
def indices(recorder: Recorder, dimensions: Any, dtype: Any = int, sparse: bool = False) -> Any:
    extents = shaping.new_shape(tuple(dimensions), recorder)
    rank, lines = len(extents), []
    for axis, extent in enumerate(extents):
        places = iota(recorder, 0, 1, extent, dtype_of(dtype))
        line = shaping.expand_dims(places, tuple(k for k in range(rank) if k != axis)) if rank > 1 else places
        lines.append(line if sparse else traced_ops.copy(shaping.broadcast_to(line, recorder.sizes(extents))))
    stacked = shaping.stack(lines) if lines and not sparse else np.zeros(0, dtype_of(dtype).numpy)
    return tuple(lines) if sparse else stacked


@_replaces(np.fromfunction)
def fromfunction(
    recorder: Recorder, function: Callable[..., Any], shape: Any, *, dtype: Any = float, **keywords: Any
) -> Any:
    """The function called once, with the coordinates of every element."""
    places = indices(recorder, tuple(shape), dtype)
    return function(*(places[axis] for axis in range(len(shape))), **keywords)


@_replaces(np.meshgrid)
def meshgrid(recorder: Recorder, *xi: Any, **keywords: Any) -> Any:
    if holds_traced(xi):
        return grids.meshgrid(*xi, **keywords)
    return type(result := np.meshgrid(*xi, **keywords))(recorded_constant(recorder, array) for array in result)


@_replaces(np.array)
def array(recorder: Recorder, object: Any, dtype: Any = None, *, copy: Any = True, ndmin: int = 0, **more: Any) -> Any:
    if not holds_traced(object := array_of_object(object)):
        return recorded_constant(recorder, np.array(object, dtype, copy=copy, ndmin=ndmin, **more))
    result = _of_traced(object, dtype)
    order = more.get("order") or "K"
    result = (
        views.in_order(traced_ops.copy(result, order), order, [result])
        if copy
        else array_memory.with_order(result, order)
    )
    missing = ndmin - len(result.extents)
    return shaping.expand_dims(result, tuple(range(missing))) if missing > 0 else result


@_replaces(np.fromiter)
def fromiter(recorder: Recorder, iter: Any, dtype: Any, count: Any = -1, **more: Any) -> Any:
    number = operator.index(count)
    entries = [*itertools.islice(iter, None if number < 0 else number)]
    if not holds_traced(entries):
        return recorded_constant(recorder, np.fromiter(entries, dtype, number, **more))
    if len(entries) < number:
        raise ShapeError(
            f"iterator too short: Expected {number} but iterator had only {len(entries)} items.", hint="leave count out"
        )
    if any(np.ndim(entry) for entry in entries):
        raise ShapeError("setting an array element with a sequence.", hint="write np.array([*values])")
    return _of_traced(entries, dtype)


@_replaces(np.ascontiguousarray)
def ascontiguousarray(recorder: Recorder, a: Any, dtype: Any = None, **more: Any) -> Any:
    array: Any = asarray(recorder, a, dtype, **more)
    if not isinstance(array, Traced):
        return np.ascontiguousarray(array)
    return array_memory.with_order(array, "C") if array.extents else shaping.reshape(array, (1,))


@_replaces(np.asfortranarray)
def asfortranarray(recorder: Recorder, a: Any, dtype: Any = None, **more: Any) -> Any:
    array: Any = asarray(recorder, a, dtype, **more)
    if not isinstance(array, Traced):
        return np.asfortranarray(array)
    return array_memory.with_order(array, "F") if array.extents else shaping.reshape(array, (1,))


@_replaces(np.require)
def require(recorder: Recorder, a: Any, dtype: Any = None, requirements: Any = None, **more: Any) -> Any:
    wanted = {str(requirement).upper() for requirement in requirements or ()}
    if not holds_traced(a):
        return np.require(a, dtype, requirements, **more)
    return array_memory.required(asarray(recorder, a, dtype), wanted)


_replaces(np.lib.stride_tricks.as_strided)(strided_views.as_strided)


@_replaces(np.asarray)
@_replaces(np.asanyarray)
def asarray(recorder: Recorder, a: Any, dtype: Any = None, order: Any = None, **more: Any) -> Any:
    if not holds_traced(a := array_of_object(a)):
        is_polynomial = getattr(type(a), "__array_ufunc__", a) is None  # its own operators take it
        result = a if is_polynomial else np.asarray(a, dtype, **more)
        return result if is_polynomial or isinstance(a, np.ndarray) else recorded_constant(recorder, result)
    return array_memory.with_order(_of_traced(a, dtype), order or "K")


def _of_traced(value: Any, dtype: Any) -> Any:
    if dtype is not None:
        value = checked_entries(value, dtype_of(dtype), recorder_of((value,)))
    result = array_of(value) if isinstance(value, (list, tuple)) else traced_ops.as_tensor(value)
    result = traced_ops.copy(result) if result.is_immutable else result  # of a scalar of NumPy, which keeps its value
    return result if dtype is None else traced_ops.astype(result, dtype, copy=False)


_READING = (array, asarray, ascontiguousarray, asfortranarray, require)
"""Functions that read their elements from an argument."""


def _line(recorder: Recorder, part: slice) -> Any:
    start, step = 0 if part.start is None else part.start, 1 if part.step is None else part.step
    if isinstance(step, complex):
        return linspace(recorder, start, part.stop, int(abs(step)))
    return arange(recorder, start, part.stop, step)


for _name, _kind in (("mgrid", RecordedGrid), ("ogrid", RecordedGrid), ("r_", RecordedJoin), ("c_", RecordedJoin)):
    RECORDING[id(getattr(np, _name))] = _kind(getattr(np, _name), _name, _line, recorded_constant)

RECORDING.update(constant_calls((np, np.fft, np.linalg, np.lib.stride_tricks), without=(*RECORDING, *_RANDOM)))
