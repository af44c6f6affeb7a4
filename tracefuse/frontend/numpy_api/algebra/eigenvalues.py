"""Eigenvalues of general matrices, on traced values.

Before NumPy 2.5 those of a real matrix are real or complex, as its elements decide: NumPy returns real arrays where no
eigenvalue has an imaginary part, which is a question about a computed value. What follows is compiled for each answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import TraceError, UnsupportedError
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import as_operand, call_whole, op_named
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.values.traced import Traced

FUNCTIONS = Functions()
implements = FUNCTIONS.implements

_PAIR: Any = type(np.linalg.eig(np.eye(1)))

_ELEMENTS_DECIDE = not np.iscomplexobj(np.linalg.eigvals(np.eye(1)))
"""Whether NumPy returns real arrays for some matrices. Since NumPy 2.5 the results are always complex."""


def complex_eig(a: Any) -> Any:
    """Eigenvalues and eigenvectors, both complex."""
    return _PAIR(*call_whole(op_named("eig"), "np.linalg.eig", {"a": a}))


def complex_eigvals(a: Any) -> Any:
    """Eigenvalues, complex."""
    return call_whole(op_named("eigvals"), "np.linalg.eigvals", {"a": a})


@implements(np.linalg.eig)
def eig(a: Any) -> Any:
    operand = as_operand(a)
    values, vectors = complex_eig(operand)
    return _PAIR(values.real, vectors.real) if _are_real(operand, values) else _PAIR(values, vectors)


@implements(np.linalg.eigvals)
def eigvals(a: Any) -> Any:
    operand = as_operand(a)
    values = complex_eigvals(operand)
    return values.real if _are_real(operand, values) else values


def _are_real(operand: Traced, values: Any) -> bool:
    """Whether NumPy returns real arrays: the matrix is real, and so is each eigenvalue."""
    if operand.value.dtype.is_complex or not _ELEMENTS_DECIDE:
        return False
    try:
        return bool((values.imag == 0).all())
    except TraceError:
        raise UnsupportedError(
            "the eigenvalues of a real matrix are real or complex, which its elements decide",
            hint="pass x.astype(complex), or use np.linalg.eigh for symmetric matrices", where=source.user_line(),
        ) from None  # fmt: skip
