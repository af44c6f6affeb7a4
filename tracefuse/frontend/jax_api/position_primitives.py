"""Rules of primitives whose positions are data: gathers, scatters and slices at computed places.

A gather takes from the flat operand at positions that the kernel computes. A scatter of one window, as of
`x.at[1:-1].add(y)` or `x.at[i].set(y)`, chooses between the operand and the window, elementwise; a scatter of several
writes at flat positions, one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import int64
from tracefuse.frontend.jax_api.jaxpr_recording import Equation, primitive
from tracefuse.frontend.jax_api.movement_primitives import as_tensor, reshaped
from tracefuse.frontend.tracer.array_ops.recorded_ops import converted
from tracefuse.ir.extents import Extent, product


def _line(e: Equation, length: Extent, axis: int, rank: int) -> Any:
    """0, 1, ... along one of `rank` axes."""
    return e.emit(
        "broadcast", e.emit("iota", 0, 1, length=length), is_broadcast_dim=tuple(k != axis for k in range(rank))
    )


def _flat_positions(
    e: Equation, shape: Sequence[Extent], sizes: Sequence[Extent], starts: Sequence[Any], window: Sequence[int],
    rank: int, batched: dict[int, Any], drops: bool,
) -> tuple[Any, Any]:  # fmt: skip
    """Row-major positions in an array of `shape` of the elements of windows, and whether they lie inside.

    sizes: of a window. starts: for each axis where windows start, or None. window: for each axis its axis in the
    result, which has `rank` axes, or -1. batched: the coordinate of axes that follow the batch. drops: windows outside
    are left out; else they are moved inside.
    """
    position: Any = 0
    inside: Any = None
    for axis, extent in enumerate(shape):
        start = starts[axis]
        if start is not None:
            last = extent - sizes[axis]
            if drops:
                fits = (start >= 0) & (start <= e.recorder.scalar(last))
                inside = fits if inside is None else inside & fits
            start = e.emit("minimum", e.emit("maximum", start, 0), e.recorder.scalar(last))
        coordinate = batched.get(axis, start)
        if window[axis] >= 0:
            offset = _line(e, sizes[axis], window[axis], rank)
            coordinate = offset if coordinate is None else coordinate + offset
        position = position * e.recorder.scalar(extent)
        if coordinate is not None:
            position = position + coordinate
    return position, inside


def _starts(e: Equation, indices: Any, axes: Sequence[int], count: int, places: Sequence[int], rank: int) -> list[Any]:
    """The start along each axis, with the batch axes of the indices at `places` of `rank` axes.

    Without places there is one start.
    """
    indices = converted(e.recorder, as_tensor(indices), int64)
    starts: list[Any] = [None] * count
    depth = len(indices.extents)
    for component, axis in enumerate(axes):
        begins = (*[0] * (depth - 1), component)
        ends = (*indices.extents[:-1], component + 1)
        start = e.emit("slice", indices, start_indices=begins, end_indices=ends, strides=(1,) * depth)
        start = e.emit("squeeze", start, dims=(depth - 1,)) if places else reshaped(e, start, ())
        starts[axis] = e.emit("broadcast", start, is_broadcast_dim=tuple(k not in places for k in range(rank)))
    return starts


def _is_dropping(mode: Any) -> bool:
    return "FILL" in str(mode)


@primitive("gather")
def _gather(e: Equation) -> Any:
    """Takes from the flat operand at positions that the kernel computes."""
    operand, indices = as_tensor(e.inputs[0]), as_tensor(e.inputs[1])
    numbers, sizes = e.parameters["dimension_numbers"], e.extents(e.parameters["slice_sizes"])
    shape, rank = operand.extents, len(e.results[0].shape)
    places = [k for k in range(rank) if k not in numbers.offset_dims]
    offsets = iter(numbers.offset_dims)
    left_out = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    window = [-1 if k in left_out else next(offsets) for k in range(len(shape))]
    starts = _starts(e, indices, numbers.start_index_map, len(shape), places, rank)
    batched = {
        axis: _line(e, shape[axis], places[where], rank)
        for axis, where in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    }
    drops = _is_dropping(e.parameters["mode"])
    position, inside = _flat_positions(e, shape, sizes, starts, window, rank, batched, drops)
    position = e.emit("expand", as_tensor(position), shape=e.extents(e.results[0].shape))
    result = e.emit("take", reshaped(e, operand, (product(shape),)), position, dim=0)
    if inside is None:
        return result
    fill = e.parameters["fill_value"]
    dtype = operand.value.dtype
    if fill is None:
        fill = float("nan") if dtype.is_floating or dtype.is_complex else _least(dtype)
    return e.emit("where", inside, result, dtype.numpy.type(fill))


def _least(dtype: Any) -> Any:
    """What JAX fills with where an index of integers lies outside: the least signed, the largest unsigned integer."""
    if dtype.kind == "bool":
        return True
    return np.iinfo(dtype.numpy).min if dtype.kind == "int" else np.iinfo(dtype.numpy).max


_OPS = {"add": "add", "multiply": "mul", "minimum": "minimum", "maximum": "maximum", "subtract": "sub"}
_COMBINATIONS = {
    "scatter": "assign", "scatter-add": "add", "scatter-mul": "multiply", "scatter-min": "minimum",
    "scatter-max": "maximum", "scatter-sub": "subtract",
    "scatter_sub": "subtract", "scatter_add": "add", "scatter_mul": "multiply", "scatter_min": "minimum",
    "scatter_max": "maximum",
}  # fmt: skip


def _assigns(update: Any) -> bool:
    """Whether the function of an element and its update returns the update, not a function of the element."""
    return update is None or (not update.eqns and update.outvars[0] is update.invars[1])


def _scatter(combine: str) -> Any:
    def rule(e: Equation) -> Any:
        if combine == "assign" and not _assigns(e.parameters["update_jaxpr"]):
            return e.by_jax()
        operand, indices, updates = map(as_tensor, e.inputs)
        numbers = e.parameters["dimension_numbers"]
        shape, rank = operand.extents, len(updates.extents)
        places = [k for k in range(rank) if k not in numbers.update_window_dims]
        offsets = iter(numbers.update_window_dims)
        left_out = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
        window = [-1 if k in left_out else next(offsets) for k in range(len(shape))]
        sizes = [1 if w < 0 else updates.extents[w] for w in window]
        if not numbers.operand_batching_dims and all(updates.extents[k] == 1 for k in places):
            starts = _starts(e, indices, numbers.scatter_dims_to_operand_dims, len(shape), (), len(shape))
            update = reshaped(e, updates, sizes)
            return _with_window(e, operand, starts, update, combine, _is_dropping(e.parameters["mode"]))
        starts = _starts(e, indices, numbers.scatter_dims_to_operand_dims, len(shape), places, rank)
        batched = {
            axis: _line(e, shape[axis], places[where], rank)
            for axis, where in zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
        }
        position, inside = _flat_positions(
            e, shape, sizes, starts, window, rank, batched, _is_dropping(e.parameters["mode"])
        )
        return _written(e, operand, position, inside, updates, combine)

    return rule


def _with_window(
    e: Equation, operand: Any, starts: Sequence[Any], update: Any, combine: str, drops: bool
) -> Any:  # fmt: skip
    """Combines one window of the operand with an update of as many axes. starts: see `_flat_positions`."""
    shape, sizes, rank = operand.extents, update.extents, len(operand.extents)
    if 0 in sizes:
        return operand
    inside: Any = None
    position: Any = 0
    for axis, start in enumerate(starts):
        place = _line(e, shape[axis], axis, rank)
        if start is not None:
            last = e.recorder.scalar(shape[axis] - sizes[axis])
            holds = (start >= 0) & (start <= last) if drops else None
            place = place - e.emit("minimum", e.emit("maximum", start, 0), last)
            size: Any = e.recorder.scalar(sizes[axis])
            within = (place >= 0) & (place < size)
            within = within if holds is None else within & holds
            inside = within if inside is None else inside & within
            place = e.emit("minimum", e.emit("maximum", place, 0), size - 1)
        position = position * e.recorder.scalar(sizes[axis]) + place
    position = e.emit("expand", as_tensor(position), shape=shape)
    new = e.emit("take", reshaped(e, update, (product(sizes),)), position, dim=0)
    if combine != "assign":
        new = e.emit(_OPS[combine], operand, new)
    return new if inside is None else e.emit("where", inside, new, operand)


def _written(e: Equation, operand: Any, position: Any, inside: Any, updates: Any, combine: str) -> Any:
    """Writes elements at flat positions; those outside go to an element behind the last, which is cut off."""
    shape, count = operand.extents, product(operand.extents)
    flat, total = reshaped(e, operand, (count,)), product(updates.extents)
    if inside is not None:
        position = e.emit("where", inside, position, e.recorder.scalar(count))
        flat = e.emit("pad", flat, pad_widths=(0, 1), value=0)
    position = reshaped(e, e.emit("expand", as_tensor(position), shape=updates.extents), (total,))
    result = e.emit("index_put", flat, position, reshaped(e, updates, (total,)), how=combine)
    if inside is not None:
        result = e.emit("pad", result, pad_widths=(0, -1), value=0)
    return reshaped(e, result, shape)


for _name, _how in _COMBINATIONS.items():
    primitive(_name)(_scatter(_how))


def _window_starts(e: Equation, starts: Sequence[Any], rank: int) -> list[Any]:
    flags = (True,) * rank
    return [
        e.emit("broadcast", converted(e.recorder, as_tensor(start), int64), is_broadcast_dim=flags) for start in starts
    ]


@primitive("dynamic_slice")
def _dynamic_slice(e: Equation) -> Any:
    operand = as_tensor(e.inputs[0])
    shape, rank = operand.extents, len(operand.extents)
    sizes = e.extents(e.parameters["slice_sizes"])
    starts = _window_starts(e, e.inputs[1:], rank)
    position, _ = _flat_positions(e, shape, sizes, starts, range(rank), rank, {}, False)
    position = e.emit("expand", as_tensor(position), shape=sizes)
    return e.emit("take", reshaped(e, operand, (product(shape),)), position, dim=0)


@primitive("dynamic_update_slice")
def _dynamic_update_slice(e: Equation) -> Any:
    operand, update = as_tensor(e.inputs[0]), as_tensor(e.inputs[1])
    rank = len(operand.extents)
    starts = _window_starts(e, e.inputs[2:], rank)
    return _with_window(e, operand, starts, update, "assign", False)
