"""Mean, variance and standard deviation of traced values, with NumPy's parameters.

Without a mask each is one reduction. With a mask or a given mean they are built from sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import DType, dtype_of, float32, float64, int64
from tracefuse.errors import ScalarError
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.shaping import broadcast_to
from tracefuse.frontend.tracer.array_ops.traced_ops import (
    apply,
    as_number,
    as_tensor,
    as_traced,
    astype,
    axes_of,
    located,
    loop_type_for,
    missing,
    reduce,
)
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced
from tracefuse.ir.extents import product
from tracefuse.ops import REGISTRY, Reduction


@located
def mean(
    x: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: Any = False, *, where: Any = None
) -> Any:
    """Returns the arithmetic mean of the elements for which `where` is true."""
    mask = _mask(where)
    if out is not None:
        return _mean_into(out, x, axis, dtype, keepdims, mask)
    if dtype is not None and dtype_of(dtype).kind in ("int", "uint", "bool"):
        # NumPy divides the sum of this type, and truncates the quotient to it.
        total = reduce("sum", x, axis, dtype, None, keepdims, where=mask)
        count = _count(as_tensor(x), axis, keepdims, mask, dtype_of("float64"))
        return astype(apply("div", total, count), dtype_of(dtype))
    if mask is None:
        return reduce("mean", x, axis, dtype, None, keepdims)
    wide = _as_floats(x, dtype)
    kind = wide.value.dtype
    total = reduce("sum", wide, axis, kind, None, keepdims, where=mask)
    return apply("div", total, _count(wide, axis, keepdims, mask, kind))


def _mean_into(out: Any, x: Any, axis: Any, dtype: Any, keepdims: Any, mask: Any) -> Any:
    """Writes the sum to `out`, in its type, and divides it there, as NumPy does."""
    given = as_tensor(x).value.dtype
    wide = _as_floats(x, float32 if dtype is None and given.is_half else dtype)
    result_dtype = as_tensor(out).value.dtype
    is_open = dtype is None and wide.value.dtype is given
    loop = loop_type_for("sum", wide, out) if is_open else wide.value.dtype
    total = astype(reduce("sum", wide, axis, loop, None, keepdims, where=mask), result_dtype, copy=False)
    quotient = apply("div", total, _count(wide, axis, keepdims, mask, dtype_of("float64")))
    return into(out, astype(quotient, result_dtype, copy=False))


@located
def var(
    x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False, *,
    correction: Any = None, mean: Any = None, where: Any = None,
) -> Any:  # fmt: skip
    """Returns the variance: the sum of squared deviations over n - ddof. mean: the mean, with the reduced axes kept.

    For complex numbers it is real: the sum of the variances of their parts.
    """
    _check_type(as_tensor(x).value.dtype, dtype)
    values = as_tensor(x) if dtype is None else astype(as_tensor(x), dtype, copy=False)
    # Of real numbers and a given mean, the deviations have the type of these also where `dtype` is complex.
    if as_tensor(x).value.dtype.is_complex or (values.value.dtype.is_complex and _given(mean) is None):
        kind = None if dtype is None else dtype_of(dtype)
        return stored(_complex_variance(values, axis, freedom_of(ddof, correction), keepdims, mean, where, kind), out)
    mask, ddof = _mask(where), freedom_of(ddof, correction)
    kind = _as_floats(values, None).value.dtype
    taking = None if out is None else as_tensor(out).value.dtype
    # NumPy sums the squares into the array that takes the result, and divides them there.
    sums_into = taking is not None and taking is not kind
    if _given(mean) is None and mask is None and not _is_narrower(x, dtype) and not sums_into:
        tensor = as_tensor(x) if dtype is None else astype(as_tensor(x), dtype)
        return stored(reduce("var", tensor, axis, None, None, keepdims, correction=as_number(ddof)), out)
    wide = _as_floats(x, dtype)
    # NumPy keeps the type of the elements for the deviations, and sums in the type that the caller names.
    if _given(mean) is None:
        deviating = as_tensor(x) if _is_narrower(x, dtype) else wide
        deviation = apply("sub", deviating, _mean_of(wide, axis, mask))
    else:
        deviation = apply("sub", as_tensor(x), mean)
    # Squares of integers are summed in float64, also where a given mean is complex.
    is_whole = as_tensor(x).value.dtype.is_integer or as_tensor(x).value.dtype.kind == "bool"
    kind = _as_floats(x if is_whole else deviation, None).value.dtype if dtype is None else dtype_of(dtype)
    freedom = apply("maximum", apply("sub", _count(wide, axis, keepdims, mask, kind), ddof), 0)
    is_open = dtype is None and as_tensor(x).value.dtype.is_floating
    loop, target = (None if is_open else kind, out) if sums_into else (kind, None)
    square = apply("mul", deviation, deviation)
    if deviation.value.dtype.is_complex and as_tensor(x).value.dtype.kind == "bool":
        parts = [apply(part, deviation) for part in ("real", "imag")]
        square = apply("add", *(apply("mul", part, part) for part in parts))
    total = reduce("sum", square, axis, loop, target, keepdims, where=mask)
    return stored(apply("div", total, freedom), out)


def divided_by_count(total: Any, count: Any) -> Any:
    """Returns a total divided by a number of elements, in float64 where the count needs it, in the total's type."""
    kind = as_tensor(total).value.dtype
    wide = float32 if kind.is_half else float64
    return astype(apply("div", total, astype(count, wide, copy=False)), kind, copy=False)


