"""Shape operations on traced values: reshape, transpose, broadcast, index, concatenate.

A result that is a view in NumPy is recorded as a view, so that in-place writes propagate.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import dtype_of, int64
from tracefuse.errors import DtypeError, IndexTypeError, OutOfRangeError, ScalarError, ShapeError
from tracefuse.frontend.tracer.array_ops.index_keys import IndexPlan, plan_of, require_known_positions
from tracefuse.frontend.tracer.array_ops.index_progressions import regular_elements
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_count, as_extent
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_tensor, as_traced, astype, axes_of, copy, located
from tracefuse.frontend.tracer.record.appended_rows import RowRange, with_ranges
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.settled_extents import require_broadcast
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced, ViewStep, holds_traced
from tracefuse.ir.axes import normalize_axes, normalize_axis
from tracefuse.ir.extents import Expression, Extent, divide_exactly, floordiv, minimum, product
from tracefuse.ops import REGISTRY


def _extents(shape: Any, recorder: Recorder) -> tuple[Extent, ...]:
    """Converts a shape parameter, an integer or a sequence of integers and sizes, to extents."""
    entries = shape if isinstance(shape, (tuple, list)) else (shape,)
    result = []
    for entry in map(as_extent, entries):
        if isinstance(entry, SymbolicSize):
            result.append(recorder.simplify(entry.extent))
        elif isinstance(entry, Expression):
            result.append(recorder.simplify(entry))
        else:
            result.append(operator.index(entry))
    return tuple(result)


def new_shape(shape: Any, recorder: Recorder) -> tuple[Extent, ...]:
    """Converts the shape of a new array to extents; no entry may be negative."""
    extents = _extents(shape, recorder)
    for extent in extents:
        message, hint = "negative dimensions are not allowed: {right}", "sizes are at least 0"
        recorder.builder.require(0, "<=", extent, message, hint, source.user_line())
    return extents


@located
def reshape(x: Any, shape: Any, order: str | None = "C", *, is_called: bool = False) -> Any:
    """Returns the same elements in row-major order; an entry of `shape` may be negative. is_called: as np.reshape."""
    traced = as_tensor(x)
    if order == "F" or (order == "A" and views.is_fortran(traced)):
        entries = shape if isinstance(shape, (tuple, list)) else (shape,)
        return transpose(reshape(transpose(traced), tuple(reversed(entries)), is_called=is_called))
    if order not in ("C", "A", None):
        raise ScalarError(f"order must be one of 'C', 'F' or 'A' (got {order!r})", hint="use one of them")
    recorder, extents = traced.recorder, traced.extents
    target = list(_extents(shape, recorder))
    unknown = [k for k, e in enumerate(target) if _is_unknown(e, recorder)]
    if len(unknown) > 1:
        raise ShapeError("reshape: only one extent can be -1", hint="spell out the others")
    if unknown:
        total = product(extents)
        known_total = product(e for k, e in enumerate(target) if k != unknown[0])
        target[unknown[0]] = _quotient(total, known_total, recorder, is_called)
    if tuple(target) == extents:
        return views.alias(traced)
    return views.reshape(traced, tuple(target))


def _is_unknown(extent: Extent, recorder: Recorder) -> bool:
    """Whether an entry of a shape stands for what the others leave: NumPy takes any negative number for it."""
    return extent < 0 if isinstance(extent, int) else not recorder.decide(0, "<=", extent, "the sign of an extent")


def _quotient(total: Extent, known_total: Extent, recorder: Recorder, is_called: bool) -> Extent:
    """Returns the extent of -1: total / known_total, which must divide, and not be 0 if NumPy's reshape is called."""
    exact = divide_exactly(total, known_total)
    if exact is not None:
        if is_called:
            message = "reshape: -1 beside extents whose product is {right}, which every size fills"
            recorder.builder.require(1, "<=", known_total, message, "spell out every extent", source.user_line())
        return exact
    if not recorder.decide(1, "<=", known_total, "the extents beside -1"):
        raise ShapeError(f"reshape: -1 beside extents whose product is {known_total}", hint="spell out every extent")
    result = floordiv(total, known_total)
    message = f"reshape: the elements do not fill rows of {known_total}: {{left}} are left over"
    hint = f"the number of elements must be a multiple of {known_total}"
    recorder.builder.require(total % known_total, "==", 0, message, hint, source.user_line())
    return result


@located
def transpose(x: Any, axes: Any = None) -> Any:
    """Permutes axes: axis k of the result is axis axes[k] of x. Without axes it reverses them."""
    traced = as_tensor(x)
    rank = len(traced.extents)
    if axes is None:
        dims = tuple(reversed(range(rank)))
    else:
        dims = tuple(normalize_axis(operator.index(a), rank) for a in axes)
        if sorted(dims) != list(range(rank)):
            raise ShapeError(f"transpose: {tuple(axes)} does not order {rank} axes", hint="name each axis once")
    if dims == tuple(range(rank)):
        return views.alias(traced)
    return views.take_view("permute", traced, dims=dims)


