"""NumPy's reductions that ignore NaN, on traced values.

For a slice that holds only NaN, the result is NaN as in NumPy, but without NumPy's warning.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, ScalarError
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.numpy_api.statistics import reductions
from tracefuse.frontend.tracer.array_ops import arithmetic, moments, traced_ops
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_array, as_traced, refuse
from tracefuse.frontend.tracer.values.traced import Traced

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


def fill_nan(a: Any, value: Any) -> Any:
    """Returns `a` with NaN replaced by `value`, and the mask of NaN; the mask is None for types without NaN."""
    x = as_array(a)
    if x.value.dtype.kind not in ("float", "complex"):
        return x, None
    is_nan = apply("isnan", x)
    return apply("where", is_nan, value, x), is_nan


def _counts(x: Any, is_nan: Any, axis: Any, keepdims: Any, where: Any) -> Any:
    """Counts the elements of each slice that are not NaN, as int64."""
    is_counted = apply("eq", x, x) if is_nan is None else apply("logical_not", is_nan)
    where = traced_ops.as_mask(where)
    is_counted = (
        is_counted
        if where is None or where is True or where is np._NoValue
        else apply("logical_and", is_counted, where)
    )
    return traced_ops.reduce("sum", is_counted, axis, np.int64, None, keepdims)


@implements(np.nansum)
def nansum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None) -> Any:  # fmt: skip # noqa: E501
    return traced_ops.reduce("sum", fill_nan(a, 0)[0], axis, dtype, out, keepdims, initial=initial, where=where)


@implements(np.nanprod)
def nanprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None) -> Any:  # fmt: skip # noqa: E501
    return traced_ops.reduce("prod", fill_nan(a, 1)[0], axis, dtype, out, keepdims, initial=initial, where=where)


@implements(np.nancumsum)
def nancumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    return reductions.scan("cumsum", fill_nan(a, 0)[0], axis, dtype, out)


@implements(np.nancumprod)
def nancumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    return reductions.scan("cumprod", fill_nan(a, 1)[0], axis, dtype, out)


def _extreme(name: str, a: Any, axis: Any, out: Any, keepdims: Any, initial: Any, where: Any) -> Any:
    """Returns the extremes of the numbers: of an array as np.fmax finds them, of a list or a scalar as np.max does.

    Of a list or a scalar, NumPy sets the result to NaN where all elements are NaN, whatever the initial value is.
    """
    least = -np.inf if name == "max" else np.inf
    x, is_nan = fill_nan(a, least)
    traced = as_traced(a)
    is_array = isinstance(a, (Traced, np.ndarray)) and not (traced.is_immutable or traced.is_list)
    numbers_of_kind = (float, complex, np.inexact) if x.value.dtype.is_complex else (float, np.floating)
    has_nan = isinstance(initial, numbers_of_kind) and bool(np.isnan(initial))
    if has_nan and x.value.dtype.kind == "bool":
        initial = True  # as NumPy casts it
    where = None if where is True or where is np._NoValue else traced_ops.as_mask(where)
    if is_nan is None:
        return traced_ops.reduce(name, x, axis, None, out, keepdims, initial=initial, where=where)
    has_initial = initial is not None and initial is not np._NoValue
    nothing = initial if is_array and has_nan else np.nan
    if is_array and has_nan:  # an element of NaN, which others replace
        if where is not None:
            x, is_nan, where = np.where(where, x, least), is_nan | np.logical_not(where), None
            x = traced_ops.astype(x, traced.value.dtype, copy=False)
        initial = complex(least, least) if x.value.dtype.is_complex else least
    result = traced_ops.reduce(name, x, axis, None, None, keepdims, initial=initial, where=where)
    if not is_array or has_nan or not has_initial:
        # A maximum of integers of the same size, since loops that also reduce booleans are not vectorized.
        kind: Any = {2: np.int16, 4: np.int32}.get(x.value.dtype.itemsize, np.int64)
        numbers = np.where(is_nan, kind(0), kind(1))
        seen = traced_ops.reduce(
            "max", numbers, axis, None, None, keepdims, initial=0, where=None if is_array else where
        )
        result = apply("where", seen == 0, nothing, result)
    return moments.stored(result, out)


@implements(np.nanmax)
def nanmax(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None) -> Any:  # fmt: skip # noqa: E501
    return _extreme("max", a, axis, out, keepdims, initial, where)


@implements(np.nanmin)
def nanmin(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None) -> Any:  # fmt: skip # noqa: E501
    return _extreme("min", a, axis, out, keepdims, initial, where)


@implements(np.nanargmax)
def nanargmax(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
    return _position("argmax", a, -np.inf, axis, out, keepdims)


@implements(np.nanargmin)
def nanargmin(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
    return _position("argmin", a, np.inf, axis, out, keepdims)


def _position(name: str, a: Any, neutral: float, axis: Any, out: Any, keepdims: Any) -> Any:
    """Returns the positions of extremes. Raises for a slice without numbers, of a function of NumPy arrays."""
    keepdims = keepdims is not np._NoValue and bool(keepdims)
    x, is_nan = fill_nan(a, neutral)
    if is_nan is not None and x.recorder.device is None:
        nothing = traced_ops.reduce("all", is_nan, axis, None, None, keepdims)
        if not traced_ops.holds_everywhere(apply("logical_not", nothing)):
            raise ScalarError("All-NaN slice encountered", hint="test np.isnan(x).all(axis) before")
    return getattr(reductions, name)(x, axis, out, keepdims=keepdims)


@implements(np.nanmean)
def nanmean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = None) -> Any:  # fmt: skip # noqa: E501
    x, is_nan = fill_nan(a, 0)
    if is_nan is None:
        return moments.mean(x, axis, dtype, out, keepdims, where=where)
    _check_inexact(dtype, out)
    count = _counts(x, is_nan, axis, keepdims, where)
    total = traced_ops.reduce("sum", x, axis, dtype, out, keepdims, where=where)
    return moments.stored(moments.divided_by_count(total, count), out)


def _check_inexact(dtype: Any, out: Any) -> None:
    named = {"dtype": None if dtype is None else dtype_of(dtype), "out": None if out is None else dtype_of(out.dtype)}
    for name, kind in named.items():
        if kind is not None and kind.kind not in ("float", "complex"):
            raise DtypeError(f"If a is inexact, then {name} must be inexact, not {kind}", hint="give a float type")


def _variance(a: Any, axis: Any, dtype: Any, out: Any, ddof: Any, keepdims: Any, where: Any) -> Any:
    """The variance; NaN where a slice has at most ddof numbers."""
    x, is_nan = fill_nan(a, 0)
    if is_nan is None:
        return moments.var(x, axis, dtype, out, ddof, keepdims, where=where)
    _check_inexact(dtype, out)
    real_dtype = apply("abs", x).value.dtype  # counts and squares are real, also for complex numbers
    count = traced_ops.astype(_counts(x, is_nan, axis, True, where), real_dtype)
    mean = apply("div", traced_ops.reduce("sum", x, axis, dtype, None, True, where=where), count)
    # NumPy keeps the deviations in the type of the elements, and sums their squares in the type that the caller names.
    deviation = traced_ops.astype(apply("sub", x, mean), x.value.dtype, copy=False)
    deviation = apply("where", is_nan, 0, deviation)
    square = arithmetic.real(apply("mul", deviation, arithmetic.conjugate(deviation)))
    numbers = apply("sub", _counts(x, is_nan, axis, keepdims, where), ddof)
    total = traced_ops.reduce("sum", square, axis, dtype, out, keepdims, where=where)
    return apply("where", apply("gt", numbers, 0), moments.divided_by_count(total, numbers), np.nan)


@implements(np.nanvar)
def nanvar(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False, *, where: Any = None, mean: Any = None, correction: Any = None) -> Any:  # fmt: skip # noqa: E501
    refuse("np.nanvar", mean=mean)
    ddof = moments.freedom_of(ddof, correction)
    return moments.stored(_variance(a, axis, dtype, out, ddof, keepdims, where), out)


@implements(np.nanstd)
def nanstd(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False, *, where: Any = None, mean: Any = None, correction: Any = None) -> Any:  # fmt: skip # noqa: E501
    refuse("np.nanstd", mean=mean)
    ddof = moments.freedom_of(ddof, correction)
    variance = _variance(a, axis, dtype, out, ddof, keepdims, where)
    if out is None:
        return apply("sqrt", variance)
    return into(out, apply("sqrt", traced_ops.astype(variance, out.dtype, copy=False)))
