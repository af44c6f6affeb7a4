"""How a function of the array API runs: it records during a trace, and computes on concrete arrays.

Small NumPy arrays are computed by NumPy, since compiling for their ranks, types and extents would take far longer. So
are arrays of any size, of CuPy too, where a trace would record a call of the library anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.frontend.fuse import FusedFunction
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.nested_lists import leaves_of
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.runtime.devices import arrays

FEWEST_COMPILED_ELEMENTS = 1 << 16
"""A call on NumPy arrays with fewer elements in all is computed by NumPy: it takes less than 1 ms, compiling 20 ms."""

_NUMBERS = "biufc"
"""The kinds of NumPy's dtypes that NumPy computes with; bfloat16 is of another kind."""


def contains_traced(values: Any) -> bool:
    """Whether a sequence, or a list or tuple in it, holds a traced value or a symbolic size."""
    return any(isinstance(leaf, (Traced, SymbolicSize)) for leaf in leaves_of(values))


def recorder_for(*values: Any) -> Recorder | None:
    """Returns the recorder of the trace in progress, or of the traced values; None outside of a trace."""
    recorder = current.get()
    if recorder is None and contains_traced(values):
        recorder = traced_ops.recorder_of([v for v in values if isinstance(v, Traced)])
    return recorder


def _is_computed_by_library(leaves: Iterator[Any], of_any_size: bool) -> bool:
    elements = 0
    for leaf in leaves:
        kind = arrays.kind_of(leaf)
        if kind == "cupy" and of_any_size:
            continue
        if kind is None and not isinstance(leaf, np.generic):
            continue
        if kind not in (None, "numpy") or leaf.dtype.kind not in _NUMBERS or not leaf.dtype.isnative:
            return False
        elements += leaf.size
    return of_any_size or elements < FEWEST_COMPILED_ELEMENTS


def _computed(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Calls the function on concrete arrays.

    The result shares memory with no argument, as one of a kernel, except with `copy=False`.
    """
    with np.errstate(all="ignore"):
        result = function(*arguments, **keywords)
    if keywords.get("copy") is False:
        return result
    passed = [leaf for leaf in leaves_of([*arguments, *keywords.values()]) if isinstance(leaf, np.ndarray)]
    if isinstance(result, tuple):
        results = [_of_its_own(result_array, passed) for result_array in result]
        return type(result)(*results) if hasattr(result, "_fields") else tuple(results)
    if isinstance(result, list):
        return [_of_its_own(result_array, passed) for result_array in result]
    return _of_its_own(result, passed)


def _of_its_own(result: Any, passed: list[Any]) -> Any:
    if isinstance(result, np.generic):
        return np.asarray(result)
    if not isinstance(result, np.ndarray) or any(result is array for array in passed):
        return result
    return result.copy() if any(np.may_share_memory(result, array) for array in passed) else result


def standard(function: Callable[..., Any], *, by_library: bool = False) -> Callable[..., Any]:
    """Returns a function of the namespace: it records during a trace, and computes outside of one.

    by_library: whether a trace records a library call for it, so that concrete arrays of any size go to the library.
    """

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    fused_function: FusedFunction[..., Any] | None = None

    def fused() -> FusedFunction[..., Any]:
        nonlocal fused_function
        if fused_function is None:
            fused_function = FusedFunction(functools.wraps(function)(recorded))
        return fused_function

    @source.hides_own_frames
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        call_arguments = [*arguments, *keywords.values()]
        if current.get() is not None or contains_traced(call_arguments):
            positional, named = [_lift(a) for a in arguments], {k: _lift(a) for k, a in keywords.items()}
            return as_arrays(function(*positional, **named), [*positional, *named.values()])
        if not _is_computed_by_library(leaves_of(call_arguments), by_library):
            return fused()(*arguments, **keywords)
        try:
            return _computed(function, arguments, keywords)
        except (TypeError, ValueError, IndexError):
            fused()(*arguments, **keywords)  # raises with the user's line and a hint
            raise

    return call


def as_arrays(result: Any, passed: list[Any]) -> Any:
    """Makes new traced results without axes arrays, as outside of a trace, where NumPy's functions give scalars."""
    operands = set(map(id, leaves_of(passed)))
    for leaf in leaves_of([result]):
        if isinstance(leaf, Traced) and leaf.weak is None and id(leaf) not in operands and not leaf.value.shape:
            leaf.own_memory()
    return result


def _lift(value: Any) -> Any:
    """Captures a concrete array during a trace, so that ops on it are recorded."""
    if arrays.kind_of(value) is not None:
        return traced_ops.as_traced(value)
    if isinstance(value, (list, tuple)) and any(arrays.kind_of(v) is not None for v in value):
        return type(value)([_lift(v) for v in value])
    return value