@located
def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    rank = len(as_traced(x).extents)
    dims = list(range(rank))
    a, b = (normalize_axis(operator.index(axis), rank) for axis in (axis1, axis2))
    dims[a], dims[b] = dims[b], dims[a]
    return transpose(x, dims)


@located
def moveaxis(x: Any, from_axes: Any, to_axes: Any) -> Any:
    rank = len(as_traced(x).extents)
    start, end = (
        [normalize_axis(operator.index(a), rank) for a in (axes if isinstance(axes, (tuple, list)) else (axes,))]
        for axes in (from_axes, to_axes)
    )
    if len(start) != len(end) or len({*start}) != len(start) or len({*end}) != len(end):
        raise ShapeError(
            f"moveaxis: {from_axes} and {to_axes} do not pair axes", hint="name as many axes in both, once"
        )
    order = [k for k in range(rank) if k not in start]
    for destination, origin in sorted(zip(end, start, strict=True)):
        order.insert(destination, origin)
    return transpose(x, order)


@located
def squeeze(x: Any, axis: Any = None) -> Any:
    """Drops axes of extent 1."""
    traced = as_tensor(x)
    extents = traced.extents
    if axis is None:
        dims = tuple(k for k, e in enumerate(extents) if traced.recorder.decide(e, "==", 1, "squeeze"))
    else:
        # NumPy takes axis 0 and -1 of an array without axes.
        dims = axes_of(axis, len(extents)) if extents or axis not in (0, -1) else ()
        for dim in dims:
            # For an axis of an argument the answer is in the key of the trace, so it is known here.
            if not traced.recorder.decide(extents[dim], "==", 1, "squeeze"):
                size = traced.recorder.known(extents[dim])
                message = f"squeeze: axis {dim} has extent {size}"
                raise ShapeError(message, hint="only an axis of extent 1 can be squeezed")
    if not dims:
        return views.alias(traced)
    return views.take_view("squeeze", traced, dims=dims)


@located
def expand_dims(x: Any, axis: Any) -> Any:
    """Inserts axes of extent 1 at the positions `axis` of the result."""
    traced = as_tensor(x)
    places = axis if isinstance(axis, (tuple, list)) else (axis,)
    rank = len(traced.extents) + len(places)
    added = normalize_axes([operator.index(a) for a in places], rank)
    flags = tuple(k in added for k in range(rank))
    return views.take_view("broadcast", traced, is_broadcast_dim=flags)


@located
def broadcast_to(x: Any, shape: Any) -> Any:
    """Repeats axes of extent 1 to match `shape`."""
    traced = as_tensor(x)
    recorder = traced.recorder
    target = new_shape(shape, recorder)
    extents = traced.extents
    if len(extents) > len(target):
        raise ShapeError(
            f"broadcast_to: {len(extents)} axes do not fit {len(target)}", hint="give at least as many extents as axes"
        )
    if extents == target:
        return views.alias(traced)
    lead = len(target) - len(extents)
    ones = [
        axis for axis, extent in enumerate(extents)
        if extent != target[lead + axis] and recorder.decide(extent, "==", 1, "broadcasting of a computed extent")
    ]  # fmt: skip
    source_value, shape_before = traced, traced.value.shape  # without what is known of extents
    if any(shape_before[axis] != 1 for axis in ones):  # extents that were decided to be 1
        source_value = expand_dims(views.take_view("squeeze", traced, dims=tuple(ones)), tuple(ones))
    result = views.take_view("expand", source_value, shape=target)
    result.read_only = "the result of a broadcast"
    return result


@located
def getitem(x: Traced, key: Any) -> Any:
    """Returns x[key] for integers, slices, None, `...` and integer arrays."""
    traced = as_tensor(x)
    recorder, shape = traced.recorder, traced.extents
    plan = plan_of(key, shape, recorder)
    require_known_positions(plan, shape, recorder)
    result = view_at(traced, plan)
    if plan.arrays:
        return _at_arrays(result, axes_of_arrays(plan, len(shape)), plan.together)
    if recorder.device is None and _is_element(key, plan):
        return recorder.traced_type(recorder, result.number)  # a NumPy scalar is not a view
    if plan.copies:
        return copy(result)
    if result is traced:
        result = views.alias(x if isinstance(x, Traced) and x.memory is not None else traced)
    result.own_memory()  # `s[...]` of a NumPy scalar is an array
    return result


def _is_element(key: Any, plan: IndexPlan) -> bool:
    """Whether a key has an integer for each axis, so that NumPy returns a scalar."""
    parts = key if isinstance(key, tuple) else (key,)
    return not plan.new_axes and not any(part is Ellipsis for part in parts)


