"""The `linalg` extension of the array API: NumPy's functions with the standard's parameters."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.frontend.array_api.standard_calls import standard
from tracefuse.frontend.numpy_api.algebra import eigenvalues
from tracefuse.frontend.tracer.values.traced import Traced

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals",
    "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip

_linalg: Any = np.linalg  # its functions record traced values, which its annotations do not tell


def _by_library(function: Any) -> Any:
    return standard(function, by_library=True)


matmul, matrix_transpose = standard(np.matmul), standard(np.matrix_transpose)
tensordot, vecdot = standard(np.tensordot), standard(np.vecdot)


@standard
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """The cross product of vectors with 3 elements along an axis."""
    return _linalg.cross(x1, x2, axis=axis)


@standard
def outer(x1: Any, x2: Any, /) -> Any:
    """The products of all pairs of elements of two vectors."""
    return _linalg.outer(x1, x2)


@standard
def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """The diagonals of matrices."""
    return _linalg.diagonal(x, offset=offset)


@standard
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    """The sums of the diagonals of matrices."""
    return _linalg.trace(x, offset=offset, dtype=dtype)


@standard
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """The norms of vectors along axes; of all elements if `axis` is None."""
    return _linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=ord)


@_by_library
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norms of matrices."""
    return _linalg.matrix_norm(x, keepdims=keepdims, ord=ord)


@_by_library
def cholesky(x: Any, /, *, upper: bool = False) -> Any:
    """The triangular factors of positive definite matrices."""
    return _linalg.cholesky(x, upper=upper)


@_by_library
def det(x: Any, /) -> Any:
    """The determinants of matrices."""
    return _linalg.det(x)


@_by_library
def eig(x: Any, /) -> Any:
    """Eigenvalues and eigenvectors, both complex."""
    if isinstance(x, Traced):
        return eigenvalues.complex_eig(x)
    result = _linalg.eig(x)
    return type(result)(*map(_as_complex, result))


@_by_library
def eigvals(x: Any, /) -> Any:
    """Eigenvalues, complex."""
    return eigenvalues.complex_eigvals(x) if isinstance(x, Traced) else _as_complex(_linalg.eigvals(x))


def _as_complex(array: Any) -> Any:
    return array.astype(np.result_type(array.dtype, np.complex64), copy=False)


@_by_library
def eigh(x: Any, /) -> Any:
    """Eigenvalues in ascending order, and eigenvectors, of Hermitian matrices."""
    return _linalg.eigh(x)


@_by_library
def eigvalsh(x: Any, /) -> Any:
    """Eigenvalues of Hermitian matrices in ascending order."""
    return _linalg.eigvalsh(x)


@_by_library
def inv(x: Any, /) -> Any:
    """The inverses of matrices."""
    return _linalg.inv(x)


@_by_library
def matrix_power(x: Any, n: int, /) -> Any:
    """The n-th powers of matrices."""
    return _linalg.matrix_power(x, n)


@_by_library
def matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    """The number of singular values above `rtol` times the greatest, int64."""
    return _linalg.matrix_rank(x, rtol=rtol)


@_by_library
def pinv(x: Any, /, *, rtol: Any = None) -> Any:
    """Pseudoinverses; singular values up to `rtol` times the greatest count as 0."""
    return _linalg.pinv(x, rtol=rtol)


@_by_library
def qr(x: Any, /, *, mode: str = "reduced") -> Any:
    """Factors Q, orthonormal, and R, upper triangular."""
    return _linalg.qr(x, mode=mode)


@_by_library
def slogdet(x: Any, /) -> Any:
    """The signs of determinants, and the logarithms of their absolute values."""
    return _linalg.slogdet(x)


@_by_library
def solve(x1: Any, x2: Any, /) -> Any:
    """The solutions of linear equations x1 @ x = x2; x2 with one axis is one right side."""
    return _linalg.solve(x1, x2)


@_by_library
def svd(x: Any, /, *, full_matrices: bool = True) -> Any:
    """Factors U, S and Vh: singular values S in descending order, and unitary matrices."""
    return _linalg.svd(x, full_matrices=full_matrices)


@_by_library
def svdvals(x: Any, /) -> Any:
    """Singular values in descending order."""
    return _linalg.svdvals(x)