def _complex_variance(
    values: Traced, axis: Any, ddof: Any, keepdims: Any, mean: Any, where: Any, kind: DType | None
) -> Any:
    """The variance of complex numbers, which is real. With a ddof the squares of both parts are added before division.

    By parts, no freedom left (n <= ddof) would give inf + 0 / 0 for numbers that deviate in one part only. kind: the
    complex type that the caller names, in which NumPy divides: by 0, the imaginary part becomes NaN.
    """
    mean = _given(mean)
    if kind is None and isinstance(ddof, (int, float, np.number)) and ddof == 0:
        means = (None, None) if mean is None else (apply("real", mean), apply("imag", mean))
        parts = [
            var(apply(part, values), axis, None, None, ddof, keepdims, mean=part_mean, where=where)
            for part, part_mean in zip(("real", "imag"), means, strict=True)
        ]
        return apply("add", *parts)
    mask = _mask(where)
    deviation = apply("sub", values, _mean_of(values, axis, mask) if mean is None else mean)
    squares = [apply("mul", part, part) for part in (apply("real", deviation), apply("imag", deviation))]
    total = reduce("sum", apply("add", *squares), axis, None, None, keepdims, where=mask)
    freedom = apply("maximum", apply("sub", _count(values, axis, keepdims, mask, total.value.dtype), ddof), 0)
    return apply("div", total if kind is None else astype(total, kind), freedom)


def freedom_of(ddof: Any, correction: Any) -> Any:
    """Returns `ddof`, or `correction`, which takes its place."""
    if _given(correction) is None:
        return ddof
    if not (isinstance(ddof, (int, float, np.number)) and ddof == 0):
        message = "ddof and correction can't be provided simultaneously."
        raise ScalarError(message, hint="give one of them", where=source.user_line())
    return correction


def _is_narrower(x: Any, dtype: Any) -> bool:
    """Whether a named type does not hold all elements of x."""
    return dtype is not None and not np.can_cast(as_tensor(x).value.dtype.numpy, dtype_of(dtype).numpy)


def stored(result: Any, out: Any) -> Any:
    """Writes a result to `out`, which NumPy casts without a check."""
    return result if out is None else into(out, astype(result, as_tensor(out).value.dtype, copy=False))


@located
def std(
    x: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: Any = 0, keepdims: Any = False, **more: Any
) -> Any:
    """Returns the standard deviation: the square root of var."""
    variance = var(x, axis, dtype, out, ddof, keepdims, **more)
    if out is None:
        return apply("sqrt", variance)
    return into(out, apply("sqrt", variance))  # of the variance in the array


def _check_type(source: DType, dtype: Any) -> None:
    """Raises UnsupportedError for a type to which NumPy truncates mean and deviations."""
    kind = None if dtype is None else dtype_of(dtype)
    if kind is not None and not (kind.is_complex or (kind.is_floating and not source.is_complex)):
        raise missing(f"a variance of {source} with dtype={kind}", "give a float type that holds the elements")


def _mean_of(x: Traced, axis: Any, mask: Any) -> Any:
    return mean(x, axis, None, None, True, where=mask)


def _given(parameter: Any) -> Any:
    """Returns a parameter of a NumPy function; None if it is left out."""
    return None if parameter is np._NoValue else parameter


def _mask(where: Any) -> Any:
    return None if where is True else _given(where)


def _as_floats(x: Any, dtype: Any) -> Traced:
    """Converts x to the type in which means are computed: its own, or float64 for integers."""
    tensor = as_tensor(x)
    op = REGISTRY["mean"]
    assert isinstance(op, Reduction)
    kind = op.result_type(tensor.value.dtype, "numpy") if dtype is None else dtype_of(dtype)
    return astype(tensor, kind, copy=False)  # type: ignore[no-any-return]


def _count(x: Traced, axis: Any, keepdims: Any, mask: Any, kind: DType) -> Any:
    """Returns the number of elements: a size, or for each result the sum of the mask."""
    if mask is None:
        return x.recorder.sizes((product(x.extents[k] for k in axes_of(axis, len(x.extents))),))[0]
    counted = as_traced(np.asarray(mask) if isinstance(mask, (list, tuple)) and not holds_traced(mask) else mask)
    # NumPy sums numbers that are given as where=, as integers.
    spread = broadcast_to(astype(counted, int64, copy=False), x.recorder.sizes(x.extents))
    return astype(reduce("sum", spread, axis, None, None, keepdims), kind)