def axes_of_arrays(plan: IndexPlan, rank: int) -> dict[int, Any]:
    """Maps each axis of the view that a key's basic part selects to the integer array that indexes it."""
    remaining_axes = [axis for axis in range(rank) if axis not in plan.drops]
    place = dict(zip(remaining_axes, (k for k, new in enumerate(plan.new_axes) if not new), strict=True))
    return {place[axis]: index for axis, index in plan.arrays.items()}


def view_at(traced: Traced, plan: IndexPlan) -> Traced:
    """Returns the view that the basic part of a key selects; the traced value itself if that is all of it."""
    shape, result = traced.extents, traced
    if plan.flips:
        result = views.take_view("flip", result, dims=tuple(plan.flips))
    if not plan.whole(shape):
        starts, ends, steps = tuple(plan.starts), tuple(plan.ends), tuple(plan.steps)
        result = views.take_view("slice", result, start_indices=starts, end_indices=ends, strides=steps)
    if plan.drops:
        result = views.take_view("squeeze", result, dims=tuple(plan.drops))
    if any(plan.new_axes):
        result = views.take_view("broadcast", result, is_broadcast_dim=tuple(plan.new_axes))
    return result


def _at_arrays(x: Traced, arrays: Mapping[int, Any], together: bool) -> Any:
    """Gathers elements at integer positions along several axes at once; the arrays broadcast against each other."""
    axes = list(arrays)
    first = axes[0] if together else 0
    regular = regular_elements(x, arrays, together)
    if regular is not None:
        return views.of_index_arrays(regular.elements(x), x, axes, first)
    if not together:
        x = transpose(x, [*axes, *(axis for axis in range(len(x.extents)) if axis not in arrays)])
    for k in range(len(axes)):
        require_positions(x, first + k, arrays.values())
    if len(axes) == 1:
        index = arrays[axes[0]]
        if isinstance(index, Traced) and (index.is_python or index.is_immutable) and len(x.extents) > 1:
            return _view_at_number(x, index, first)
        return views.of_index_arrays(take(x, arrays[axes[0]], first), x, (first,), first)
    sizes = x.recorder.sizes(x.extents)
    indexed, after = sizes[first : first + len(axes)], sizes[first + len(axes) :]
    joined = reshape(x, (*sizes[:first], math.prod(indexed), *after))
    elements = take(joined, joined_positions(list(arrays.values()), indexed), first)
    return views.of_index_arrays(elements, x, range(first, first + len(axes)), first)


def with_axis(x: Any, axis: Any) -> Any:
    """Returns x with one axis where it has none and `axis` is 0 or -1, which NumPy takes as the axis of one element."""
    return reshape(x, 1) if not as_traced(x).extents and operator.index(axis) in (0, -1) else x


def require_positions(x: Traced, axis: int, indices: Iterable[Any], times: Extent = 1) -> None:
    """Requires that an axis has elements, as NumPy does. indices: broadcast. times: how often NumPy takes them."""
    count = product([times, *(product(i.extents) if isinstance(i, Traced) else int(np.size(i)) for i in indices)])
    message, hint = f"index 0 is out of bounds for axis {axis} with size {{right}}", "index an axis that has elements"
    x.recorder.builder.require(
        minimum(1, count), "<=", x.extents[axis], message, hint, source.user_line(), OutOfRangeError
    )


def positions_of(values: Any) -> Any:
    """Returns a list of positions as an array, of integers also where it has no entries."""
    array = np.asarray(values)
    return array if array.size else array.astype(np.int64)


def cast_positions(values: Any, casting: str = "same_kind") -> Any:
    """Returns positions as int64: lists and numbers as NumPy makes arrays of them, arrays by a casting rule."""
    if not isinstance(values, Traced) and not (isinstance(values, (list, tuple)) and holds_traced(values)):
        if isinstance(values, (bool, int, float, list, tuple)):
            values = np.asarray(values, np.int64)
    elif isinstance(values, Traced) and values.weak is not None and values.on_host:
        return as_tensor(astype(values, int64))
    index = as_tensor(values)
    if not np.can_cast(index.value.dtype.numpy, np.int64, casting):  # type: ignore[arg-type]
        message = f"Cannot cast positions from {index.value.dtype} to int64 according to the rule '{casting}'"
        raise DtypeError(message, hint="cast them with astype(int)", where=source.user_line())
    return astype(index, int64, copy=False)


