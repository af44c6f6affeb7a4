"""NumPy's differences, convolutions and covariances, on traced values."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import DType, dtype_of
from tracefuse.errors import DtypeError, NoElementsError, OutOfRangeError, ScalarError, ShapeError
from tracefuse.frontend.numpy_api.algebra.few_taps import few_taps, sum_of_windows
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import as_operand, as_strong, call_whole, op_named
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import arithmetic, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_array, as_traced, missing
from tracefuse.frontend.tracer.record.assigned_numbers import check_is_real
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import product

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


def _floating(x: Any) -> Any:
    """Converts integers and bools to float64."""
    traced = as_array(x)
    return traced if traced.value.dtype.kind in ("float", "complex") else traced_ops.astype(traced, np.float64)


def _slices(rank: int, axis: int) -> Any:
    """Returns a function from (start, stop) to the key that slices one axis and keeps the others."""

    def key(start: Any, stop: Any) -> tuple[slice, ...]:
        return tuple(slice(start, stop) if k == axis else slice(None) for k in range(rank))

    return key


# -- differences and integrals ----------------------------------------------------------------------------------------


@implements(np.ediff1d)
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    flat = shaping.reshape(as_array(ary), -1)
    parts = [flat[1:] - flat[:-1]]
    if to_begin is not None:
        parts.insert(0, _ends("to_begin", to_begin, flat.value.dtype))
    if to_end is not None:
        parts.append(_ends("to_end", to_end, flat.value.dtype))
    return parts[0] if len(parts) == 1 else shaping.concatenate(parts)


def _ends(name: str, values: Any, dtype: DType) -> Any:
    """Returns what np.ediff1d adds to the differences. Raises DtypeError for a type that does not go into theirs."""
    flat = shaping.reshape(as_operand(values), -1)
    if not np.can_cast(flat.value.dtype.numpy, dtype.numpy, "same_kind"):
        raise DtypeError(
            f"dtype of `{name}`, {flat.value.dtype}, must be compatible with input `ary` of {dtype} under the "
            "`same_kind` rule.", hint=f"cast it with astype({dtype})",
        )  # fmt: skip
    return traced_ops.astype(flat, dtype)


@implements(np.gradient)
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Central differences in the interior, one-sided differences at both ends, in the type of the elements."""
    x = as_array(f)
    x = x if x.value.dtype.kind == "bool" else _floating(x)  # differences of truth values raise
    rank = len(x.extents)
    axes = traced_ops.axes_of(axis, rank) if axis is None else _axes_in_order(axis, rank)
    if edge_order not in (1, 2):
        raise ScalarError(f"gradient: edge_order={edge_order!r}", hint="use 1 or 2")
    spacings = list(varargs) if varargs else [1.0]
    is_one_for_all = len(spacings) == 1 and (not varargs or not np.ndim(spacings[0]))
    spacings = spacings * len(axes) if is_one_for_all else spacings
    if len(spacings) != len(axes):
        raise DtypeError(f"gradient: {len(spacings)} spacings for {len(axes)} axes", hint="give one for each axis")
    dtype = dtypes.float64 if x.value.dtype.kind == "bool" else x.value.dtype
    gradients = [
        traced_ops.astype(_gradient(x, k, h, edge_order), dtype, copy=False)
        for k, h in zip(axes, spacings, strict=True)
    ]
    return gradients[0] if len(gradients) == 1 else tuple(gradients)


