"""NumPy's functions of axes and shapes, joins and splits, on traced values."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of
from tracefuse.errors import DtypeError, NoAttributeError, ShapeError
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import as_strong
from tracefuse.frontend.numpy_api.registration import array_memory
from tracefuse.frontend.numpy_api.registration.registry import Functions, functions
from tracefuse.frontend.tracer.array_ops import shaping
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size, cut_off
from tracefuse.frontend.tracer.array_ops.traced_ops import (
    as_tensor,
    as_traced,
    astype,
    axes_of,
    missing,
    warn_of_lost_parts,
)
from tracefuse.frontend.tracer.values import settled_extents, views
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, wrap
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import minimum

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


@implements(np.reshape)
def reshape(a: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: Any = None) -> Any:
    return array_memory.reshape(as_tensor(a), newshape if shape is None else shape, order, copy, is_called=True)


@implements(np.ravel)
def ravel(a: Any, order: str = "C") -> Any:
    return array_memory.ravel(as_tensor(a), order)


@implements(np.transpose, np.permute_dims)
def transpose(a: Any, axes: Any = None) -> Any:
    return shaping.transpose(a, (axes,) if isinstance(axes, (int, np.integer)) else axes)


@implements(np.matrix_transpose, np.linalg.matrix_transpose)
def matrix_transpose(x: Any, /) -> Any:
    return shaping.swapaxes(x, -1, -2)


@implements(np.swapaxes)
def swapaxes(a: Any, axis1: Any, axis2: Any) -> Any:
    return shaping.swapaxes(a, axis1, axis2)


@implements(np.moveaxis)
def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    return shaping.moveaxis(a, source, destination)


def _is_list(a: Any) -> bool:
    return isinstance(a, (list, tuple)) or (isinstance(a, Traced) and a.is_list)


def require_array(a: Any, name: str) -> None:
    """Raises NoAttributeError for a list or a number of Python: NumPy reads an attribute that arrays alone have."""
    weak = a.weak if isinstance(a, Traced) else "int" if isinstance(a, SymbolicSize) else None
    if type(a) in (bool, int, float, complex):
        weak = type(a).__name__
    if weak is not None or _is_list(a):
        message = f"{weak or 'list'!r} object has no attribute {name!r}"
        raise NoAttributeError(message, hint="give an array: np.array(a)", where=source.user_line())


@implements(np.rollaxis)
def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    require_array(a, "ndim")
    rank = len(as_traced(a).extents)
    axis, place = normalize_axis(axis, rank), operator.index(start)
    # NumPy counts a negative start from the last axis, not from the end.
    start = normalize_axis(place + rank if -rank <= place < 0 else place, rank + 1)
    return shaping.moveaxis(a, axis, start - 1 if axis < start else start)


@implements(np.squeeze)
def squeeze(a: Any, axis: Any = None) -> Any:
    return shaping.squeeze(a, axis)


@implements(np.expand_dims)
def expand_dims(a: Any, axis: Any) -> Any:
    return shaping.expand_dims(a, axis)


@implements(np.broadcast_to)
def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    result = shaping.broadcast_to(array, shape)
    result.read_only = "the result of np.broadcast_to"
    return result


@implements(np.broadcast_arrays)
def broadcast_arrays(*arrays: Any, subok: bool = False) -> Any:
    parts = [as_tensor(a) for a in arrays]
    recorder = parts[0].recorder
    settled = settled_extents.settled(recorder, [recorder.resolve(p) for p in parts])
    shape = settled_extents.broadcast_shape([r.shape for r in settled], recorder)
    results = tuple(shaping.broadcast_to(r.traced, recorder.sizes(shape)) for r in settled)
    for result, part in zip(results, parts, strict=True):
        if result.extents != part.extents:
            result.read_only = "a result of np.broadcast_arrays"
    return results


@implements(np.atleast_1d)
def atleast_1d(*arrays: Any) -> Any:
    parts = [a if as_tensor(a).extents else shaping.reshape(a, (1,)) for a in arrays]
    return parts[0] if len(parts) == 1 else tuple(parts)


@implements(np.atleast_2d)
def atleast_2d(*arrays: Any) -> Any:
    parts = []
    for a in arrays:
        rank = len(as_tensor(a).extents)
        parts.append(a if rank >= 2 else shaping.expand_dims(a, tuple(range(2 - rank))))
    return parts[0] if len(parts) == 1 else tuple(parts)


@implements(np.shape)
def shape(a: Any) -> Any:
    return a.shape


@implements(np.ndim)
def ndim(a: Any) -> int:
    return len(as_traced(a).extents)


@implements(np.size)
def size(a: Any, axis: Any = None) -> Any:
    if axis is None:
        return a.size
    axes = axes_of(tuple(axis) if isinstance(axis, list) else axis, len(a.shape))
    return math.prod([a.shape[k] for k in axes])


def _check_casting(arrays: Any, dtype: Any, casting: str) -> None:
    """Raises DtypeError for an array that does not go into a named type by the casting rule."""
    if dtype is None and casting in ("same_kind", "unsafe"):
        return
    types = [as_tensor(array).value.dtype.numpy for array in arrays]
    target = np.result_type(*types) if dtype is None else dtype_of(dtype).numpy
    for dtype_of_array in types:
        if not np.can_cast(dtype_of_array, target, casting):  # type: ignore[arg-type]
            raise DtypeError(
                f"Cannot cast array data from {dtype_of_array} to {target} according to the rule '{casting}'",
                hint="cast the arrays with astype first, or give casting='unsafe'", where=source.user_line(),
            )  # fmt: skip
        warn_of_lost_parts(dtype_of(dtype_of_array), dtype_of(target))


def _dtype_of_result(name: str, dtype: Any, out: Any) -> Any:
    """Returns the type that a call asks for. Raises DtypeError if it gives both parameters."""
    if dtype is not None and out is not None:
        raise DtypeError(f"np.{name} takes out= or dtype=, not both", hint="leave dtype= out: it is that of out")
    return dtype if out is None else out.dtype


@implements(np.concatenate)
def concatenate(
    arrays: Any, /, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind"
) -> Any:
    _check_casting(arrays, _dtype_of_result("concatenate", dtype, out), casting)
    result = shaping.concatenate(without_python_numbers(arrays) if axis is None else arrays, axis, dtype)
    return result if out is None else _joined_into(out, result, arrays, axis)


def _joined_into(out: Any, result: Any, arrays: Any, axis: Any) -> Any:
    """Stores joined arrays in `out=`, one after another if it has the memory of one of them, which later ones read."""
    owner = views.owner_of(out) if isinstance(out, Traced) else None
    if owner is None or not any(views.owner_of(a) is owner for a in arrays if isinstance(a, Traced)):
        return into(out, astype(result, out.dtype, copy=False))
    if axis is None or len(result.extents) != len(out.extents):
        raise missing("joined arrays in the memory of their out=", "write out[...] = np.concatenate(arrays)")
    for left, right in zip(result.extents, out.extents, strict=True):
        message, hint = "Output array is the wrong shape: {left} and {right}", "give out= the shape of the result"
        out.recorder.builder.require(left, "==", right, message, hint, source.user_line())
    dim, start = normalize_axis(operator.index(axis), len(out.extents)), 0
    for part in map(as_tensor, arrays):
        end = start + part.recorder.sizes(part.extents)[dim]
        out[(*[slice(None)] * dim, slice(start, end))] = astype(part, out.dtype, copy=False)
        start = end
    return out


def without_python_numbers(arrays: Any) -> Any:
    """Returns arrays to flatten and join with Python numbers as arrays of the type that NumPy gives the result."""
    numbers = [_number_of_kind(entry) for entry in arrays]
    if None not in numbers or not any(number is not None for number in numbers):
        return arrays
    others = [as_traced(e).value.dtype.numpy for e, number in zip(arrays, numbers, strict=True) if number is None]
    common = np.result_type(*others, *(number for number in numbers if number is not None))
    # NumPy joins them as arrays, so that integers outside the type wrap.
    strong = [as_strong(e) if isinstance(e, Traced | SymbolicSize) else np.asarray(e) for e in arrays]
    casted = [astype(e, common) if isinstance(e, Traced) else e.astype(common) for e in strong]
    return [e if number is None else new for e, number, new in zip(arrays, numbers, casted, strict=True)]


def _number_of_kind(entry: Any) -> Any:
    """Returns a Python number, for a computed one a number of its type; None for an array."""
    if isinstance(entry, Traced):
        return None if entry.weak is None else {"bool": False, "int": 0, "float": 0.0, "complex": 0j}[entry.weak]
    if isinstance(entry, SymbolicSize):
        return 0
    return entry if type(entry) in (bool, int, float, complex) else None


@implements(np.stack)
def stack(arrays: Any, axis: Any = 0, out: Any = None, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    _check_casting(arrays, _dtype_of_result("stack", dtype, out), casting)
    result = shaping.stack(arrays, axis, dtype)
    if out is None:
        return result
    dim = normalize_axis(operator.index(axis), len(result.extents))
    return _joined_into(out, result, [shaping.expand_dims(as_tensor(a), dim) for a in arrays], dim)


@implements(np.vstack)
def vstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    _check_casting(tup, dtype, casting)
    return shaping.concatenate([atleast_2d(a) for a in tup], 0, dtype)


@implements(np.hstack)
def hstack(tup: Any, *, dtype: Any = None, casting: str = "same_kind") -> Any:
    _check_casting(tup, dtype, casting)
    parts = [atleast_1d(a) for a in tup]
    return shaping.concatenate(parts, 0 if len(as_traced(parts[0]).extents) == 1 else 1, dtype)


@implements(np.column_stack)
def column_stack(tup: Any) -> Any:
    parts = [shaping.reshape(a, (-1, 1)) if len(as_traced(a).extents) < 2 else a for a in tup]
    return shaping.concatenate(parts, 1)


@implements(np.append)
def append(arr: Any, values: Any, axis: Any = None) -> Any:
    return shaping.concatenate([arr, values], axis)


def _split_along(ary: Any, indices_or_sections: Any, axis: Any, *, equal: bool) -> list[Any]:
    if isinstance(ary, Traced) and ary.weak is not None:
        if equal and not isinstance(indices_or_sections, (list, tuple, np.ndarray)):
            require_array(ary, "shape")
        raise DtypeError(f"object of type {ary.weak!r} has no len()", hint="give an array", where=source.user_line())
    traced = as_tensor(ary)
    recorder = traced.recorder
    dim = normalize_axis(operator.index(axis), len(traced.extents))
    whole = traced.extents[0 if _is_list(ary) else dim]  # NumPy takes the length of a list for any axis
    extent = wrap(whole, recorder)
    if isinstance(indices_or_sections, (list, tuple, np.ndarray)):
        cuts = [0, *map(as_size, indices_or_sections), extent]
    else:
        count = operator.index(cut_off(indices_or_sections))
        if count < 1:
            raise ShapeError("number sections must be larger than 0.")
        if equal:
            require_array(ary, "shape")
            message = f"split: axis {dim} does not divide into {count} equal parts: {{left}} elements are left over"
            over = traced.extents[dim] % count
            recorder.builder.require(over, "==", 0, message, "use np.array_split", source.user_line())
        each, extra = whole // count, 0 if equal else whole % count
        cuts = [0, *(wrap(each * k + minimum(extra, k), recorder) for k in range(1, count)), extent]
    before = (slice(None),) * dim
    return [shaping.getitem(traced, (*before, slice(cuts[k], cuts[k + 1]))) for k in range(len(cuts) - 1)]


@implements(np.split)
def split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> Any:
    return _split_along(ary, indices_or_sections, axis, equal=True)


@implements(np.array_split)
def array_split(ary: Any, indices_or_sections: Any, axis: Any = 0) -> Any:
    return _split_along(ary, indices_or_sections, axis, equal=False)


@implements(np.hsplit)
def hsplit(ary: Any, indices_or_sections: Any) -> Any:
    _check_rank("hsplit", ary, 1)
    require_array(ary, "ndim")
    return split(ary, indices_or_sections, 0 if len(as_traced(ary).extents) == 1 else 1)


def _check_rank(name: str, ary: Any, least: int) -> None:
    """Raises ShapeError for an array with fewer axes than a function splits."""
    rank = len(as_traced(ary).extents)
    if rank < least:
        raise ShapeError(f"{name} only works on arrays of {least} or more dimensions, not {rank}", hint="use np.split")


@implements(np.vsplit)
def vsplit(ary: Any, indices_or_sections: Any) -> Any:
    _check_rank("vsplit", ary, 2)
    return split(ary, indices_or_sections, 0)


@implements(*functions("unstack"))
def unstack(x: Any, /, *, axis: Any = 0) -> Any:
    require_array(x, "ndim")
    traced = as_tensor(x)
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    if len(axes) != 1:
        raise ShapeError(f"np.unstack along {len(axes)} axes, {axis}", hint="give one axis")
    dim = normalize_axis(operator.index(axes[0]), len(traced.extents))
    count = traced.recorder.pin(traced.extents[dim], "np.unstack")
    return tuple(shaping.getitem(traced, (*(slice(None),) * dim, k)) for k in range(count))
