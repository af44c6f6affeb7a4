"""`x[key] = value`: slices, integers, new axes, integer arrays and masks of truth values, with NumPy's semantics.

The part of a key that selects a view is written through that view. Integer arrays scatter, and elements that a mask
excludes keep their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import DType, int64
from tracefuse.errors import DtypeError, ShapeError, UnsupportedError
from tracefuse.frontend.tracer.array_ops import selections, shaping
from tracefuse.frontend.tracer.array_ops.in_place import check_writable, into, note_update
from tracefuse.frontend.tracer.array_ops.index_keys import is_array, is_mask, plan_of, require_known_positions
from tracefuse.frontend.tracer.array_ops.index_progressions import regular_elements
from tracefuse.frontend.tracer.array_ops.masked_elements import MaskedElements, key_parts
from tracefuse.frontend.tracer.array_ops.masks_in_keys import (
    is_alone,
    is_without_elements,
    require_extents,
    with_axes_of_truth,
    with_known_positions,
    with_positions,
)
from tracefuse.frontend.tracer.array_ops.state_calls import depends_on_state
from tracefuse.frontend.tracer.array_ops.traced_ops import (
    apply,
    as_tensor,
    as_traced,
    astype,
    copy,
    iota,
    located,
)
from tracefuse.frontend.tracer.record.assigned_numbers import (
    check_has_no_axes,
    check_is_real,
    checked_entries,
    checked_number,
    is_number,
    number_in,
    scalar_in,
    without_none,
)
from tracefuse.frontend.tracer.values.nested_lists import check_depth
from tracefuse.frontend.tracer.values.symbolic_size import rank_of
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced
from tracefuse.frontend.tracer.values.views import is_same_view
from tracefuse.frontend.tracer.values.written_slices import touches_few
from tracefuse.ir.extents import product
from tracefuse.ir.fusion import Shape
from tracefuse.ops import REGISTRY


@located
def setitem(x: Traced, key: Any, value: Any) -> None:
    """Assigns x[key] = value."""
    check_writable(x)
    value = without_none(value, x.value.dtype)
    x, parts = with_axes_of_truth(x, key_parts(key))
    if len(parts) == 1 and isinstance(parts[0], (bool, np.bool_)):  # a mask without axes: all of the array or nothing
        if parts[0]:
            setitem(x, (None, ...), value)
        return
    if any(is_mask(part) for part in parts):
        _check_rank_under_mask(x, parts, value)
        positions = with_known_positions(x, parts) if _has_axes(value) else None
        if positions is None and not _is_same_everywhere(x, parts, value):
            positions = with_positions(x, parts)
        if positions is None:
            _assign_under_mask(x, parts, value)
            return
        parts = positions
        value = value.elements() if isinstance(value, MaskedElements) else value
    plan = plan_of(parts, x.extents, x.recorder)
    target = shaping.view_at(x, plan)
    if plan.arrays:
        axes = shaping.axes_of_arrays(plan, len(x.extents))
        regular = regular_elements(target, axes, plan.together)
        if regular is not None:
            view = regular.view(target)
            into(view, filling(value, view.extents, view.value.dtype, view))
            return
        written = _scattered(target, axes, plan.together, value)
        require_known_positions(plan, x.extents, x.recorder)  # after the values, as in NumPy
        into(target, written)
    elif isinstance(value, Traced) and is_same_view(value, target):
        note_update(target)  # `x[key] += 1` already wrote the view
    else:
        is_element = len(plan.drops) == len(plan.starts) == len(parts)  # an integer for each axis and nothing else
        value = scalar_in(_fitting(value, target, is_element), target.value.dtype, x.recorder)
        into(target, filling(value, target.extents, target.value.dtype, target))


def _fitting(value: Any, target: Traced, is_element: bool) -> Any:
    """Returns a value for an element or a view, as NumPy takes it. Raises ShapeError for a list of too many levels."""
    if is_element:
        check_has_no_axes(value, target.value.dtype)
        if target.value.dtype.kind == "bool" and isinstance(value, (list, tuple)):
            return len(value) > 0  # NumPy takes the truth value of the list
    elif isinstance(value, (list, tuple)) and len(as_tensor(array_of(value)).extents) > len(target.extents):
        raise ShapeError(
            f"setting an array element with a sequence: a nested list into {len(target.extents)} axes",
            hint="give a list with one level for each axis", where=source.user_line(),
        )  # fmt: skip
    return value


def getitem(x: Traced, key: Any) -> Any:
    """Returns x[key], also for masks."""
    x, parts = with_axes_of_truth(x, key_parts(key))
    if len(parts) == 1 and isinstance(parts[0], (bool, np.bool_)):
        return copy(shaping.getitem(shaping.expand_dims(x, 0), slice(int(parts[0]))))
    masks = [part for part in parts if is_mask(part)]
    if not masks:
        return shaping.getitem(x, parts)
    alone = is_alone(parts)
    in_place = alone and any(map(depends_on_state, parts))
    positions = None if in_place else with_known_positions(x, parts)
    if positions is None and not alone:
        positions = with_positions(x, parts)
    if positions is not None:
        return shaping.getitem(x, positions)
    view, mask, first, count = _at_mask(x, parts)
    values = x.recorder.traced_type(x.recorder, view.number)
    selecting = as_tensor(np.asarray(masks[0]) if isinstance(masks[0], list) else masks[0])
    selecting = x.recorder.traced_type(x.recorder, selecting.number)

    where = source.user_line()

    def take(values: Traced, first: int, count: int) -> Traced:
        return selections.elements_at(values, selections.flat_positions(selecting, where=where), first, count)

    return MaskedElements(values, mask, first, count, take, depends_on_state(selecting))


def filling(value: Any, shape: Shape, dtype: DType, beside: Traced) -> Traced:
    """Casts and broadcasts a value for assignment to elements of a shape and a type."""
    recorder = beside.recorder
    if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
        number = number_in(value, dtype, recorder)
        return recorder.movement("full", [number], shape=shape, dtype=dtype)  # type: ignore[no-any-return]
    if isinstance(value, (list, tuple)):
        value = assigned_list(value, beside) if beside.value.dtype is dtype else array_of(value)
    value = checked_number(value, dtype, recorder)
    values = astype(as_tensor(value), dtype, copy=False)
    extra = len(values.extents) - len(shape)
    if extra > 0:
        ones = tuple(range(extra))
        if not all(recorder.decide(values.extents[axis], "==", 1, "an assignment") for axis in ones):
            raise ShapeError(
                f"could not broadcast a value with {len(values.extents)} axes into {len(shape)}",
                hint="assign a value of the shape of what is selected",
            )
        values = shaping.squeeze(values, ones)
    lead = len(shape) - len(values.extents)
    for axis, extent in enumerate(values.extents):
        if extent != shape[lead + axis] and not recorder.decide(extent, "==", 1, "an assignment"):
            message = f"could not broadcast a value of {{left}} elements on axis {axis} into {{right}}"
            hint = "assign a value of the shape of what is selected"
            recorder.builder.require(extent, "==", shape[lead + axis], message, hint, source.user_line())
    return shaping.broadcast_to(values, recorder.sizes(shape))  # type: ignore[no-any-return]


def assigned_list(values: Sequence[Any], target: Traced) -> Any:
    """Returns a list as an array of values for elements of `target`; NumPy converts each Python number to their type.

    Raises IntegerRangeError, ScalarError or DtypeError for a number that the type does not hold.
    """
    return array_of(checked_entries(values, target.value.dtype, target.recorder))


def elements_of(value: Any, target: Traced) -> Any:
    """Returns a value as an array of the type of `target`, as np.array(value, target.dtype) converts it."""
    dtype, value = target.value.dtype, without_none(value, target.value.dtype)
    if isinstance(value, (list, tuple)):
        value = assigned_list(value, target)
    check_is_real(value, dtype)
    if is_number(value):
        return filling(value, (), dtype, target)
    return astype(as_tensor(checked_number(value, dtype, target.recorder)), dtype, copy=False)


def cast_value(value: Any) -> Any:
    """Returns a value that NumPy casts as an array, also a number."""
    if isinstance(value, (list, tuple)):
        return array_of(value)
    return as_tensor(value) if is_number(value) else value


def array_of(values: Sequence[Any]) -> Any:
    """Returns a list as an array; stacks a list that holds traced values or sizes."""
    if not holds_traced(values):
        return np.asarray(values)
    check_depth(values)
    return shaping.stack([_entry_of_list(v) if isinstance(v, (list, tuple)) else as_traced(v) for v in values])


def _entry_of_list(values: Sequence[Any]) -> Any:
    """Returns a list in a list as an array; an empty one does not affect the type."""
    array = array_of(values)
    return array.astype(np.bool_) if isinstance(array, np.ndarray) and not array.size else array


# -- positions in arrays ----------------------------------------------------------------------------------------------


def view_of(x: Traced, key: Any) -> Traced:
    """Returns the view that the basic part of a key selects."""
    x, parts = with_axes_of_truth(x, key_parts(key))
    positions = _positions_at_once(x, parts)
    return shaping.view_at(x, plan_of(parts if positions is None else positions, x.extents, x.recorder))


def _positions_at_once(x: Traced, parts: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Returns a key with positions in place of its masks; None for one mask of arguments, which needs no positions."""
    if not any(map(is_mask, parts)):
        return parts
    positions = with_known_positions(x, parts)
    return with_positions(x, parts) if positions is None and not is_alone(parts) else positions


