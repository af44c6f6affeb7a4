"""Linear algebra on matrices and stacks of them, by LAPACK through NumPy and by cuSOLVER through CuPy.

Where LAPACK finds a singular matrix, NumPy's LinAlgError reaches the user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import DType, complex64, complex128, int32, int64
from tracefuse.errors import DtypeError, MatrixError, ScalarError, ShapeError
from tracefuse.ir.axes import broadcast_shapes, normalize_axis
from tracefuse.ir.derivatives import FLAT, Equivalent, Tangent
from tracefuse.ir.extents import Extent, minimum, product
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops import equivalent_expressions, linear_algebra_tangents, native_ufuncs
from tracefuse.ops.families import register
from tracefuse.ops.native_ufuncs import NativeUfuncs
from tracefuse.ops.result_types import linear_algebra, of_sample
from tracefuse.ops.sampled_calls import polyfit

ResultShapes = Callable[[Sequence[Shape], Attributes, Require], tuple[Shape, ...]]


def matrix(shape: Shape) -> tuple[Shape, Extent, Extent]:
    """The leading axes, rows and columns of a stack of matrices."""
    if len(shape) < 2:
        raise MatrixError(
            f"{len(shape)}-dimensional array given. Array must be at least two-dimensional", hint="give a matrix"
        )
    return shape[:-2], shape[-2], shape[-1]


def square(shape: Shape, require: Require) -> tuple[Shape, Extent]:
    stack, rows, columns = matrix(shape)
    require(rows, "==", columns, "{left} rows and {right} columns", "the matrices must be square", MatrixError)
    return stack, rows


def _ufunc(name: str, vector: str = "", *, fails: bool = True) -> Callable[[Attributes], NativeUfuncs | None]:
    """A function as one ufunc, whatever its attributes."""
    return lambda attributes: native_ufuncs.linear_algebra(name, vector, fails=fails)


def _linalg(
    name: str, shape: ResultShapes, doc: str, *, types: Callable[[DType], tuple[DType, ...]] = lambda t: (t,),
    parameters: tuple[str, ...] = ("a",), attributes: tuple[tuple[str, Any], ...] = (), **more: Any,
) -> WholeArrayOp:  # fmt: skip
    function = more.pop("function") if "function" in more else getattr(np.linalg, name)
    op = WholeArrayOp(
        name=name, doc=doc, numpy=more.pop("numpy", function), function=function, shape=shape, parameters=parameters,
        dtypes=more.pop("dtypes", lambda operands, _: types(linear_algebra(operands))), arity=len(parameters),
        attributes=attributes,
        shape_before_types=more.pop("shape_before_types", shape if len(parameters) == 1 else None), **more,
    )  # fmt: skip
    return register(op)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------------------------------------------------------
# square matrices


def same_square(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    square(shapes[0], require)
    return (shapes[0],)


def stack_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    return (square(shapes[0], require)[0],)


def solve_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    stack, rows = square(shapes[0], require)
    other = shapes[1]
    if not other:
        raise ShapeError("0-dimensional array given. Array must be at least one-dimensional", hint="give a vector")
    is_vector = len(other) == 1
    of_other: Extent = other[-1] if is_vector else other[-2]
    require(rows, "==", of_other, "{left} equations and {right} right sides", "both have one row for each equation")
    batch = broadcast_shapes((stack, () if is_vector else other[:-2]), require)
    return ((*batch, rows, *(() if is_vector else other[-1:])),)


_linalg("inv", same_square, "The inverse of each matrix.", derivative=Tangent(linear_algebra_tangents.inv), native=_ufunc("inv"))  # fmt: skip
_linalg(
    "det", stack_shape, "The determinant of each matrix.", raises=False,
    derivative=Tangent(linear_algebra_tangents.det), native=_ufunc("det", fails=False),
)  # fmt: skip
_linalg(
    "slogdet", lambda *a: stack_shape(*a) * 2, "The sign of each determinant, and the logarithm of its size.",
    types=lambda t: (t, t.real), raises=False,
    derivative=Tangent(linear_algebra_tangents.slogdet), native=_ufunc("slogdet", fails=False),
)  # fmt: skip


def _cholesky(a: Any, upper: bool) -> Any:
    """CuPy has no `upper`: the upper factor is the adjoint of the lower factor of the adjoint matrix."""
    if not upper or isinstance(a, np.ndarray):
        return np.linalg.cholesky(a, upper=True) if upper else np.linalg.cholesky(a)
    return np.linalg.cholesky(a.swapaxes(-2, -1).conj()).swapaxes(-2, -1).conj()


_linalg(
    "cholesky", same_square, "The triangular factor of positive definite matrices: the lower one, or the upper one.",
    attributes=(("upper", False),),
    numpy=_cholesky, function=np.linalg.cholesky, derivative=Tangent(linear_algebra_tangents.cholesky),
    native=lambda given: native_ufuncs.linear_algebra("cholesky_up" if given["upper"] else "cholesky_lo"),
)  # fmt: skip
_linalg(
    "solve", solve_shape, "The solutions of linear equations a @ x = b. A `b` with one axis is one right side.",
    parameters=("a", "b"), shape_before_types=stack_shape,
    derivative=Tangent(linear_algebra_tangents.solve, linear_algebra_tangents.solve_transpose),
    native=_ufunc("solve", "solve1"),
)  # fmt: skip


def _tensorinv_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    (shape,), first = shapes, attributes["ind"]
    if first <= 0:
        raise ScalarError("Invalid ind argument.", hint="give ind > 0")
    left, right = shape[:first], shape[first:]
    hint = "both groups of axes have as many"
    require(product(left), "==", product(right), "{left} elements and {right}", hint, MatrixError)
    return ((*right, *left),)


_linalg(
    "tensorinv", _tensorinv_shape, "The inverse of a tensor as a map from its last axes to its first `ind`.",
    attributes=(("ind", 2),), derivative=Equivalent(equivalent_expressions.inverse_of_tensor),
)  # fmt: skip


def _tensorsolve_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    shape, other = shapes
    axes = attributes["axes"]
    if axes is not None:
        moved = [normalize_axis(axis, len(shape)) for axis in axes]
        shape = (*(e for k, e in enumerate(shape) if k not in moved), *(shape[k] for k in moved))
    result = shape[-(len(shape) - len(other)) :]
    message = "{left} unknowns and {right} equations"
    require(product(result), "==", product(other), message, "both have as many", MatrixError)
    return (tuple(result),)


_linalg(
    "tensorsolve", _tensorsolve_shape, "The tensor x with tensordot(a, x, x.ndim) == b.", parameters=("a", "b"),
    attributes=(("axes", None),), derivative=Equivalent(equivalent_expressions.solution_of_tensor),
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# eigenvalues


def values_and_vectors(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    stack, rows = square(shapes[0], require)
    return (*stack, rows), shapes[0]


def eigenvalues_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    return values_and_vectors(shapes, attributes, require)[:1]


def _complex_results(count: int) -> Callable[[Sequence[DType], Attributes], tuple[DType, ...]]:
    """Complex results of the precision of the operands."""

    def types(operands: Sequence[DType], attributes: Attributes) -> tuple[DType, ...]:
        single = linear_algebra(operands).name in ("float32", "complex64")
        return (complex64 if single else complex128,) * count

    return types


def _eig(a: Any) -> tuple[Any, ...]:
    return tuple(_as_complex(part) for part in np.linalg.eig(a))


def _eigvals(a: Any) -> Any:
    return _as_complex(np.linalg.eigvals(a))


def _as_complex(array: Any) -> Any:
    return array.astype(np.result_type(array.dtype, np.complex64), copy=False)


def _triangle(name: str) -> Callable[[Attributes], NativeUfuncs | None]:
    """A function of Hermitian matrices as the ufunc that reads the triangle of the attribute UPLO."""
    return lambda given: native_ufuncs.linear_algebra(f"{name}_{'up' if given['UPLO'].upper() == 'U' else 'lo'}")


_UPLO = (("UPLO", "L"),)
_linalg("eigh", values_and_vectors, "Eigenvalues in ascending order, and eigenvectors, of Hermitian matrices.", types=lambda t: (t.real, t), attributes=_UPLO, derivative=Tangent(linear_algebra_tangents.eigh), native=_triangle("eigh"))  # fmt: skip
_linalg("eigvalsh", eigenvalues_shape, "Eigenvalues of Hermitian matrices, in ascending order.", types=lambda t: (t.real,), attributes=_UPLO, derivative=Tangent(linear_algebra_tangents.eigvalsh), native=_triangle("eigvalsh"))  # fmt: skip
_linalg("eig", values_and_vectors, "Eigenvalues and eigenvectors, both complex.", dtypes=_complex_results(2), numpy=_eig, function=None, derivative=Tangent(linear_algebra_tangents.eig))  # fmt: skip
_linalg("eigvals", eigenvalues_shape, "Eigenvalues, complex.", dtypes=_complex_results(1), numpy=_eigvals, function=None, derivative=Tangent(linear_algebra_tangents.eigvals))  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# factors of any matrix


def _qr_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    stack, rows, columns = matrix(shapes[0])
    least, mode = minimum(rows, columns), attributes["mode"]
    if mode == "r":
        return ((*stack, least, columns),)
    if mode == "raw":
        return (*stack, columns, rows), (*stack, least)
    if mode == "complete":
        return (*stack, rows, rows), (*stack, rows, columns)
    if mode != "reduced":
        raise ScalarError(f"Unrecognized mode '{mode}'", hint="use 'reduced', 'complete', 'r' or 'raw'")
    return (*stack, rows, least), (*stack, least, columns)


def svd_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    stack, rows, columns = matrix(shapes[0])
    least = minimum(rows, columns)
    if not attributes["compute_uv"]:
        return ((*stack, least),)
    full = attributes["full_matrices"]
    return (
        (*stack, rows, rows if full else least), (*stack, least), (*stack, columns if full else least, columns),
    )  # fmt: skip


def _given(a: Any, attributes: dict[str, Any]) -> dict[str, Any]:
    """Returns the attributes without None. CuPy's functions lack `hermitian`; their results hold without it."""
    known = {name: value for name, value in attributes.items() if value is not None}
    if not isinstance(a, np.ndarray):
        known.pop("hermitian", None)
    return known


