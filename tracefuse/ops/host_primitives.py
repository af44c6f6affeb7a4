"""Primitives of JAX that NumPy and SciPy compute on the host, for stacks of matrices: linear algebra, special functions.

They follow JAX where NumPy raises: the results for a matrix without a factorization are NaN.

Must not know: recording.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse.ir.library_kinds import WholeArrayOp


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
    flat, exchanges = order.reshape(-1, permutation_size), pivots.reshape(-1, pivots.shape[-1])
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


def _finite(a: Any) -> tuple[Any, Any]:
    """Returns a stack with zeros in matrices that are not finite, and which these are."""
    is_finite = np.isfinite(a).all((-2, -1))
    return (a, None) if is_finite.all() else (np.where(is_finite[..., None, None], a, 0), ~is_finite)


def _with_nan(results: Sequence[Any], missing: Any) -> tuple[Any, ...]:
    if missing is None:
        return tuple(results)
    copies = [np.array(result) for result in results]
    for copy in copies:
        copy[missing] = np.nan
    return tuple(copies)


def _eigh(a: Any, lower: bool, **_: Any) -> Any:
    a, missing = _finite(a)
    values, vectors = np.linalg.eigh(a, UPLO="L" if lower else "U")
    return _with_nan((vectors, values), missing)


def _eig(a: Any, compute_right_eigenvectors: bool, **_: Any) -> Any:
    a, missing = _finite(a)
    kind = np.result_type(a.dtype, np.complex64)
    results = np.linalg.eig(a) if compute_right_eigenvectors else (np.linalg.eigvals(a),)
    return _with_nan([result.astype(kind) for result in results], missing)


def _svd(a: Any, compute_uv: bool, full_matrices: bool, **_: Any) -> Any:
    a, missing = _finite(a)
    if not compute_uv:
        return _with_nan((np.linalg.svd(a, compute_uv=False),), missing)
    left, values, right = np.linalg.svd(a, full_matrices=full_matrices)
    return _with_nan((values, left, right), missing)


def _qr(a: Any, full_matrices: bool, **_: Any) -> Any:
    return tuple(np.linalg.qr(a, mode="complete" if full_matrices else "reduced"))


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


HOST_PRIMITIVE = WholeArrayOp(
    name="host_primitive", doc="A primitive of JAX, which NumPy or SciPy computes.", arity=None, raises=False,
    numpy=_call, dtypes=lambda operands, given: given["types"], shape=lambda shapes, given, require: given["shapes"],
    attributes=(("primitive", ""), ("parameters", ()), ("types", ()), ("shapes", ())),
)  # fmt: skip