def _axes_in_order(axis: Any, rank: int) -> list[int]:
    axes = [normalize_axis(operator.index(k), rank) for k in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    if len(set(axes)) < len(axes):
        raise ShapeError("repeated axis", hint="name each axis once", where=source.user_line())
    return axes


def _gradient(x: Any, axis: int, spacing: Any, edge_order: int) -> Any:
    recorder = x.recorder
    message = f"gradient: axis {axis} has {{right}} elements, too few for this edge_order"
    recorder.builder.require(edge_order + 1, "<=", x.extents[axis], message, f"give at least {edge_order + 1}", None)
    key = _slices(len(x.extents), axis)
    first, second, before_last, last = x[key(0, 1)], x[key(1, 2)], x[key(-2, -1)], x[key(-1, None)]
    coordinates = isinstance(spacing, (np.ndarray, list, tuple)) or (isinstance(spacing, Traced) and spacing.extents)
    if not coordinates:
        h = spacing
        if edge_order == 2 and len(x.extents) == 1 and x.value.dtype is dtypes.float64:
            check_is_real(h, x.value.dtype)  # NumPy's ends are then numbers of Python
        inside = (x[key(2, None)] - x[key(None, -2)]) / (2.0 * h)
        if edge_order == 1:
            start, end = (second - first) / h, (last - before_last) / h
        else:
            start = (-1.5 / h) * first + (2.0 / h) * second + (-0.5 / h) * x[key(2, 3)]
            end = (0.5 / h) * x[key(-3, -2)] + (-2.0 / h) * before_last + (1.5 / h) * last
        return shaping.concatenate([start, inside, end], axis)
    points = as_array(spacing)
    steps = _along_axis(_floating(points[1:] - points[:-1]), len(x.extents), axis)
    low, high = steps[key(None, -1)], steps[key(1, None)]
    a, b, c = -high / (low * (low + high)), (high - low) / (low * high), low / (high * (low + high))
    inside = a * x[key(None, -2)] + b * x[key(1, -1)] + c * x[key(2, None)]
    first_step, second_step = steps[key(0, 1)], steps[key(1, 2)]
    back, far_back = steps[key(-1, None)], steps[key(-2, -1)]
    if edge_order == 1:
        return shaping.concatenate([(second - first) / first_step, inside, (last - before_last) / back], axis)
    start = (
        -(2 * first_step + second_step) / (first_step * (first_step + second_step)) * first
        + (first_step + second_step) / (first_step * second_step) * second
    )
    start = start - first_step / (second_step * (first_step + second_step)) * x[key(2, 3)]
    end = back / (far_back * (far_back + back)) * x[key(-3, -2)] - (back + far_back) / (far_back * back) * before_last
    end = end + (2 * back + far_back) / (back * (far_back + back)) * last
    return shaping.concatenate([start, inside, end], axis)


def _along_axis(vector: Any, rank: int, axis: int) -> Any:
    """Reshapes a vector to lie along one of `rank` axes."""
    return shaping.expand_dims(vector, tuple(k for k in range(rank) if k != axis)) if rank > 1 else vector


@implements(np.trapezoid)
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: Any = -1) -> Any:
    values = as_array(y)
    rank = len(values.extents)
    dim = normalize_axis(operator.index(axis), rank)
    key = _slices(rank, dim)
    if x is None:
        width = dx
    else:
        points = as_array(x)
        if len(points.extents) == 1:
            width = _along_axis(np.diff(points), rank, dim)
        else:
            width = np.diff(points, axis=axis)
    # Points with more axes than the values give the result theirs, of which NumPy counts the axis from the end.
    return traced_ops.reduce("sum", width * (values[key(1, None)] + values[key(None, -1)]) / 2.0, operator.index(axis))


@implements(np.unwrap)
def unwrap(p: Any, discont: Any = None, axis: Any = -1, *, period: Any = 2 * np.pi) -> Any:
    x = as_array(p)
    rank = len(x.extents)
    dim = normalize_axis(operator.index(axis), rank)
    key = _slices(rank, dim)
    is_integer = x.value.dtype.kind in ("int", "uint", "bool") and isinstance(period, int)
    step = np.diff(x, axis=dim)  # in the type of the elements, in which NumPy's differences wrap
    if is_integer and x.value.dtype.kind == "bool":
        x = traced_ops.astype(x, np.int64)
    x = x if is_integer else _floating(x)
    distance = abs(step)  # the least integer of a type has no magnitude in it
    step = traced_ops.astype(step, x.value.dtype, copy=False)
    half, odd = divmod(period, 2) if is_integer else (period / 2, 0)
    low = -half
    wrapped: Any = (step - low) % period + low
    if not odd:
        wrapped = np.where((wrapped == low) & (step > 0), half, wrapped)
    change: Any = wrapped - step
    change = np.where(distance < (half if discont is None else discont), 0, change)
    change = traced_ops.astype(change, x.value.dtype, copy=False)
    later: Any = x[key(1, None)] + np.cumsum(change, dim)
    return shaping.concatenate([x[key(0, 1)], traced_ops.astype(later, x.value.dtype, copy=False)], dim)


