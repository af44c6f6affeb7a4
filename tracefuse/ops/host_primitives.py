"""Primitives of JAX that NumPy and SciPy compute on the host, for stacks of matrices: linear algebra, special functions.

They follow JAX where NumPy raises: the results for a matrix without a factorization are NaN.

Must not know: recording.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse.ir.derivatives import Application, Tangent
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops.families import register
from tracefuse.ops.jax_primitives import bound


def _matrices(*stacks: Any) -> Iterator[tuple[Any, ...]]:
    """Yields the matrices of stacks with the same leading axes."""
    for index in np.ndindex(stacks[0].shape[:-2]):
        yield tuple(stack[index] for stack in stacks)


def _each(a: Any, shapes: Sequence[tuple[int, ...]], types: Sequence[Any]) -> list[Any]:
    """Returns an uninitialized result for each matrix of a stack, as one array for each of the shapes."""
    return [np.empty((*a.shape[:-2], *shape), dtype) for shape, dtype in zip(shapes, types, strict=True)]


def _as_single(a: Any) -> Any:
    """Half precision as float32."""
    return a.astype(np.float32) if a.dtype.itemsize < 4 else a


def _cholesky(a: Any, **_: Any) -> Any:
    try:
        return np.linalg.cholesky(a)
    except np.linalg.LinAlgError:
        result = np.full_like(a, np.nan)
    for target, matrix in _matrices(result, a):
        try:
            target[...] = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            continue
    return result


def _lu(a: Any, **_: Any) -> tuple[Any, Any, Any]:
    """The factors, the pivots and the permutation of rows, counted from 0."""
    rows, columns = a.shape[-2:]
    count = min(rows, columns)
    factors, pivots = _each(a, [(rows, columns), (count,)], [a.dtype, np.int32])
    (getrf,) = importlib.import_module("scipy.linalg").get_lapack_funcs(("getrf",), (a,))
    if count:
        for index in np.ndindex(a.shape[:-2]):
            factors[index], pivots[index], _info = getrf(a[index])
    return factors, pivots, _permutation(pivots, rows)


def _permutation(pivots: Any, permutation_size: int) -> Any:
    """The order of rows after the exchanges of rows k and pivots[k], one after the other."""
    order = np.empty((*pivots.shape[:-1], permutation_size), np.int32)
    order[...] = np.arange(permutation_size)
    count = math.prod(pivots.shape[:-1])
    flat, exchanges = order.reshape(count, permutation_size), pivots.reshape(count, pivots.shape[-1])
    stack = np.arange(len(flat))
    for k in range(pivots.shape[-1]):
        chosen = exchanges[:, k]
        flat[stack, chosen], flat[:, k] = flat[:, k].copy(), flat[stack, chosen]
    return order


def _triangular_solve(
    a: Any, b: Any, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool, **_: Any
) -> Any:
    (trsm,) = importlib.import_module("scipy.linalg").get_blas_funcs(("trsm",), (a, b))
    a = a.conj() if conjugate_a else a
    result = np.empty_like(b)
    for target, triangle, right in _matrices(result, a, b) if b.size else ():
        target[...] = trsm(
            1, triangle, right, side=int(not left_side), lower=int(lower), trans_a=int(transpose_a),
            diag=int(unit_diagonal),
        )  # fmt: skip
    return result


def _routine(name: str, a: Any, *extents: int, **options: int) -> Callable[[Any], tuple[Any, ...]]:
    """A routine of SciPy's LAPACK as a function of one matrix of the stack, with the workspace that it asks for.

    jaxlib calls the same routines, so that vectors have the signs of JAX's. Those of NumPy, which has a LAPACK of its
    own, differ for 4 in 10 matrices in single precision.
    """
    functions = importlib.import_module("scipy.linalg").get_lapack_funcs((name, f"{name}_lwork"), (a,))
    *workspace, _info = functions[1](*extents, **options)
    # LAPACK returns counts as numbers of the matrix's type: the next number above holds what single precision rounds.
    counts = [int(np.nextafter(np.real(count), np.inf, dtype=np.float32)) for count in workspace]
    return functools.partial(functions[0], **options, **dict(zip(("lwork", "liwork", "lrwork"), counts, strict=False)))


def _for_each_matrix(a: Any, results: Sequence[Any], compute: Callable[[Any], Sequence[Any]]) -> None:
    """Fills the results for each matrix of a stack: with NaN where it is not finite or LAPACK reports a failure."""
    is_finite = np.isfinite(a).all((-2, -1))
    for index in np.ndindex(a.shape[:-2]) if a.size else ():
        *parts, info = compute(a[index]) if is_finite[index] else (*results, 1)
        for result, part in zip(results, parts, strict=True):
            result[index] = np.nan if info else part


def _eigh(a: Any, lower: bool, **_: Any) -> Any:
    size = a.shape[-1]
    values, vectors = _each(a, [(size,), (size, size)], [a.real.dtype, a.dtype])
    if size:
        name = "heevd" if np.iscomplexobj(a) else "syevd"
        _for_each_matrix(a, (values, vectors), _routine(name, a, size, lower=int(lower), compute_v=1))
    return vectors, values


def _eig(a: Any, compute_right_eigenvectors: bool, **_: Any) -> Any:
    size, kind = a.shape[-1], np.result_type(a.dtype, np.complex64)
    values, vectors = _each(a, [(size,), (size, size)], [kind, kind])
    if size:
        routine = _routine("geev", a, size, compute_vl=0, compute_vr=int(compute_right_eigenvectors))
        _for_each_matrix(a, (values, vectors), functools.partial(_complex_pairs, routine))
    return (values, vectors) if compute_right_eigenvectors else (values,)


def _complex_pairs(routine: Callable[[Any], tuple[Any, ...]], a: Any) -> tuple[Any, Any, int]:
    """The eigenvalues and right eigenvectors of a matrix.

    For a real matrix LAPACK returns the parts of the values, and the parts of the vectors of a conjugate pair as two
    columns (the documentation of geev).
    """
    *values, _left, vectors, info = routine(a)
    if len(values) == 1:
        return values[0], vectors, info
    real, imaginary = values
    joined = vectors.astype(np.result_type(a.dtype, np.complex64))
    first = np.flatnonzero(imaginary > 0)
    joined.imag[:, first] = vectors[:, first + 1]
    joined[:, first + 1] = joined[:, first].conj()
    return real + 1j * imaginary, joined, info


def _svd(a: Any, compute_uv: bool, full_matrices: bool, **_: Any) -> Any:
    rows, columns = a.shape[-2:]
    count = min(rows, columns)
    shapes = [(rows, rows if full_matrices else count), (count,), (columns if full_matrices else count, columns)]
    left, values, right = _each(a, shapes, [a.dtype, a.real.dtype, a.dtype])
    if not a.size:
        left[...], right[...] = np.eye(*left.shape[-2:]), np.eye(*right.shape[-2:])
    elif compute_uv:
        routine = _routine("gesdd", a, rows, columns, compute_uv=1, full_matrices=int(full_matrices))
        _for_each_matrix(a, (left, values, right), routine)
    else:
        routine = _routine("gesdd", a, rows, columns, compute_uv=0, full_matrices=0)
        _for_each_matrix(a, (values,), lambda matrix: routine(matrix)[1::2])
    return (values, left, right) if compute_uv else (values,)


def _qr(a: Any, full_matrices: bool, **_: Any) -> Any:
    rows, columns = a.shape[-2:]
    count = rows if full_matrices else min(rows, columns)
    factors = _each(a, [(rows, count), (count, columns)], [a.dtype, a.dtype])
    qr = functools.partial(importlib.import_module("scipy.linalg").qr, check_finite=False)
    for q, r, matrix in _matrices(*factors, a):
        q[...], r[...] = qr(matrix, mode="full" if full_matrices else "economic")
    return tuple(factors)


def _special(name: str) -> Callable[..., Any]:
    """A function of scipy.special, in the type of its first argument."""

    def call(*arrays: Any, **_: Any) -> Any:
        function = getattr(importlib.import_module("scipy.special"), name)
        return function(*map(_as_single, arrays)).astype(arrays[0].dtype)

    return call


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "cholesky": _cholesky, "lu": _lu, "triangular_solve": _triangular_solve, "eigh": _eigh, "eig": _eig, "svd": _svd,
    "qr": _qr, "lu_pivots_to_permutation": _permutation,
    "digamma": _special("psi"), "polygamma": _special("polygamma"), "igamma": _special("gammainc"), "igammac": _special("gammaincc"),
    "zeta": _special("zeta"), "bessel_i0e": _special("i0e"), "bessel_i1e": _special("i1e"),
    "regularized_incomplete_beta": _special("betainc"),
}  # fmt: skip
"""By primitive, the function of its operands and of those parameters that it reads."""


def is_computed(primitive: str, parameters: Mapping[str, Any]) -> bool:
    """Whether the function of a primitive computes it with these parameters."""
    unknown = ("pivoting", "compute_left_eigenvectors", "enable_eigvec_derivs")
    return primitive in FUNCTIONS and not any(parameters.get(name) for name in unknown)


def _call(*arrays: Any, primitive: str, parameters: Any, types: Any, shapes: Any) -> Any:
    with np.errstate(all="ignore"):
        return FUNCTIONS[primitive](*arrays, **dict(parameters))


def _tangent(node: Application, given: Sequence[Any]) -> Sequence[Any]:
    primitive = node.attributes["primitive"]
    return node.pushed_by_jax(primitive, bound(primitive, node.attributes["parameters"]), given)


def _transpose(node: Application, given: Sequence[Any]) -> Sequence[Any]:
    primitive = node.attributes["primitive"]
    return node.pulled_by_jax(primitive, bound(primitive, node.attributes["parameters"]), given)


HOST_PRIMITIVE = register(WholeArrayOp(
    name="host_primitive", doc="A primitive of JAX, which NumPy or SciPy computes.", arity=None, raises=False,
    numpy=_call, derivative=Tangent(_tangent, _transpose), dtypes=lambda operands, given: given["types"],
    shape=lambda shapes, given, require: given["shapes"],
    attributes=(("primitive", ""), ("parameters", ()), ("types", ()), ("shapes", ())),
))  # fmt: skip
