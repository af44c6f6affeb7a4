"""Functions of the array API whose NumPy counterparts have other parameters, types or results."""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np

from tracefuse import source
from tracefuse.errors import ShapeError
from tracefuse.frontend.array_api.standard_calls import standard
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.runtime.devices import arrays

_numpy: Any = np  # its functions record traced values, which its annotations do not tell

# ---------------------------------------------------------------------------------------------------------------------
# types and shapes


def _is_array(value: Any) -> bool:
    return isinstance(value, (Traced, np.generic)) or arrays.kind_of(value) is not None


def _type_of(value: Any) -> Any:
    """The dtype of an array, or `value` itself."""
    return np.dtype(value.dtype) if _is_array(value) else value


class FloatLimits:
    """The attributes of NumPy's `finfo`, with Python floats in place of NumPy's scalars, as the standard asks."""

    def __init__(self, limits: Any) -> None:
        self._limits = limits

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # a copy asks for special methods before it has its attributes
            raise AttributeError(name)
        value = getattr(self._limits, name)
        return float(value) if isinstance(value, np.generic) else value

    def __repr__(self) -> str:
        return repr(self._limits)


def finfo(type: Any, /) -> Any:
    """Limits of a floating point type, or of the type of an array. `eps`, `max` and the others are Python floats."""
    return FloatLimits(ml_dtypes.finfo(_type_of(type)))


def iinfo(type: Any, /) -> Any:
    """Limits of an integer type, or of the type of an array."""
    return np.iinfo(_type_of(type))


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion turns a type, or the type of an array, into another one."""
    return np.can_cast(_type_of(from_), _type_of(to))


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a type is of a kind: a type, a name such as 'real floating', or a tuple of them."""
    return np.isdtype(dtype, kind)


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The type of an operation on arrays, types and Python numbers."""
    return np.result_type(*[_type_of(value) if _is_strong(value) else value for value in arrays_and_dtypes])


def _is_strong(value: Any) -> bool:
    return not isinstance(value, Traced) or value.weak is None


def broadcast_shapes(*shapes: Any) -> tuple[Any, ...]:
    """The shape that arrays of these shapes have after broadcasting. Sizes may be symbolic."""
    result: list[Any] = []
    for axis in range(-max(map(len, shapes), default=0), 0):
        sizes = [shape[axis] for shape in shapes if len(shape) >= -axis]
        extents = [size for size in sizes if size != 1] or [1]
        for other in extents[1:]:
            if other != extents[0]:
                raise ShapeError(
                    f"shapes {', '.join(map(str, shapes))} cannot be broadcast: sizes {extents[0]} and {other}",
                    hint="sizes of an axis are equal or 1",
                    where=source.user_line(),
                )
        result.append(extents[0])
    return tuple(result)


# ---------------------------------------------------------------------------------------------------------------------
# elements


@standard
def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """Elements limited to bounds, in the type of x. None: no bound."""
    lower, upper = (_bound(x, value, side) for value, side in ((min, "min"), (max, "max")))
    if lower is None and upper is None:
        return _numpy.copy(x)
    return _numpy.clip(x, lower, upper)


def _bound(x: Any, value: Any, side: str) -> Any:
    """A bound in the type of x. One that the integers of x cannot reach is their own limit."""
    dtype = np.dtype(x.dtype)
    if value is None or (_is_array(value) and value.dtype == dtype):
        return value
    if not np.isdtype(dtype, "integral"):
        return value.astype(dtype) if _is_array(value) else value
    limits = np.iinfo(dtype)
    if _is_array(value):
        return _numpy.clip(value, *_shared_limits(dtype, value.dtype)).astype(dtype)
    if isinstance(value, int):
        is_beyond = value <= limits.min if side == "min" else value >= limits.max
        return None if is_beyond else value
    return dtype.type(value) if isinstance(value, float) else value


def _shared_limits(first: Any, second: Any) -> tuple[int, int]:
    """The least and the greatest integer that both types have."""
    limits = [np.iinfo(t) for t in (first, second) if np.isdtype(np.dtype(t), "integral")]
    return max(int(limit.min) for limit in limits), min(int(limit.max) for limit in limits)


@standard
def count_nonzero(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    """The number of elements that are not 0, as int64."""
    count = _numpy.count_nonzero(x, axis=axis, keepdims=keepdims)
    return count if isinstance(count, Traced) else np.asarray(count)


@standard
def isin(x1: Any, x2: Any, /, *, invert: bool = False) -> Any:
    """Whether each element of x1 is in x2; whether it is not with `invert`."""
    return _numpy.isin(x1, x2, invert=invert)


# ---------------------------------------------------------------------------------------------------------------------
# order, and functions whose data decide sizes

by_library = functools.partial(standard, by_library=True)


@by_library
def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """Elements in order along an axis; NaNs count as the greatest."""
    ordered = _numpy.sort(x, axis=axis, kind="stable" if stable else None)
    return _numpy.flip(ordered, axis=axis) if descending else ordered


@by_library
def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Any:
    """The positions, int64, of the elements in order along an axis. Equal elements keep their order if `stable`."""
    kind = "stable" if stable else None
    if not descending:
        return _numpy.argsort(x, axis=axis, kind=kind)
    order = _numpy.flip(_numpy.argsort(_numpy.flip(x, axis=axis), axis=axis, kind=kind), axis=axis)
    return x.shape[axis] - 1 - order


@by_library
def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Any:
    """The positions, int64, at which elements of x2 keep x1 in order."""
    return _numpy.searchsorted(x1, x2, side=side, sorter=sorter)


@by_library
def nonzero(x: Any, /) -> Any:
    """The positions, int64, of the elements that are not 0: an array for each axis of x."""
    if not len(x.shape):
        raise ShapeError("nonzero of an array without axes", hint="write x != 0", where=source.user_line())
    return _numpy.nonzero(x)


@by_library
def unique_all(x: Any, /) -> Any:
    """The distinct elements, where each occurs first, which one each element is, and how often each occurs."""
    return _numpy.unique_all(x)


@by_library
def unique_counts(x: Any, /) -> Any:
    """The distinct elements, and how often each occurs."""
    return _numpy.unique_counts(x)


@by_library
def unique_inverse(x: Any, /) -> Any:
    """The distinct elements, and which one each element is."""
    return _numpy.unique_inverse(x)


@by_library
def unique_values(x: Any, /) -> Any:
    """The distinct elements."""
    return _numpy.unique_values(x)