_LOOKS_AT_NOTHING = np.lib.NumpyVersion(np.__version__) >= "2.5.0"
"""Whether np.interp of no elements returns without a look at its ends."""


def _real_end(value: Any, x: Traced) -> Any:
    """The number beyond an end: of a complex scalar of NumPy the real part; of another complex number none."""
    if isinstance(value, np.complexfloating):
        return float(value.real)
    is_complex = isinstance(value, complex) or (hasattr(value, "dtype") and value.dtype.kind == "c")
    if is_complex and not (isinstance(value, Traced) and value.is_immutable and value.weak is None):
        if _LOOKS_AT_NOTHING and x.recorder.decide(product(x.extents), "==", 0, "whether np.interp has elements"):
            return None
        raise DtypeError("np.interp: an end is complex, the values are real", hint="give a real number")
    return traced_ops.astype(value, dtypes.float64) if is_complex else value


def _complex_end(value: Any) -> Any:
    """The number beyond an end of complex values: of a complex64 scalar the real part before NumPy 2.5."""
    if isinstance(value, np.complexfloating):
        return complex(value) if isinstance(value, complex) or _LOOKS_AT_NOTHING else float(value.real)
    is_scalar = isinstance(value, Traced) and value.is_immutable and value.weak is None
    is_short = is_scalar and value.value.dtype is dtypes.complex64 and not _LOOKS_AT_NOTHING
    return traced_ops.astype(value, dtypes.float64) if is_short else value


@implements(np.interp)
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    at = as_operand(x)
    if at.value.dtype.is_complex:
        is_scalar = at.is_immutable and not (isinstance(x, Traced) and x.weak is not None)
        if period is None and not is_scalar:
            raise DtypeError(
                "Cannot cast array data from complex to float64 according to the rule 'safe'", hint="give x.real"
            )
        at = traced_ops.astype(at, dtypes.float64)  # NumPy takes the real part of a scalar, and with a period
    if period is not None:
        left = right = None
    if not as_operand(fp).value.dtype.is_complex:
        left, right = _real_end(left, at), _real_end(right, at)
    else:
        left, right = _complex_end(left), _complex_end(right)
    parameters = {"x": at, "xp": as_operand(xp), "fp": fp, "left": left, "right": right, "period": period}
    return call_whole(op_named("interp"), "np.interp", parameters)


# -- products ---------------------------------------------------------------------------------------------------------


@implements(np.convolve)
def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    return _windows("convolve", a, v, mode)


@implements(np.correlate)
def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    return _windows("correlate", a, v, mode)


def _windows(name: str, a: Any, v: Any, mode: str) -> Any:
    """Sums of products of one vector with every window of the other that `mode` includes."""
    first, second = (as_operand(x) for x in (a, v))
    one, other = (x.extents[0] if x.extents else 1 for x in (first, second))
    is_longer = first.recorder.decide(other, "<=", one, f"which vector of np.{name} is longer")
    if is_longer and (count := few_taps(name, first, second, mode)):
        taps = [second[k] for k in range(count)]
        return sum_of_windows(first, taps[::-1] if name == "convolve" else [np.conj(tap) for tap in taps], mode)
    operands, attributes = {"a": first, "v": second}, {"mode": mode, "first_is_longer": is_longer}
    return call_whole(op_named(name), f"np.{name}", {**operands, **attributes})