def _native_svd(given: Attributes) -> NativeUfuncs | None:
    if given["hermitian"]:
        return None
    return native_ufuncs.linear_algebra(
        "svd" if not given["compute_uv"] else "svd_f" if given["full_matrices"] else "svd_s"
    )


def _svd(a: Any, **attributes: Any) -> Any:
    return np.linalg.svd(a, **_given(a, attributes))


def svd_types(operands: Sequence[DType], attributes: Attributes) -> tuple[DType, ...]:
    t = linear_algebra(operands)
    return (t, t.real, t) if attributes["compute_uv"] else (t.real,)


def _qr_types(operands: Sequence[DType], attributes: Attributes) -> tuple[DType, ...]:
    return (linear_algebra(operands),) * (1 if attributes["mode"] == "r" else 2)


_linalg("qr", _qr_shape, "The orthogonal and the triangular factor.", dtypes=_qr_types, attributes=(("mode", "reduced"),), raises=False, derivative=Tangent(linear_algebra_tangents.qr))  # fmt: skip
_linalg(
    "svd", svd_shape, "The singular value decomposition.", dtypes=svd_types, numpy=_svd,
    attributes=(("full_matrices", True), ("compute_uv", True), ("hermitian", False)),
    derivative=Tangent(linear_algebra_tangents.svd), native=_native_svd,
)  # fmt: skip


