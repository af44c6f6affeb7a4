"""NumPy's reductions that leave NaN out, on traced values.

Where NumPy warns that a slice holds nothing but NaN, the result is NaN as NumPy's and nothing warns. nanargmax and
nanargmin of such a slice are 0, where NumPy raises.

Knows: NumPy's functions and parameters. Must not know: how values are recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.frontend.numpy_api import reductions
from tracefuse.frontend.numpy_api.registry import Functions
from tracefuse.frontend.tracer import arithmetic, moments, traced_ops
from tracefuse.frontend.tracer.in_place import into
from tracefuse.frontend.tracer.traced_ops import apply, as_array, refuse

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


def filled(a: Any, value: Any) -> Any:
    """`a` with `value` in place of NaN, and where NaN was; None where the type has none."""
    x = as_array(a)
    if x.value.dtype.kind not in ("float", "complex"):
        return x, None
    gone = apply("isnan", x)
    return apply("where", gone, value, x), gone


def _counts(x: Any, gone: Any, axis: Any, keepdims: Any, where: Any) -> Any:
    """How many numbers each slice holds, as int64."""
    there = apply("eq", x, x) if gone is None else apply("logical_not", gone)
    there = there if where is None or where is True or where is np._NoValue else apply("logical_and", there, where)
    return traced_ops.reduce("sum", there, axis, np.int64, None, keepdims)


@implements(np.nansum)
def nansum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None) -> Any:  # fmt: skip # noqa: E501
    return traced_ops.reduce("sum", filled(a, 0)[0], axis, dtype, out, keepdims, initial=initial, where=where)


@implements(np.nanprod)
def nanprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None) -> Any:  # fmt: skip # noqa: E501
    return traced_ops.reduce("prod", filled(a, 1)[0], axis, dtype, out, keepdims, initial=initial, where=where)


@implements(np.nancumsum)
def nancumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    return reductions.scan("cumsum", filled(a, 0)[0], axis, dtype, out)


@implements(np.nancumprod)
def nancumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    return reductions.scan("cumprod", filled(a, 1)[0], axis, dtype, out)


def _extreme(name: str, a: Any, axis: Any, out: Any, keepdims: Any, initial: Any, where: Any) -> Any:
    x, gone = filled(a, -np.inf if name == "max" else np.inf)
    result = traced_ops.reduce(name, x, axis, None, None, keepdims, initial=initial, where=where)
    if gone is not None:
        nothing = traced_ops.reduce("all", gone, axis, None, None, keepdims)
        if initial is None or initial is np._NoValue:
            result = apply("where", nothing, np.nan, result)
    return result if out is None else into(out, result)


@implements(np.nanmax)
def nanmax(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None) -> Any:  # fmt: skip # noqa: E501
    return _extreme("max", a, axis, out, keepdims, initial, where)


@implements(np.nanmin)
def nanmin(a: Any, axis: Any = None, out: Any = None, keepdims: Any = False, initial: Any = None, where: Any = None) -> Any:  # fmt: skip # noqa: E501
    return _extreme("min", a, axis, out, keepdims, initial, where)


@implements(np.nanargmax)
def nanargmax(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
    result = traced_ops.reduce("argmax", filled(a, -np.inf)[0], axis, None, None, keepdims)
    return result if out is None else into(out, result)


@implements(np.nanargmin)
def nanargmin(a: Any, axis: Any = None, out: Any = None, *, keepdims: Any = False) -> Any:
    result = traced_ops.reduce("argmin", filled(a, np.inf)[0], axis, None, None, keepdims)
    return result if out is None else into(out, result)


@implements(np.nanmean)
def nanmean(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = None) -> Any:  # fmt: skip # noqa: E501
    x, gone = filled(a, 0)
    if gone is None:
        return moments.mean(x, axis, dtype, out, keepdims, where=where)
    total = traced_ops.reduce("sum", x, axis, dtype, None, keepdims, where=where)
    count = traced_ops.astype(_counts(x, gone, axis, keepdims, where), total.value.dtype)
    result = apply("div", total, count)
    return result if out is None else into(out, result)


def _deviations(a: Any, axis: Any, dtype: Any, ddof: Any, keepdims: Any, where: Any) -> Any:
    """The variance: NaN where fewer than ddof + 1 numbers are left."""
    x, gone = filled(a, 0)
    if dtype is not None:
        x = traced_ops.astype(x, dtype)
    if x.value.dtype.kind not in ("float", "complex"):
        x = traced_ops.astype(x, np.float64)
    own = apply("abs", x).value.dtype  # what a count and a square are, of complex numbers too
    count = traced_ops.astype(_counts(x, gone, axis, True, where), own)
    mean = apply("div", traced_ops.reduce("sum", x, axis, None, None, True, where=where), count)
    deviation = apply("sub", x, mean)
    if gone is not None:
        deviation = apply("where", gone, 0, deviation)
    square = arithmetic.real(apply("mul", deviation, arithmetic.conjugate(deviation)))
    total = traced_ops.reduce("sum", square, axis, None, None, keepdims, where=where)
    left = traced_ops.astype(_counts(x, gone, axis, keepdims, where), own)
    left = apply("sub", left, ddof)
    return apply("where", apply("gt", left, 0), apply("div", total, left), np.nan)


@implements(np.nanvar)
def nanvar(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False, *, where: Any = None, mean: Any = None, correction: Any = None) -> Any:  # fmt: skip # noqa: E501
    refuse("np.nanvar", mean=mean)
    ddof = ddof if correction is None or correction is np._NoValue else correction
    result = _deviations(a, axis, dtype, ddof, keepdims, where)
    return result if out is None else into(out, result)


@implements(np.nanstd)
def nanstd(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False, *, where: Any = None, mean: Any = None, correction: Any = None) -> Any:  # fmt: skip # noqa: E501
    refuse("np.nanstd", mean=mean)
    ddof = ddof if correction is None or correction is np._NoValue else correction
    result = apply("sqrt", _deviations(a, axis, dtype, ddof, keepdims, where))
    return result if out is None else into(out, result)