def combined_at(x: Traced, key: Any, value: Any, combine: str) -> Traced | None:
    """Returns x with the elements at integer positions combined with a value by the ufunc `combine`, once a position.

    Returns None for a key that names no position twice: without integer arrays, or with arrays that count on.
    """
    x, parts = with_axes_of_truth(x, key_parts(key))
    positions = _positions_at_once(x, parts)
    if positions is None:
        return None
    plan = plan_of(positions, x.extents, x.recorder)
    if not plan.arrays:
        return None
    target = shaping.view_at(x, plan)
    axes = shaping.axes_of_arrays(plan, len(x.extents))
    if regular_elements(target, axes, plan.together) is not None:
        return None
    return _scattered(target, axes, plan.together, value, combine)


def _scattered(
    target: Traced, arrays: Mapping[int, Any], together: bool, value: Any, combine: str = "assign"
) -> Traced:
    """Writes elements to integer positions along some axes of `target`, in the order of the positions.

    combine: "assign", so that the last write to a position wins, or the ufunc that combines an element with a value.
    """
    recorder, axes = target.recorder, list(arrays)
    sizes = recorder.sizes(target.extents)
    rest = [axis for axis in range(len(sizes)) if axis not in arrays]
    index = shaping.joined_positions(list(arrays.values()), [sizes[axis] for axis in axes])
    index_shape, other_extents = index.extents, tuple(target.extents[axis] for axis in rest)
    lead = axes[0] if together else 0
    layout = (*other_extents[:lead], *index_shape, *other_extents[lead:])
    is_inner = axes != list(range(len(axes))) and recorder.known(product(layout)) > 0  # rows check their positions
    if is_inner and touches_few(target, product(layout)):
        indices: dict[int, Any] = {axis: _with_axes_after(arrays[axis], len(rest) - lead) for axis in axes}
        for place, axis in enumerate(rest):
            line = iota(recorder, 0, 1, target.extents[axis], int64)
            after = len(layout) - 1 - place - (len(index_shape) if place >= lead else 0)
            indices[axis] = _with_axes_after(line, after)
        return _scattered(target, dict(sorted(indices.items())), True, value, combine)
    values = filling(value, layout, target.value.dtype, target)
    order = [*range(lead, lead + len(index_shape)), *range(lead), *range(lead + len(index_shape), len(layout))]
    count, size = product(index_shape), product(target.extents[axis] for axis in axes)
    rows = _moved(_moved(values, order), None, (count, *other_extents))
    places = _moved(index, None, (count,))
    moved = _moved(target, [*axes, *rest])
    data = _moved(moved, None, (size, *other_extents))
    written = recorder.library(REGISTRY["index_put"], [data, places, rows], how=combine)
    back = [*axes, *rest]
    return _moved(_moved(written, None, moved.extents), sorted(range(len(back)), key=back.__getitem__))


