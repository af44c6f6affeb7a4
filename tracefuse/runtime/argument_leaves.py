"""What one leaf of the arguments is: an array, a host scalar or a static value, and its part in the key of the trace.

Knows: kinds of arrays, Python's and NumPy's scalars. Must not know: pytrees, tracing.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

import numpy as np

from tracefuse import dtypes
from tracefuse.dtypes import DataType, DType, dtype_of
from tracefuse.errors import TraceError
from tracefuse.runtime.devices import arrays

_INT64 = range(-(2**63), 2**63)


class Leaf(NamedTuple):
    """What one leaf of the arguments is.

    kind: "array", "scalar" or "static". key: its part in the key of the trace. path: as Python spells it. of_array: a
    scalar that is held by an array without axes, which an in-place operation would change.
    """

    kind: str
    key: Any
    path: str
    value: Any
    dtype: DType | None = None
    weak: str | None = None
    of_array: bool = False


def array_key(value: Any, dtype: DType) -> tuple[Any, ...]:
    """Element type, rank and which extents are 1."""
    return (dtype, tuple([extent == 1 for extent in value.shape]))


def classify(value: Any, path: str) -> Leaf:
    """What a leaf is; raises for arrays that are refused and for objects that cannot be static."""
    kind = arrays.kind_of(value)
    if kind is not None:
        dtype = arrays.dtype_of_argument(value, path)
        if kind == "numpy" and not value.shape:
            return Leaf("scalar", ("in an array", dtype), path, value[()], dtype, of_array=True)
        return Leaf("array", array_key(value, dtype), path, value, dtype)
    if (isinstance(value, np.generic) and not isinstance(value, (float, complex))) or type(value) in _NUMPY_FLOATS:
        dtype = dtype_of(value.dtype)
        return Leaf("scalar", ("strong", dtype), path, value, dtype)
    if type(value) is int and value not in _INT64:
        return Leaf("static", ("int", value), path, value)
    if type(value) in _PYTHON:
        dtype = _PYTHON[type(value)]
        return Leaf("scalar", type(value), path, value, dtype, dtypes.python_kind(value))
    if isinstance(value, slice):
        return Leaf("static", ("slice", value.start, value.stop, value.step), path, value)
    if not isinstance(value, _STATIC) and not callable(value):
        if type(value).__module__.startswith("jax.") and type(value).__name__.endswith("Tracer"):
            raise TraceError(
                f"{path} is traced by JAX (a {type(value).__name__})",
                hint="call the fused function outside of jax.jit, jax.grad and jax.vmap, or write it in jax.numpy",
            )
        raise TraceError(
            f"{path} is a {type(value).__name__}, which is neither an array, a number nor static by itself",
            hint="name it in static_argnames, or register its class with register_pytree_node",
        )
    return Leaf("static", static_key(value, path), path, value)


_PYTHON = {bool: dtypes.bool_, int: dtypes.int64, float: dtypes.float64, complex: dtypes.complex128}
_NUMPY_FLOATS = (np.float64, np.complex128)


_STATIC = (str, bytes, type(None), np.dtype, enum.Enum, type, type(Ellipsis), range, DataType, DType)


def static_key(value: Any, path: str) -> Any:
    """The key of a static argument: equal by equality; TraceError for what is not hashable."""
    try:
        hash(value)
    except TypeError:
        raise TraceError(
            f"{path} is a {type(value).__name__}, which is neither an array nor hashable",
            hint="pass arrays, numbers, hashable values, or register the class with register_pytree_node",
        ) from None
    return (type(value), value)