@implements(np.cross)
def cross(a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: Any = None) -> Any:
    """The cross product of vectors of three elements."""
    if not (as_array(a).extents and as_array(b).extents):
        raise ShapeError("At least one array has zero dimension", hint="give vectors")
    places = [operator.index(k if axis is None else axis) for k in (axisa, axisb)]
    left, right = (shaping.moveaxis(as_array(x), k, -1) for x, k in zip((a, b), places, strict=True))
    for x in (left, right):
        if not x.recorder.decide(x.extents[-1], "==", 3, "np.cross"):
            raise missing("np.cross of vectors of two elements", "write x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]")
    (a0, a1, a2), (b0, b1, b2) = ([x[..., k] for k in range(3)] for x in (left, right))
    parts = (a1 * b2 - a2 * b1, a2 * b0 - a0 * b2, a0 * b1 - a1 * b0)
    return shaping.moveaxis(shaping.stack(parts, -1), -1, operator.index(axisc if axis is None else axis))


@implements(np.linalg.cross)
def linalg_cross(x1: Any, x2: Any, /, *, axis: Any = -1) -> Any:
    arrays = as_array(x1), as_array(x2)
    if axis is None:
        if np.lib.NumpyVersion(np.__version__) < "2.5.0":
            raise DtypeError("np.linalg.cross: axis cannot be None", hint="leave axis= out", where=source.user_line())
        return cross(x1, x2)
    if not all(x.extents for x in arrays):
        if np.lib.NumpyVersion(np.__version__) >= "2.5.0":
            return cross(x1, x2, axis=axis)  # raises
        raise OutOfRangeError("tuple index out of range", hint="give vectors", where=source.user_line())
    for x in arrays:
        extent = x.extents[normalize_axis(operator.index(axis), len(x.extents))]
        if not x.recorder.decide(extent, "==", 3, "np.linalg.cross"):
            raise ShapeError("Both input arrays must be (arrays of) 3-dimensional vectors", hint="give such vectors")
    return cross(x1, x2, axis=axis)


@implements(np.kron)
def kron(a: Any, b: Any) -> Any:
    left, right = (as_strong(as_array(x)) for x in (a, b))
    rank = max(len(left.extents), len(right.extents))
    sizes = []
    for x in (left, right):
        sizes.append((*(1 for _ in range(rank - len(x.extents))), *x.recorder.sizes(x.extents)))
    wide = shaping.reshape(left, tuple(e for n in sizes[0] for e in (n, 1)))
    other = shaping.reshape(right, tuple(e for n in sizes[1] for e in (1, n)))
    return shaping.reshape(apply("mul", wide, other), tuple(n * m for n, m in zip(*sizes, strict=True)))


# -- covariances ------------------------------------------------------------------------------------------------------


def _observations(m: Any, rowvar: Any, dtype: Any) -> Any:
    """Returns a matrix with one row for each variable."""
    x = as_array(m)
    x = traced_ops.astype(x, np.result_type(x.value.dtype.numpy, np.float64) if dtype is None else dtype, copy=False)
    if len(x.extents) > 2:
        raise ShapeError("m has more than 2 dimensions", hint="give a matrix")
    return shaping.reshape(x, (1, -1)) if len(x.extents) < 2 else (x if rowvar else shaping.transpose(x))


