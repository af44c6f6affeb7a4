"""NumPy's norms, matrix powers and chained products, on traced values."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.errors import MatrixError, ScalarError, ShapeError
from tracefuse.frontend.numpy_api.algebra import products
from tracefuse.frontend.numpy_api.library_calls.sampled_functions import record_library_call
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import as_operand, call_whole, op_named
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import arithmetic, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_array, missing
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import Extent

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


@implements(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """A vector norm over one axis, a matrix norm over two, or the 2-norm of all elements without ord and axis."""
    result = _norm(as_array(x), ord, axis, keepdims)
    return result if result.extents else traced_ops.copy(result)


def _norm(traced: Any, ord: Any, axis: Any, keepdims: bool) -> Any:
    rank = len(traced.extents)
    if axis is None and ord is None:
        if not rank:
            return _vector_norm(shaping.reshape(traced, -1), 2, (0,), False)
        return _vector_norm(traced, 2, tuple(range(rank)), bool(keepdims))  # in any order of memory
    is_pair = isinstance(axis, tuple)
    axes = tuple(normalize_axis(operator.index(k), rank) for k in axis) if is_pair else traced_ops.axes_of(axis, rank)
    if len(axes) == 1:
        return _vector_norm(traced, 2 if ord is None else ord, axes, keepdims)
    if len(axes) == 2:
        return _matrix_norm(traced, "fro" if ord is None else ord, axes, keepdims)
    raise ShapeError("Improper number of dimensions to norm.", hint="name one or two axes")


def _magnitude(x: Any) -> Any:
    kind = x.value.dtype
    # The magnitude of the least integer of a type does not fit the type.
    x = x if kind.is_floating or kind.is_complex else traced_ops.astype(x, dtypes.float64)
    return apply("abs", x)


def _sum_of_squares(x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """The sum of the squared magnitudes, of complex numbers as those of their parts, as in NumPy."""
    if x.value.dtype.is_complex:
        real, imaginary = apply("real", x), apply("imag", x)
        squares = apply("add", apply("mul", real, real), apply("mul", imaginary, imaginary))
    else:
        size = _magnitude(x)
        squares = apply("mul", size, size)
    return traced_ops.reduce("sum", squares, axes, None, None, keepdims)


def _vector_norm(x: Any, order: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    if isinstance(order, str):
        raise ScalarError(f"Invalid norm order '{order}' for vectors", hint="give a number")
    if order == 0:
        dtype = _magnitude(x).value.dtype
        return traced_ops.reduce("sum", traced_ops.astype(apply("ne", x, 0), dtype), axes, None, None, keepdims)
    size = _magnitude(x)
    if order in (np.inf, -np.inf):
        return _extreme(size, axes, keepdims, order)
    if order == 1:
        return traced_ops.reduce("sum", size, axes, None, None, keepdims)
    if order == 2:
        return apply("sqrt", _sum_of_squares(x, axes, keepdims))
    exponent: Any = order
    if not (isinstance(order, Traced) and order.on_host and order.weak == "float"):
        exponent = traced_ops.as_number(order)
        exponent = exponent if isinstance(exponent, np.floating) else float(exponent)
    number: Any = exponent if isinstance(exponent, Traced) else float(exponent)
    powers = traced_ops.astype(apply("pow", size, exponent), size.value.dtype, copy=False)
    total = traced_ops.reduce("sum", powers, axes, None, None, keepdims)
    return apply("pow", total, 1 / number)


def _extreme(size: Any, axes: Any, keepdims: bool, order: float) -> Any:
    """The largest magnitude, 0 of none, for a positive order; else the smallest."""
    if order > 0:
        return traced_ops.reduce("max", size, axes, None, None, keepdims, initial=0)
    return traced_ops.reduce("min", size, axes, None, None, keepdims)


def _matrix_norm(x: Any, order: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    """The Frobenius norm, or the largest or smallest sum over columns (1, -1) or rows (inf, -inf)."""
    rows, columns = (k % len(x.extents) for k in axes)
    if rows == columns:
        raise ShapeError("Duplicate axes given.", hint="name two axes")
    if order in ("fro", "f"):
        return apply("sqrt", _sum_of_squares(x, (rows, columns), keepdims))
    if order in (2, -2, "nuc"):
        parameters = {"x": x, "ord": order, "axis": (rows, columns), "keepdims": bool(keepdims)}
        return call_whole(op_named("norm_of_singular_values"), "np.linalg.norm", parameters)
    if order not in (1, -1, np.inf, -np.inf):
        raise ScalarError("Invalid norm order for matrices.", hint="use 'fro', 'nuc', 1, 2, inf or their negatives")
    summed, compared = (rows, columns) if order in (1, -1) else (columns, rows)
    sums = traced_ops.reduce("sum", _magnitude(x), summed, None, None, True)
    result = _extreme(sums, compared, True, order)
    return result if keepdims else shaping.squeeze(result, (rows, columns))


@implements(np.linalg.vector_norm)
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    traced = as_array(x)
    return _vector_norm(
        traced, 2 if ord is None else ord, traced_ops.axes_of(axis, len(traced.extents)), bool(keepdims)
    )


@implements(np.linalg.matrix_norm)
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    result = _norm(as_array(x), ord, (-2, -1), bool(keepdims))
    return result if result.extents else traced_ops.copy(result)


@implements(np.linalg.matrix_power)
def matrix_power(a: Any, n: Any) -> Any:
    """Computes the power by repeated squaring; power 0 is the identity.

    A symbolic power is one trace for all numbers with as many bits.
    """
    x, exponent = as_array(a), as_size(n)
    exponent = exponent if isinstance(exponent, SymbolicSize) else operator.index(exponent)
    if exponent < 0 and len(x.extents) > 1:
        return matrix_power(call_whole(op_named("inv"), "np.linalg.inv", {"a": x}), -exponent)
    recorder = x.recorder
    if len(x.extents) < 2:
        message = f"{len(x.extents)}-dimensional array given. Array must be at least two-dimensional"
        raise MatrixError(message, hint="give a matrix")
    recorder.builder.require(
        x.extents[-2], "==", x.extents[-1], "matrix_power: {left} rows and {right} columns", "give square matrices",
        kind=MatrixError,
    )  # fmt: skip
    if exponent == 0:
        places = traced_ops.iota(recorder, 0, 1, x.extents[-1], dtypes.int64)
        identity = traced_ops.astype(apply("eq", shaping.expand_dims(places, 1), places), x.value.dtype)
        return traced_ops.copy(shaping.broadcast_to(identity, recorder.sizes(x.extents)))
    if exponent == 1:
        return x
    if exponent == 3:  # NumPy's order of products, which decides where NaN and infinities appear
        return arithmetic.matmul(arithmetic.matmul(x, x), x)
    return _power_by_squares(x, exponent)


def _power_by_squares(x: Any, exponent: Any) -> Any:
    """Multiplies the squares for the bits of an exponent that are set, the lowest first, as NumPy does."""
    result, square = x, x
    for place in range(exponent.bit_length()):
        square = arithmetic.matmul(square, square) if place else x
        bit, lower = (exponent >> place) & 1, exponent & ((1 << place) - 1)
        if isinstance(exponent, int):
            if bit:
                result = arithmetic.matmul(result, square) if lower else square
        elif place:
            result = np.where(bit == 1, np.where(lower == 0, square, arithmetic.matmul(result, square)), result)
    return result


@implements(np.linalg.lstsq)
def lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    """Least squares. NumPy returns residuals only if there are more equations than unknowns."""
    matrix = as_operand(a)
    if len(matrix.extents) != 2:
        raise MatrixError(f"{len(matrix.extents)}-dimensional array given. Array must be two-dimensional")
    rows, columns = matrix.extents
    has_residuals = not matrix.recorder.decide(rows, "<=", columns, "whether np.linalg.lstsq has residuals")
    parameters = {"a": matrix, "b": b, "rcond": rcond, "residuals": has_residuals}
    return call_whole(op_named("lstsq"), "np.linalg.lstsq", parameters)


@implements(np.polyfit)
def polyfit(x: Any, y: Any, deg: Any, rcond: Any = None, full: bool = False, w: Any = None, cov: Any = False) -> Any:
    if full or cov is not False:
        return record_library_call("numpy.polyfit", (x, y, deg), {"rcond": rcond, "full": full, "w": w, "cov": cov})
    parameters = {"x": x, "y": y, "w": w, "deg": operator.index(deg), "rcond": rcond}
    return call_whole(op_named("polyfit"), "np.polyfit", parameters)


@implements(np.poly)
def poly(seq_of_zeros: Any) -> Any:
    if as_array(seq_of_zeros).value.dtype.is_complex:
        raise missing(
            "np.poly of complex numbers, of which the result is real or complex", "call it outside the fused function"
        )
    return record_library_call("numpy.poly", (seq_of_zeros,), {})


@implements(np.linalg.multi_dot)
def multi_dot(arrays: Any, *, out: Any = None) -> Any:
    """Multiplies a chain of matrices in the cheapest order for the sizes of the call."""
    parts = [as_array(a) for a in arrays]
    if len(parts) < 2:
        raise ShapeError("Expecting at least two arrays.", hint="give two")
    if len(parts) == 2:
        return products.dot(*arrays, out)
    for position, part in enumerate(parts):
        if len(part.extents) != 2 and (len(part.extents) != 1 or position not in (0, len(parts) - 1)):
            message = f"{len(part.extents)}-dimensional array given. Array must be two-dimensional"
            raise MatrixError(message, hint="give matrices; the first and the last may be vectors")
    if out is not None and 1 in (len(parts[0].extents), len(parts[-1].extents)):
        raise ShapeError(
            "np.linalg.multi_dot writes into out= products of matrices alone, not of a vector",
            hint="write out[...] = np.linalg.multi_dot(arrays)", where=source.user_line(),
        )  # fmt: skip
    is_row, is_column = (len(part.extents) == 1 for part in (parts[0], parts[-1]))
    parts[0] = shaping.expand_dims(parts[0], 0) if is_row else parts[0]
    parts[-1] = shaping.expand_dims(parts[-1], 1) if is_column else parts[-1]
    product = _multiply_chain(parts, out)
    product = product[:, 0] if is_column else product
    return product[0] if is_row else product


def _multiply_chain(parts: list[Any], out: Any) -> Any:
    """Finds the cheapest parenthesization by dynamic programming; each choice is a guard. out: takes the product."""
    recorder = parts[0].recorder
    sizes = [parts[0].extents[0], *(p.extents[1] for p in parts)]
    cheapest: dict[tuple[int, int], tuple[Extent, int]] = {}
    for length in range(1, len(parts)):
        for i in range(len(parts) - length):
            j = i + length
            for k in range(i, j):
                left, right = cheapest.get((i, k), (0, i))[0], cheapest.get((k + 1, j), (0, j))[0]
                cost = left + right + sizes[i] * sizes[k + 1] * sizes[j + 1]
                if k == i or not recorder.decide(cheapest[i, j][0], "<=", cost, "the cheapest order of np.linalg.multi_dot"):  # fmt: skip # noqa: E501
                    cheapest[i, j] = cost, k

    def multiply(i: int, j: int) -> Any:
        if i == j:
            return parts[i]
        middle = cheapest[i, j][1]
        return arithmetic.matmul(multiply(i, middle), multiply(middle + 1, j))

    middle = cheapest[0, len(parts) - 1][1]
    return products.dot(multiply(0, middle), multiply(middle + 1, len(parts) - 1), out)
