"""Classifies the leaves of a call's arguments as arrays, host scalars or static values.

Each leaf contributes a key to the call signature, by which the trace cache finds a trace.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from tracefuse import dtypes
from tracefuse.dtypes import DataType, DType, dtype_of
from tracefuse.errors import TraceError
from tracefuse.runtime.devices import arrays

GENERATORS = (np.random.Generator, np.random.RandomState)
"""Arguments that draws read at every call: a trace serves all generators of a class."""

_INT64 = range(-(2**63), 2**63)


class LeafKind(enum.Enum):
    """How a leaf enters a trace."""

    ARRAY = enum.auto()
    """A tensor input."""
    SCALAR = enum.auto()
    """A scalar input, whose value may change from call to call."""
    STATIC = enum.auto()
    """A constant; another value makes another trace."""
    OBJECT = enum.auto()
    """An object of the user's, whose attributes the trace reads at every call."""


class Leaf(NamedTuple):
    """A classified leaf of the arguments.

    key: its contribution to the call signature. path: the Python expression that
    names the leaf, such as `params["w"]`. route: of an object, how later calls reach it. weak: the kind of a Python
    scalar in type promotion. of_array: the scalar is
    the value of a 0-d array, which an in-place operation would update. generator: of a random generator, what its draws
    come from in every call.
    """

    kind: LeafKind
    key: Any
    path: str
    value: Any
    dtype: DType | None = None
    weak: str | None = None
    of_array: bool = False
    generator: Any = None
    route: Any = None

    @property
    def is_array(self) -> bool:
        return self.kind is LeafKind.ARRAY

    @property
    def is_static(self) -> bool:
        """Whether the leaf is no input of a fusion."""
        return self.kind in (LeafKind.STATIC, LeafKind.OBJECT)

    @property
    def is_object(self) -> bool:
        return self.kind is LeafKind.OBJECT

    @property
    def number(self) -> Any:
        """The Python number of a scalar."""
        return self.value if self.weak is not None else self.value.item()


def array_key(value: Any, dtype: DType) -> tuple[Any, ...]:
    """Returns the key of an array: its dtype, rank and the axes of extent 1."""
    return (dtype, tuple([extent == 1 for extent in value.shape]))


def classify(value: Any, path: str, is_users: Callable[[type], bool] = lambda cls: False) -> Leaf:
    """Classifies a leaf. is_users: whether a trace follows the attributes of the instances of a class.

    Raises UnsupportedError or DtypeError for arrays that are not supported, TraceError for objects that cannot be
    static.
    """
    value = arrays.as_described(value)
    kind = arrays.kind_of(value)
    if kind is not None:
        dtype = arrays.dtype_of_argument(value, path)
        if kind == "numpy" and not value.shape:
            return Leaf(LeafKind.SCALAR, ("in an array", dtype), path, value, dtype, of_array=True)
        key = array_key(value, dtype)
        if kind == "jax" and getattr(value, "weak_type", False):  # it promotes as a Python number
            key = (*key, "weak")
        return Leaf(LeafKind.ARRAY, key, path, value, dtype)
    if (isinstance(value, np.generic) and not isinstance(value, (float, complex))) or type(value) in _NUMPY_FLOATS:
        dtype = dtype_of(value.dtype)
        return Leaf(LeafKind.SCALAR, ("strong", dtype), path, value, dtype)
    if type(value) is int and value not in _INT64:
        return Leaf(LeafKind.STATIC, ("int", value), path, value)
    if type(value) in _PYTHON:
        dtype = _PYTHON[type(value)]
        return Leaf(LeafKind.SCALAR, type(value), path, value, dtype, dtypes.python_kind(value))
    if isinstance(value, GENERATORS):
        return Leaf(LeafKind.STATIC, type(value), path, value)
    if isinstance(value, slice):
        return Leaf(LeafKind.STATIC, ("slice", value.start, value.stop, value.step), path, value)
    if not isinstance(value, _STATIC) and not callable(value):
        if is_users(type(value)):
            return Leaf(LeafKind.OBJECT, ("object", type(value)), path, value)
        raise _unsupported_object(value, path)
    return Leaf(LeafKind.STATIC, static_key(value, path), path, value)


def _unsupported_object(value: Any, path: str) -> TraceError:
    if type(value).__module__.startswith("jax.") and type(value).__name__.endswith("Tracer"):
        return TraceError(
            f"{path} is traced by JAX (a {type(value).__name__})",
            hint="call the fused function outside of jax.jit, jax.grad and jax.vmap, or write it in jax.numpy",
        )
    return TraceError(
        f"{path} is a {type(value).__name__}, which is not an array, a number or a static value",
        hint="name it in static_argnames, or register its class with register_pytree_node",
    )


_PYTHON = {bool: dtypes.bool_, int: dtypes.int64, float: dtypes.float64, complex: dtypes.complex128}
_NUMPY_FLOATS = (np.float64, np.complex128)


_STATIC = (
    str, bytes, type(None), np.dtype, enum.Enum, type, type(Ellipsis), range, DataType, DType, ModuleType,
)  # fmt: skip


def static_key(value: Any, path: str) -> Any:
    """Returns the key of a static argument, its type and value. Raises TraceError if it is not hashable."""
    try:
        hash(value)
    except TypeError:
        raise TraceError(
            f"{path} is a {type(value).__name__}, which is neither an array nor hashable",
            hint="pass arrays, numbers, hashable values, or register the class with register_pytree_node",
        ) from None
    return (type(value), value)