@implements(np.cov)
def cov(m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: Any = None, fweights: Any = None, aweights: Any = None, *, dtype: Any = None) -> Any:  # fmt: skip # noqa: E501
    x = _observations(m, rowvar, dtype)
    is_row = y is not None and np.ndim(y) == 2 and as_array(y).shape[0] == 1  # NumPy keeps such a second operand
    more = None if y is None else _observations(y, rowvar or is_row, dtype)
    if x.recorder.decide(x.extents[0], "==", 0, "whether np.cov has variables"):
        return np.zeros_like(x, np.float64, shape=(0, 0))
    if dtype is not None and dtype_of(dtype).kind not in ("float", "complex"):
        raise DtypeError(
            f"a covariance with dtype={dtype_of(dtype)}: a mean of floats is subtracted in place",
            hint="leave dtype out, or name a type of floats", where=source.user_line(),
        )  # fmt: skip
    x = x if more is None else shaping.concatenate([x, more], 0)
    ddof = (0 if bias else 1) if ddof is None else ddof
    if isinstance(ddof, (float, np.floating)) and ddof != int(ddof):
        raise ScalarError(f"ddof must be integer, not {ddof}", hint="give an integer")
    if fweights is None and aweights is None:
        weights, count = None, max(x.shape[1] - ddof, 0)
        deviation = x - traced_ops.reduce("mean", x, 1, None, None, True)
    else:
        weights, count = _weights(fweights, aweights, x.extents[1], ddof)
        total = traced_ops.reduce("sum", weights)
        deviation = x - shaping.expand_dims(traced_ops.reduce("sum", x * weights, 1) / total, 1)
    weighted = deviation if weights is None else deviation * weights
    adjoint = arithmetic.conjugate(shaping.transpose(weighted))
    products = arithmetic.matmul(deviation, adjoint)
    if weights is None and isinstance(ddof, np.floating):  # NumPy takes the reciprocal in the type of ddof
        inverse = apply("div", 1, traced_ops.astype(as_traced(count), ddof.dtype))
        return np.squeeze(traced_ops.astype(products * inverse, x.value.dtype, copy=False))
    return np.squeeze(products / count)


def _weights(fweights: Any, aweights: Any, observations: Any, ddof: Any) -> tuple[Any, Any]:
    """Returns the weight of each observation, and what the weighted sum of products is divided by.

    observations: how many there are. Raises as NumPy does for weights of another number, negative ones, and repeats
    that are no whole numbers.
    """
    repeats = None if fweights is None else _weight_of_each("fweights", fweights, observations)
    aside = None if aweights is None else _weight_of_each("aweights", aweights, observations)
    weights = repeats if aside is None else aside if repeats is None else repeats * aside
    total = traced_ops.reduce("sum", weights)
    if not traced_ops.holds_everywhere(apply("ne", total, 0)):
        raise NoElementsError("Weights sum to zero, can't be normalized", hint="give weights of another sum")
    if aside is None or ddof == 0:
        return weights, total - ddof
    return weights, total - ddof * traced_ops.reduce("sum", weights * aside) / total


def _weight_of_each(name: str, given: Any, observations: Any) -> Any:
    operand = as_operand(given)
    weights = traced_ops.astype(operand, np.float64, copy=False)
    if name == "fweights" and operand.value.dtype.kind == "float" and not traced_ops.holds_everywhere(
        apply("eq", weights, np.rint(weights))
    ):  # fmt: skip
        raise DtypeError("fweights must be integer", hint="cast them with astype(int)")
    if not weights.extents:
        raise OutOfRangeError("tuple index out of range", hint=f"give {name} with one axis")
    if len(weights.extents) > 1:
        raise ShapeError(f"cannot handle multidimensional {name}", hint="give weights with one axis")
    what = f"the number of {name}"
    if not weights.recorder.decide(weights.extents[0], "==", observations, what):
        raise ShapeError(f"incompatible numbers of samples and {name}", hint="give one weight for each observation")
    if not traced_ops.holds_everywhere(apply("logical_not", apply("lt", weights, 0))):
        raise ScalarError(f"{name} cannot be negative", hint="give weights of at least 0")
    return weights


@implements(np.corrcoef)
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    covariance = cov(x, y, rowvar, dtype=dtype)
    if not covariance.extents:
        return covariance / covariance
    spread = np.sqrt(arithmetic.real(np.diagonal(covariance)))
    result = covariance / shaping.expand_dims(spread, 1) / spread
    if result.value.dtype.kind == "complex":
        return apply("complex", *(np.clip(part(result), -1, 1) for part in (arithmetic.real, arithmetic.imag)))
    return np.clip(result, -1, 1)
