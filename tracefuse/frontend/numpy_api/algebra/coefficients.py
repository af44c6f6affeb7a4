"""NumPy's functions of polynomials as arrays of coefficients, on traced values."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tracefuse import dtypes
from tracefuse.errors import DtypeError, ScalarError, ShapeError, TraceError
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_array, as_traced
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


@implements(np.polyval)
def polyval(p: Any, x: Any) -> Any:
    """Evaluates by Horner's rule, one multiply-add for each coefficient."""
    coefficients = as_array(p)
    if not coefficients.extents:
        raise DtypeError("iteration over a 0-d array", hint="give a list of coefficients")
    count = coefficients.recorder.pin(coefficients.extents[0], "np.polyval")
    at = as_traced(x)
    result: Any = np.zeros_like(at)
    if not count:
        return views.alias(traced_ops.as_written(result))  # an array
    for k in range(count):
        result = apply("add", apply("mul", result, at), coefficients[k])
    return result


def _of_equal_length(first: Any, second: Any) -> tuple[Any, Any]:
    """Two arrays of coefficients, of which the shorter one, a vector, begins with zeros."""
    decide, lengths = first.recorder.decide, (first.extents[0], second.extents[0], "the lengths of polynomials")
    if decide(lengths[0], "==", *lengths[1:]):
        return first, second
    is_first = decide(lengths[0], "<", *lengths[1:])
    shorter, longer = (first, second) if is_first else (second, first)
    if len(shorter.extents) > 1:
        raise ShapeError("polynomials of several axes have the same length", hint="give vectors")
    padded = np.pad(shorter, (longer.shape[0] - shorter.shape[0], 0))
    return (padded, longer) if is_first else (longer, padded)


def _combine_polynomials(name: str) -> Any:
    def combine(a1: Any, a2: Any) -> Any:
        first, second = (as_array(a) for a in (a1, a2))
        first, second = (x if x.extents else shaping.reshape(x, 1) for x in (first, second))
        if any(len(x.extents) > 1 for x in (first, second)):
            return apply(name, *_of_equal_length(first, second))
        longer = max(first.shape[0], second.shape[0])
        first, second = (np.pad(x, (longer - x.shape[0], 0)) for x in (first, second))
        return apply(name, first, second)

    return combine


implements(np.polyadd)(_combine_polynomials("add"))
implements(np.polysub)(_combine_polynomials("sub"))


def _with_length(p: Any) -> Any:
    if (coefficients := as_array(p)).extents:
        return coefficients
    raise TraceError("len() of unsized object: the polynomial has no axis", hint="give its coefficients in a list")


@implements(np.polyder)
def polyder(p: Any, m: Any = 1) -> Any:
    result = _with_length(p)
    for _ in range(_order(m)):
        result = _derivative(result)
    if len(result.extents) > 1:
        _derivative(result)  # NumPy computes one more, which may not broadcast
    return result


def _derivative(p: Any) -> Any:
    n = max(p.shape[0] - 1, 0)
    powers = traced_ops.iota(p.recorder, 0, 1, p.recorder.plain(n), dtypes.int64)
    return p[:-1] * (n - powers)


@implements(np.polyint)
def polyint(p: Any, m: Any = 1, k: Any = None) -> Any:
    result = _with_length(p)
    order = _order(m)
    constants = np.zeros(order) if k is None else np.atleast_1d(np.asarray(k, float))
    constants = np.repeat(constants, order) if len(constants) == 1 and order > 1 else constants
    if len(constants) < order:
        raise ScalarError("k must be a scalar or a rank-1 array of length 1 or >m.", hint="give m constants")
    for constant in constants[:order].tolist():
        n = result.shape[0]
        powers = n - traced_ops.iota(result.recorder, 0, 1, result.recorder.plain(n), dtypes.int64)
        result = shaping.concatenate([result / powers, np.full_like(result, constant, np.float64, shape=(1,))])
    return result


def _order(m: Any) -> int:
    order = operator.index(m)
    if order < 0:
        raise ScalarError("Order of derivative must be positive", hint="give m >= 0")
    return order


@implements(np.vander)
def vander(x: Any, N: Any = None, increasing: bool = False) -> Any:
    base = as_array(x)
    if len(base.extents) != 1:
        raise ShapeError("x must be a one-dimensional array or sequence.", hint="reshape it with x.ravel()")
    count: Any = base.shape[0] if N is None else as_size(N)
    count = count if isinstance(count, SymbolicSize) else operator.index(count)
    if count < 0:
        raise ShapeError("negative dimensions are not allowed", hint="give N >= 0")
    base = traced_ops.astype(base, np.promote_types(base.value.dtype.numpy, np.int64), copy=False)
    if isinstance(count, SymbolicSize) and count > 1:
        shape = base.shape[0], count - 1
        powers = np.cumprod(np.broadcast_to(shaping.expand_dims(base, 1), shape), 1)
        powers = np.concatenate([np.ones_like(powers, shape=(shape[0], 1)), powers], 1)
        return powers if increasing else traced_ops.copy(np.flip(powers, 1))
    columns: list[Any] = [np.ones_like(base)] if count else []
    while len(columns) < count:
        columns.append(columns[-1] * base if len(columns) > 1 else base)  # a product by 1 makes NaN of infinities
    if not columns:
        return np.zeros_like(base, shape=(base.shape[0], 0))
    return shaping.stack(columns if increasing else columns[::-1], 1)