def _view_at_number(x: Traced, index: Traced, axis: int) -> Traced:
    """Returns the view that an integer of the call selects, a number of Python or a scalar of NumPy."""
    recorder = x.recorder
    order = [axis, *(k for k in range(len(x.extents)) if k != axis)]
    back = tuple(sorted(range(len(order)), key=order.__getitem__))

    def write(base: Traced, values: Traced) -> Traced:
        rows = recorder.movement("broadcast", [values], is_broadcast_dim=(True, *[False] * len(values.extents)))
        places = recorder.movement("broadcast", [astype(as_tensor(index), int64)], is_broadcast_dim=(True,))
        lined_up = recorder.movement("permute", [base], dims=tuple(order))
        written = recorder.library(REGISTRY["index_put"], [lined_up, places, rows], how="assign")
        return recorder.movement("permute", [written], dims=back)  # type: ignore[no-any-return]

    step = ViewStep(("at", axis, index.number), lambda base: take(base, index, axis), write)
    result: Traced = take(x, index, axis)
    return views.attach(result, x, step, lambda strides: (*strides[:axis], *strides[axis + 1 :]))


def joined_positions(arrays: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """Returns positions in the axis that several axes are joined into, outside if one is; of one axis, unchanged."""
    indices = [as_tensor(positions_of(array) if isinstance(array, list) else array) for array in arrays]
    require_broadcast(indices, OutOfRangeError)
    inside: Any = None
    joined: Any = None
    for index, size in zip(indices, sizes, strict=True):
        if not index.value.dtype.is_integer:
            raise IndexTypeError(f"an index array has dtype {index.value.dtype}", hint="cast it to an integer type")
        if len(arrays) == 1:
            return index
        position = astype(index, int64)
        fits = apply("logical_and", apply("ge", position, -size), apply("lt", position, size))
        inside = fits if inside is None else apply("logical_and", inside, fits)
        wrapped = apply("where", apply("lt", position, 0), apply("add", position, size), position)
        joined = wrapped if joined is None else apply("add", apply("mul", joined, size), wrapped)
    return apply("where", inside, joined, math.prod(sizes))


@located
def take(x: Any, indices: Any, axis: Any = None) -> Any:
    """Returns the elements at integer positions along an axis; the axes of `indices` replace it."""
    if axis is None:
        return take(reshape(x, -1), indices, 0)
    traced = as_tensor(with_axis(x, axis))
    recorder = traced.recorder
    rank = len(traced.extents)
    dim = normalize_axis(operator.index(axis), rank)
    index = as_tensor(positions_of(indices) if isinstance(indices, (list, int)) else indices)
    if not index.value.dtype.is_integer:
        raise IndexTypeError(f"an index array has dtype {index.value.dtype}", hint="cast it to an integer type")
    index = astype(index, int64, copy=False)
    shape = index.extents
    flat = reshape(index, (product(shape),)) if len(shape) != 1 else index
    flags = tuple(k != dim for k in range(rank))
    lined_up = recorder.movement("broadcast", [flat], is_broadcast_dim=flags)
    elements = recorder.movement("take_along_axis", [traced, lined_up], dim=dim)
    if len(shape) == 1:
        return elements
    if not shape:
        return recorder.movement("squeeze", [elements], dims=(dim,))
    return reshape(elements, tuple(recorder.sizes((*traced.extents[:dim], *shape, *traced.extents[dim + 1 :]))))


@located
def concatenate(arrays: Sequence[Any], axis: Any = 0, dtype: Any = None) -> Any:
    """Joins arrays along an axis; axis None flattens them first."""
    parts = [as_tensor(a) for a in arrays]
    if not parts:
        raise ShapeError("need at least one array to concatenate")
    if axis is None:
        parts, axis = [reshape(p, -1) for p in parts], 0
    axis, rank = operator.index(axis), len(parts[0].extents)
    if rank == 0:
        raise ShapeError("zero-dimensional arrays cannot be concatenated", hint="use np.stack")
    dim = normalize_axis(axis, rank)
    chosen = None if dtype is None else dtype_of(dtype)
    if len(parts) == 1:
        return copy(parts[0], "K") if chosen is None else astype(parts[0], chosen)
    return parts[0].recorder.movement("cat", parts, dim=dim, dtype=chosen)


def stack(arrays: Sequence[Any], axis: Any = 0, dtype: Any = None) -> Any:
    """Joins arrays along a new axis."""
    entries = list(arrays)
    if not entries:
        raise ShapeError("need at least one array to stack", where=source.user_line())
    first = as_tensor(entries[0])
    dim = located(normalize_axis)(operator.index(axis), len(first.extents) + 1)
    parts = with_ranges(first.recorder.loops.rows, entries) if dim == 0 else entries
    rows = [part.of(getitem) if isinstance(part, RowRange) else expand_dims(as_tensor(part), dim) for part in parts]
    return concatenate(rows, dim, dtype)


def new_shape_entries(entries: Sequence[Any], recorder: Recorder) -> tuple[Extent, ...]:
    """Converts integers and sizes of any sign to extents."""
    return _extents(tuple(map(as_count, entries)), recorder)