def singular_values_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    stack, rows, columns = matrix(shapes[0])
    return ((*stack, minimum(rows, columns)),)


def _svdvals(x: Any) -> Any:
    """NumPy's function in terms of svd, which CuPy has."""
    return np.linalg.svd(x, compute_uv=False)


_linalg("svdvals", singular_values_shape, "The singular values, largest first.", numpy=_svdvals, types=lambda t: (t.real,), parameters=("x",), derivative=Tangent(linear_algebra_tangents.svdvals))  # fmt: skip


def pinv_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    stack, rows, columns = matrix(shapes[0])
    return ((*stack, columns, rows),)


def _pinv(a: Any, **attributes: Any) -> Any:
    return np.linalg.pinv(a, **_given(a, attributes))


_linalg(
    "pinv", pinv_shape, "The pseudo-inverse of each matrix.", numpy=_pinv,
    attributes=(("rcond", None), ("hermitian", False), ("rtol", None)),
    derivative=Tangent(linear_algebra_tangents.pinv),
)  # fmt: skip


def _rank_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    return (shapes[0][:-2],)


def _matrix_rank(A: Any, **attributes: Any) -> Any:
    return np.linalg.matrix_rank(A, **_given(A, attributes))


_linalg(
    "matrix_rank", _rank_shape, "The number of singular values above a tolerance.", numpy=_matrix_rank,
    parameters=("A",), types=lambda t: (int64,), derivative=FLAT, attributes=(("tol", None), ("hermitian", False), ("rtol", None)),
)  # fmt: skip


