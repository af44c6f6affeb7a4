"""The table behind `__array_function__`: NumPy's functions on traced values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tracefuse.caches import memoized
from tracefuse.errors import DtypeError, UnsupportedError
from tracefuse.frontend.numpy_api.algebra import calculus, coefficients, eigenvalues, norms, products
from tracefuse.frontend.numpy_api.arrangement import (
    grids,
    inserted_elements,
    moving_elements,
    packed_bits,
    padding,
    shapes,
    shared_memory,
    strided_views,
)
from tracefuse.frontend.numpy_api.hints import refusals
from tracefuse.frontend.numpy_api.library_calls import whole_array_calls
from tracefuse.frontend.numpy_api.protocols import elementwise
from tracefuse.frontend.numpy_api.registration.registry import functions
from tracefuse.frontend.numpy_api.selecting import data_decided, element_writes, selection
from tracefuse.frontend.numpy_api.statistics import counting, nan_reductions, order_statistics, reductions
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.array_protocols import array_of_object
from tracefuse.frontend.tracer.array_ops.constant_arrays import recorded_constants
from tracefuse.frontend.tracer.array_ops.state_calls import NOT_OF_STATE, call_on_state
from tracefuse.frontend.tracer.array_ops.traced_ops import missing
from tracefuse.frontend.tracer.effects.caught_errors import handler_around
from tracefuse.frontend.tracer.effects.numpy_errors import raised_by_numpy
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages, call_or_refuse
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced

_MODULES = (
    whole_array_calls, elementwise, reductions, shapes, moving_elements, products, nan_reductions, order_statistics,
    calculus, coefficients, grids, inserted_elements, packed_bits, padding, selection, norms, counting, element_writes,
    eigenvalues, data_decided, strided_views, shared_memory,
)  # fmt: skip

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    function: implementation for module in _MODULES for function, implementation in module.FUNCTIONS.items()
}
"""Implementations by NumPy's function object."""


_GIVING_ARRAYS = {
    np.copy, np.ones_like, np.zeros_like, np.empty_like, np.full_like, np.where, np.select, np.tensordot, np.piecewise,
    np.isin, np.i0, np.pad, np.real_if_close, np.broadcast_to, np.broadcast_arrays, np.linalg.tensordot, np.block,
    np.tile, np.expand_dims, np.fft.fftn, np.fft.ifftn, np.fft.fft2, np.fft.ifft2, np.apply_along_axis,
}  # fmt: skip
"""Functions whose results without axes are arrays; those of others are NumPy's scalars."""
_OF_OWN_KIND = functions("astype")
"""Functions whose results without axes are arrays of arrays, and scalars of scalars."""
_METHODS_OF_SCALARS = {
    np.sum, np.prod, np.max, np.min, np.amax, np.amin, np.any, np.all, np.mean, np.var, np.std, np.argmax, np.argmin,
    np.round, np.around, np.clip, np.take, np.choose,
}  # fmt: skip
"""Functions that call the method of a NumPy scalar, which returns a scalar also for an array of `out=`."""
_QUANTILES = {np.quantile, np.percentile, np.nanquantile, np.nanpercentile, np.median, np.nanmedian}
"""Functions whose results without axes are arrays if they get weights, or keep the axes."""
_GIVING_VIEWS = {
    np.reshape, np.ravel, np.transpose, np.squeeze, np.expand_dims, np.swapaxes, np.moveaxis, np.rollaxis, np.diagonal,
    np.atleast_1d, np.atleast_2d, np.atleast_3d, np.real, np.imag, np.diag, np.flip, np.rot90, np.matrix_transpose,
    np.permute_dims, np.einsum, np.lib.stride_tricks.sliding_window_view,
}  # fmt: skip
"""Functions whose results may share the memory of an argument."""


