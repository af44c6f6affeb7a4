"""NumPy's products of vectors and matrices, on traced values.

Knows: NumPy's functions and parameters. Must not know: how values are recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import arithmetic, dtypes, operations, shaping
from tracefuse.in_place import into
from tracefuse.numpy_table import Functions
from tracefuse.operations import apply, as_tensor, missing

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


@implements(np.dot)
def dot(a: Any, b: Any, out: Any = None) -> Any:
    result = arithmetic.dot(a, b)
    return result if out is None else into(out, result)


@implements(np.inner)
def inner(a: Any, b: Any, /) -> Any:
    left, right = as_tensor(a), as_tensor(b)
    if not left.extents or not right.extents:
        return apply("mul", left, right)
    if len(right.extents) > 2:
        raise missing("np.inner of more than two axes", "use np.einsum")
    return arithmetic.matmul(left, shaping.transpose(right))


@implements(np.outer)
def outer(a: Any, b: Any, out: Any = None) -> Any:
    left, right = shaping.reshape(a, -1), shaping.reshape(b, -1)
    return apply("mul", shaping.expand_dims(left, 1), shaping.expand_dims(right, 0))


@implements(np.vdot)
def vdot(a: Any, b: Any, /) -> Any:
    return arithmetic.matmul(shaping.reshape(arithmetic.conjugate(a), -1), shaping.reshape(b, -1))


@implements(np.trace)
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
    raise missing("np.trace", "write np.sum(a * np.eye(n))")


@implements(np.linalg.norm)
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    traced = as_tensor(x)
    if ord not in (None, 2, "fro") or (ord == 2 and axis is None and len(traced.extents) > 1):
        raise missing(f"np.linalg.norm with ord={ord!r}", "write it with np.abs, np.sum and np.max")
    if not traced.value.dtype.is_floating:
        traced = operations.astype(traced, dtypes.float64)
    return apply("sqrt", operations.reduce("sum", apply("mul", traced, traced), axis, None, None, keepdims))