def _with_axes_after(index: Any, count: int) -> Any:
    """Returns an index array with axes of extent 1 after its own."""
    return shaping.getitem(as_tensor(np.asarray(index) if isinstance(index, list) else index), (..., *(None,) * count))


def _moved(x: Traced, order: Sequence[int] | None, shape: Shape | None = None) -> Traced:
    """Permutes axes, or reshapes, without creating a view."""
    if shape is not None:
        return x if shape == x.extents else x.recorder.movement("reshape", [x], new_shape=shape)
    assert order is not None
    return x if list(order) == list(range(len(order))) else x.recorder.movement("permute", [x], dims=tuple(order))


# -- masks ------------------------------------------------------------------------------------------------------------


def _at_mask(x: Traced, parts: Sequence[Any]) -> tuple[Traced, Traced, int, int]:
    """Returns (the view that the rest of a key selects, the mask along its axes, the first of them, their number)."""
    (position, *more) = [k for k, part in enumerate(parts) if is_mask(part)]
    if more or any(is_array(part) for k, part in enumerate(parts) if k != position):
        raise UnsupportedError(
            "a boolean mask beside another array in one key: the size of the result depends on the data",
            hint="combine them to one mask with &, or write np.where(mask, value, x)", where=source.user_line(),
        )  # fmt: skip
    mask = as_tensor(np.asarray(parts[position]) if isinstance(parts[position], list) else parts[position])
    rank = len(mask.extents)
    all_axes = [slice(None)] * rank
    named = sum(part is not None and part is not Ellipsis for part in parts) - 1 + rank
    if any(part is Ellipsis for part in parts[:position]):
        fill = [slice(None)] * (len(x.extents) - named)
        parts = [p for part in parts for p in (fill if part is Ellipsis else (part,))]
        (position,) = [k for k, part in enumerate(parts) if is_mask(part)]
    view = shaping.view_at(x, plan_of((*parts[:position], *all_axes, *parts[position + 1 :]), x.extents, x.recorder))
    first = sum(part is None or isinstance(part, slice) for part in parts[:position])
    extents = view.extents
    require_extents(view, first, mask.extents)
    known, selected = x.recorder.known, extents[first : first + rank]
    differs = any(known(extent) != known(axis) for extent, axis in zip(mask.extents, selected, strict=True))
    if differs and is_without_elements(x, mask.extents):
        mask = x.recorder.movement("full", [False], shape=selected)
    flags = tuple(not first <= axis < first + rank for axis in range(len(extents)))
    wide = x.recorder.movement("broadcast", [mask], is_broadcast_dim=flags) if any(flags) else mask
    return view, wide, first, rank