def call(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Records a call of a NumPy function that is not a ufunc. Raises UnsupportedError with a hint for others.

    A library function of captured state alone is a step of the prologue: it runs again only when that state changes.
    A call that cannot be recorded is a step of the prologue if it depends on captured state alone. Else it is repeated
    with the elements of those operands that depend on no argument, or runs between two stages of a call. Functions that
    write elements are only recorded. Linear algebra in a `try` statement, which may raise for some matrices, runs
    between two stages, so that the handler runs where it does in NumPy.
    """
    arguments = tuple(map(array_of_object, arguments))
    keywords = {key: array_of_object(one) for key, one in keywords.items()}
    keywords = dict(reductions.named_parameters(getattr(function, "__name__", ""), keywords))
    if range in map(type, (*arguments, *keywords.values())):
        arguments, keywords = _without_ranges(function, arguments, keywords)
    _check_axis(function, arguments, keywords)
    is_writing = function in element_writes.FUNCTIONS or _writes(function, arguments, keywords)
    is_new = not is_writing and not whole_array_calls.returns_operand(function, arguments, keywords)
    if function in whole_array_calls.LIBRARY_FUNCTIONS and is_new:
        result = call_on_state(function, arguments, keywords)
        if result is not NOT_OF_STATE:
            return result
        if function.__module__ == "numpy.linalg" and handler_around() == "try":
            with suppress(UnsupportedError):
                return call_between_stages(function, f"np.linalg.{function.__name__}", arguments, keywords)
    if is_writing or function in shared_memory.FUNCTIONS:  # nothing else writes into an array, or knows its memory
        return _recorded(function, arguments, keywords)
    try:
        return _recorded(function, arguments, keywords)
    except (UnsupportedError, TypeError) as error:
        refusal = error
    result = call_on_state(function, arguments, keywords)
    if result is not NOT_OF_STATE:
        return result
    known = _with_known_elements([arguments, keywords])
    if known is not None:
        try:
            return recorded_constants(function(*known[0], **known[1]), (*arguments, *keywords.values()))
        except (UnsupportedError, TypeError):
            pass  # other operands depend on arguments
    if function in _GIVING_VIEWS or function not in FUNCTIONS or not isinstance(refusal, UnsupportedError):
        raise refusal
    return call_or_refuse(function, f"np.{function.__name__}", arguments, keywords, refusal)


def _check_axis(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> None:
    """Raises DtypeError for an axis of a type that NumPy's function does not take: some take truth values, or lists."""
    parameters = _signature_of(function).parameters
    axis = keywords.get("axis")
    if axis is None and "axis" in parameters:
        axis = dict(zip(parameters, arguments, strict=False)).get("axis")
    is_array = isinstance(axis, np.ndarray) or (isinstance(axis, Traced) and axis.weak in (None, "int"))
    is_usual = type(axis) in (int, tuple) or is_array or isinstance(axis, (np.integer, SymbolicSize))
    if axis is None or is_usual:
        return
    raised = raised_by_numpy(function, arguments, keywords)
    if isinstance(raised, TypeError):
        raise DtypeError(str(raised), hint="give an integer, or a tuple of integers, as axis")


def _without_ranges(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Arguments with tuples in place of ranges, but for an axis that NumPy takes as a number or a tuple alone."""
    named = dict(zip(_signature_of(function).parameters, arguments, strict=False)) | keywords
    axis = None if function in (np.roll, np.flip) else named.get("axis")

    def without(one: Any) -> Any:
        return tuple(one) if type(one) is range and one is not axis else one

    return tuple(map(without, arguments)), {name: without(one) for name, one in keywords.items()}


def _writes(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> bool:
    """Whether a call writes into a traced array: that of `out`, or with `copy=False` its argument."""
    if keywords.get("copy") is False:
        return True
    out = keywords.get("out")
    if out is None and len(arguments) > 1 and "out" in (parameters := _signature_of(function).parameters):
        position = list(parameters).index("out")
        takes_all = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
        out = arguments[position] if position < len(arguments) and not takes_all else None
    return holds_traced(out)


def _gives_array(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> bool:
    """Whether NumPy returns an array also where the result has no axes."""
    if function in (np.reshape, np.transpose, np.squeeze):  # of a number of Python
        return getattr(arguments[0], "weak", None) is not None
    if function in _OF_OWN_KIND:
        return not arguments[0].is_immutable
    if function is np.einsum:
        optimize = keywords.get("optimize", False)
        return optimize is not False and products.ends_in_pair(arguments, optimize)
    if function not in _QUANTILES:
        return function in _GIVING_ARRAYS
    given = _signature_of(function).bind(*arguments, **keywords).arguments
    keepdims = given.get("keepdims")
    return given.get("weights") is not None or (keepdims is not np._NoValue and bool(keepdims))


@memoized("signatures of NumPy's functions", key="function", most=1024, clears=False)
def _signature_of(function: Any) -> inspect.Signature:
    """Returns the signature of a function; an empty one for a function in C that has none."""
    try:
        return inspect.signature(function)
    except ValueError:
        return inspect.Signature()


def _with_known_elements(values: Any) -> Any:
    """Nested values with traced ones replaced by their elements where these are known; None where none is."""
    if isinstance(values, Traced):
        return values.recorder.contents.of(values.number, None)
    if isinstance(values, dict):
        inner = _with_known_elements(list(values.values()))
        return None if inner is None else dict(zip(values, inner, strict=True))
    if not isinstance(values, (list, tuple)):
        return None
    known = [_with_known_elements(value) for value in values]
    if all(value is None for value in known):
        return None
    return type(values)(old if new is None else new for old, new in zip(values, known, strict=True))


def _recorded(function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    implementation = FUNCTIONS.get(function)
    if implementation is None:
        name = getattr(function, "__name__", str(function))
        module = getattr(function, "__module__", "numpy").replace("numpy", "np")
        raise missing(f"{module}.{name}", refusals.INSTEAD.get(name, refusals.OUTSIDE))
    result = implementation(*arguments, **keywords)
    if function in _METHODS_OF_SCALARS:
        result = reductions.as_result_of_method(result, arguments[0] if arguments else keywords.get("a"))
    gives_arrays = _gives_array(function, arguments, keywords)
    if function in _GIVING_VIEWS or any(result is argument for argument in (*arguments, *keywords.values())):
        return traced_ops.as_written(result) if gives_arrays else result
    of_kind = traced_ops.as_written if gives_arrays else traced_ops.as_scalar
    return type(result)(map(of_kind, result)) if type(result) in (list, tuple) else of_kind(result)