def _norm_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    shape, axes = shapes[0], [normalize_axis(axis, len(shapes[0])) for axis in attributes["axis"]]
    if attributes["keepdims"]:
        return (tuple(1 if k in axes else e for k, e in enumerate(shape)),)
    return (tuple(e for k, e in enumerate(shape) if k not in axes),)


_linalg(
    "norm_of_singular_values", _norm_shape, "The norm of order 2, -2 or 'nuc' of matrices.", numpy=np.linalg.norm,
    function=None,
    parameters=("x",), types=lambda t: (t.real,), attributes=(("ord", 2), ("axis", (-2, -1)), ("keepdims", False)),
    derivative=Equivalent(equivalent_expressions.norm_of_singular_values),
)  # fmt: skip


def _cond_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    if attributes["p"] not in (None, 2, -2):
        return (square(shapes[0], require)[0],)
    return (matrix(shapes[0])[0],)


_linalg(
    "cond", _cond_shape, "The condition number of each matrix.", types=lambda t: (t.real,), parameters=("x",),
    attributes=(("p", None),), derivative=Equivalent(equivalent_expressions.condition_number),
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# least squares


def _lstsq_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    shape, other = shapes
    if len(shape) != 2 or len(other) not in (1, 2):
        raise MatrixError(
            f"lstsq: {len(shape)} and {len(other)} axes", hint="give a matrix, and right sides with one or two axes"
        )
    (rows, columns), sides = shape, other[1:]
    message = "Incompatible dimensions: {left} rows and {right} right sides"
    require(rows, "==", other[0], message, "give one for each", MatrixError)
    residuals = ((*sides,) if sides else (1,)) if attributes["residuals"] else (0,)
    return (columns, *sides), residuals, (), (minimum(rows, columns),)


def _lstsq(a: Any, b: Any, rcond: Any, residuals: bool) -> Any:
    return np.linalg.lstsq(a, b, rcond)


_linalg(
    "lstsq", _lstsq_shape, "Least squares: the solution, the residuals, the rank and the singular values.",
    numpy=_lstsq, function=None, parameters=("a", "b"), types=lambda t: (t, t.real, int32, t.real),
    attributes=(("rcond", None), ("residuals", True)),
    derivative=Equivalent(equivalent_expressions.least_squares),
    sizes_from_data="the residuals of a matrix without full rank have no elements",
)  # fmt: skip


def _polyfit_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
    x, y = shapes[:2]
    if len(x) != 1 or len(y) not in (1, 2):
        raise ShapeError("polyfit: expected 1D vector for x, and 1D or 2D array for y")
    require(
        x[0],
        "==",
        y[0],
        "expected x and y to have same length, not {left} and {right}",
        "give one y for each x",
        DtypeError,
    )
    return ((attributes["deg"] + 1, *y[1:]),)


def _polyfit_sample(types: Sequence[Any], attributes: Attributes) -> Any:
    arrays = [np.arange(1, 5).astype(kind) for kind in types]
    names = ("x", "y", "w") if len(arrays) == 3 else ("x", "y")
    named: dict[str, Any] = dict(zip(names, arrays, strict=True))
    return np.polyfit(**named, deg=1)


register(
    WholeArrayOp(
        name="polyfit", doc="The coefficients of the polynomial of degree `deg` that fits best.", numpy=polyfit,
        function=np.polyfit, parameters=("x", "y", "w"), optional=True, arity=None, shape=_polyfit_shape,
        dtypes=of_sample(_polyfit_sample), attributes=(("deg", 1), ("rcond", None)),
        derivative=Equivalent(equivalent_expressions.polynomial_fit),
    )
)  # fmt: skip