def _has_axes(value: Any) -> bool:
    """Whether an assigned value may hold a separate element for each of several positions."""
    if isinstance(value, MaskedElements):
        return False  # each element goes to its own position
    return isinstance(value, (list, tuple)) or bool(getattr(value, "shape", ()))


def _check_rank_under_mask(x: Traced, parts: Sequence[Any], value: Any) -> None:
    """Raises DtypeError for a value with several axes under one mask of all axes, as NumPy does."""
    rank = len(as_tensor(array_of(value)).extents) if isinstance(value, (list, tuple)) else rank_of(value)
    if len(parts) == 1 and rank > 1 and np.ndim(parts[0]) == len(x.extents):
        raise DtypeError(
            f"a value with {rank} axes is assigned under a mask", hint="assign one number, or a vector of the elements",
            where=source.user_line(),
        )  # fmt: skip


def _is_same_everywhere(x: Traced, parts: Sequence[Any], value: Any) -> bool:
    """Whether an assigned value under a mask has the same elements at each position, or those under the same mask."""
    if sum(map(is_array, parts)) > 1 or (_has_axes(value) and not is_alone(parts)):
        return False
    if isinstance(value, MaskedElements):
        return not value.is_taken and value.has_mask(_at_mask(x, parts)[1])
    if not _has_axes(value):
        return True
    view, _, first, count = _at_mask(x, parts)
    after = len(view.extents) - first - count
    tensor = as_tensor(array_of(value) if isinstance(value, (list, tuple)) else value)
    lead = tensor.extents[: max(0, len(tensor.extents) - after)]
    return all(x.recorder.decide(extent, "==", 1, "an assignment under a mask") for extent in lead)


def _assign_under_mask(x: Traced, parts: Sequence[Any], value: Any) -> None:
    view, mask, first, count = _at_mask(x, parts)
    after = len(view.extents) - first - count
    dtype = view.value.dtype
    if isinstance(value, MaskedElements):
        values = astype(value.values, dtype, copy=False)
    else:
        values = _under_mask(value, view, after, dtype)
    into(view, apply("where", mask, values, view))


def _under_mask(value: Any, view: Traced, after: int, dtype: DType) -> Traced:
    """Returns a value that is the same for every element that the mask selects."""
    if isinstance(value, (list, tuple)):
        value = assigned_list(value, view)
    check_is_real(value, dtype)
    if not is_number(value):
        tensor = as_tensor(checked_number(value, dtype, view.recorder))
        lead = tensor.extents[: max(0, len(tensor.extents) - after)]
        value = shaping.squeeze(tensor, tuple(range(len(lead)))) if lead else tensor
    return filling(value, view.extents, dtype, view)
