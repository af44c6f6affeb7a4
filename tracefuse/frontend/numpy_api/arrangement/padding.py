"""np.pad on traced values: each mode pads one axis after the other, as in NumPy.

Numbers around the array are one op. The other modes compute what is before and after the array and join it: modes that
repeat elements slice it, or gather by position if a width exceeds the array. Widths may be symbolic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import DType
from tracefuse.errors import DtypeError, ScalarError, ShapeError, UnsupportedError
from tracefuse.frontend.numpy_api.arrangement import grids
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import assignment, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.traced_ops import as_tensor, iota
from tracefuse.frontend.tracer.record.assigned_numbers import number_in, scalar_in
from tracefuse.frontend.tracer.values.symbolic_size import rank_of
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced
from tracefuse.ir.axes import normalize_axis

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


@implements(np.pad)
def pad(array: Any, pad_width: Any, mode: Any = "constant", **keywords: Any) -> Any:
    """All modes of NumPy but functions; 'empty' pads with zeros. Raises ScalarError for a mode that NumPy lacks."""
    traced = as_tensor(array)
    rank, recorder = len(traced.extents), traced.recorder
    if callable(mode):
        raise UnsupportedError(
            "np.pad with a function as mode", hint="pad with zeros, as in y = np.pad(x, width), and assign the borders",
            where=source.user_line(),
        )  # fmt: skip
    if mode not in _PARAMETERS:
        raise ScalarError(f"mode '{mode}' is not supported", hint=f"use one of {', '.join(map(repr, _PARAMETERS))}")
    unknown = keywords.keys() - _PARAMETERS[mode].keys()
    if unknown:
        raise ScalarError(f"unsupported keyword arguments for mode '{mode}': {unknown}", hint="leave them out")
    parameters = {**_PARAMETERS[mode], **keywords}
    if not rank:
        return traced_ops.copy(traced)
    entries = shaping.new_shape_entries(_expand_widths(pad_width, rank), recorder)
    for entry in entries:
        message = "pad: a width of {right} is negative"
        recorder.builder.require(0, "<=", entry, message, "slice to remove elements", source.user_line())
    if mode in ("constant", "empty"):
        return _pad_by_numbers(traced, entries, _constants(parameters.get("constant_values", 0), rank))
    ends = _expand_widths(parameters.get("end_values", 0), rank)
    lengths = _expand_widths(parameters.get("stat_length"), rank)
    given_array = traced
    for axis in range(rank):
        before, after = entries[2 * axis : 2 * axis + 2]
        if (before, after) == (0, 0):
            continue
        message, hint = f"can't extend empty axis {axis} using mode '{mode}'", "use mode='constant'"
        recorder.builder.require(1, "<=", traced.extents[axis], message, hint, source.user_line())
        if mode in _POSITIONS:
            traced = _pad_by_position(traced, axis, before, after, mode, parameters.get("reflect_type", "even"))
        elif mode == "linear_ramp":
            traced = _pad_by_ramps(traced, axis, before, after, ends[2 * axis : 2 * axis + 2])
        else:
            traced = _pad_by_statistic(traced, axis, before, after, mode, lengths[2 * axis : 2 * axis + 2])
    return traced_ops.copy(traced) if traced is given_array else traced


_STATISTICS: dict[str, Callable[..., Any]] = {
    "maximum": np.max, "mean": np.mean, "median": np.median, "minimum": np.min,
}  # fmt: skip
_PARAMETERS: dict[str, dict[str, Any]] = {
    "empty": {}, "edge": {}, "wrap": {}, "constant": {"constant_values": 0}, "linear_ramp": {"end_values": 0},
    "reflect": {"reflect_type": "even"}, "symmetric": {"reflect_type": "even"},
    **{mode: {"stat_length": None} for mode in _STATISTICS},
}  # fmt: skip
"""The parameters of each mode, with their defaults."""

# -- numbers ----------------------------------------------------------------------------------------------------------


def _pad_by_numbers(traced: Any, entries: Any, values: list[Any]) -> Any:
    recorder, dtype = traced.recorder, traced.value.dtype
    if any(isinstance(value, Traced) for value in values):
        return _pad_by_values(traced, entries, values, is_cast=len({*map(id, values)}) <= 2)
    numbers = [_element(value, dtype, recorder) for value in values]
    if len({repr(number) for number in numbers}) <= 1:
        return recorder.movement("pad", [traced], pad_widths=entries, value=numbers[0] if numbers else 0)
    for position, (width, number) in enumerate(zip(entries, numbers, strict=True)):
        widths: list[Any] = [0] * len(entries)
        widths[position] = width
        traced = recorder.movement("pad", [traced], pad_widths=tuple(widths), value=number)
    return traced


def _constants(values: Any, rank: int) -> list[Any]:
    """Expands `constant_values`. NumPy casts one or two values, and assigns more of them as Python numbers."""
    if not holds_traced(values) and np.size(values) <= 2:
        values = np.asarray(values)
    elif isinstance(values, (list, tuple)) and len(values) <= 2 and not any(np.ndim(value) for value in values):
        values = tuple(values)
    return _expand_widths(values, rank)


def _element(value: Any, dtype: DType, recorder: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        scalar_in(np.asarray(value)[()], dtype, recorder)
        return np.asarray(value).astype(dtype.numpy).item()
    return number_in(value, dtype, recorder)


def _pad_by_values(traced: Any, entries: Any, values: list[Any], *, is_cast: bool) -> Any:
    """Pads with values that a call computes or passes. is_cast: NumPy makes scalars of them first."""
    if is_cast:
        dtype, recorder = traced.value.dtype, traced.recorder
        values = [traced_ops.as_tensor(scalar_in(value, dtype, recorder)) for value in values]
    for axis in range(len(traced.extents)):
        sides = []
        for side in (0, 1):
            shape = _with_extent(traced, axis, entries[2 * axis + side])
            sides.append(assignment.filling(values[2 * axis + side], shape, traced.value.dtype, traced))
        traced = shaping.concatenate([sides[0], traced, sides[1]], axis)
    return traced


def _with_extent(traced: Any, axis: int, extent: Any) -> Any:
    return (*traced.extents[:axis], extent, *traced.extents[axis + 1 :])


# -- positions --------------------------------------------------------------------------------------------------------

# Maps position i of the padded axis to a position among its n elements, by mode.
_POSITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "edge": lambda i, n: np.minimum(np.maximum(i, 0), n - 1),
    "wrap": lambda i, n: i % n,
    "symmetric": lambda i, n: np.where(i % (2 * n) < n, i % (2 * n), 2 * n - 1 - i % (2 * n)),
    "reflect": lambda i, n: _reflect(i, max(2 * n - 2, 1), n),
}


def _reflect(i: Any, period: Any, n: Any) -> Any:
    return np.where(i % period < n, i % period, period - i % period)


def _pad_by_position(traced: Any, axis: int, before: Any, after: Any, mode: str, reflect_type: str) -> Any:
    sides = _sides(traced, axis, before, after, mode)
    recorder = traced.recorder
    length = recorder.simplify(traced.extents[axis] + before + after)
    places = iota(recorder, 0, 1, length, dtypes.int64) - recorder.sizes((before,))[0]
    if sides is None:
        padded = shaping.take(traced, _POSITIONS[mode](places, traced.shape[axis]), axis)
    else:
        padded = shaping.concatenate([sides[0], traced, sides[1]], axis)
    if reflect_type != "odd":
        return padded
    reason = "the width of np.pad"
    if not all(recorder.decide(width + 1, "<=", traced.extents[axis], reason) for width in (before, after)):
        raise UnsupportedError(
            f"np.pad with reflect_type='odd' and widths of {before} and {after}, which are not below the "
            f"{traced.extents[axis]} elements of axis {axis}",
            hint="pad in several steps of smaller widths", where=source.user_line(),
        )  # fmt: skip
    lines = shaping.expand_dims(places, tuple(k for k in range(len(traced.extents)) if k != axis))
    first, last = _part(traced, axis, 0, 1), _part(traced, axis, -1, None)
    odd = np.where(lines < 0, 2 * first - padded, 2 * last - padded)
    outside = (lines < 0) | (lines >= traced.shape[axis])
    return np.where(outside, traced_ops.astype(traced_ops.as_array(odd), traced.value.dtype, copy=False), padded)


def _sides(traced: Any, axis: int, before: Any, after: Any, mode: str) -> tuple[Any, Any] | None:
    """Returns what is before and after the array, as slices of it; None if a width exceeds the array."""
    recorder, size = traced.recorder, traced.shape[axis]
    if mode == "edge":
        ends = (_part(traced, axis, 0, 1), _part(traced, axis, size - 1, None))
        left, right = (
            assignment.filling(end, _with_extent(traced, axis, width), traced.value.dtype, traced)
            for end, width in zip(ends, (before, after), strict=True)
        )
        return left, right
    skipped = 1 if mode == "reflect" else 0
    reason = "the width of np.pad"
    if not all(recorder.decide(width + skipped, "<=", traced.extents[axis], reason) for width in (before, after)):
        return None
    first, last = recorder.sizes((before, after))
    if mode == "wrap":
        return _part(traced, axis, size - first, None), _part(traced, axis, 0, last)
    left = _part(traced, axis, skipped, first + skipped)
    right = _part(traced, axis, size - last - skipped, size - skipped)
    return np.flip(left, axis), np.flip(right, axis)


def _part(traced: Any, axis: int, start: Any, stop: Any) -> Any:
    return traced[(*[slice(None)] * axis, slice(start, stop))]


# -- ramps and statistics ---------------------------------------------------------------------------------------------


def _pad_by_ramps(traced: Any, axis: int, before: Any, after: Any, ends: list[Any]) -> Any:
    dtype, recorder = traced.value.dtype.numpy, traced.recorder
    widths = [recorder.pin(width, "the width of np.pad(mode='linear_ramp')") for width in (before, after)]
    edges = (shaping.squeeze(_part(traced, axis, 0, 1), axis), shaping.squeeze(_part(traced, axis, -1, None), axis))
    left, right = (
        grids.linspace(end, edge, width, endpoint=False, dtype=dtype, axis=axis)
        for end, edge, width in zip(ends, edges, widths, strict=True)
    )
    return shaping.concatenate([left, traced, np.flip(right, axis)], axis, dtype)


def _pad_by_statistic(traced: Any, axis: int, before: Any, after: Any, mode: str, lengths: list[Any]) -> Any:
    left_length, right_length = (_least(traced, axis, length) for length in lengths)
    if 0 in (left_length, right_length) and mode in ("maximum", "minimum"):
        raise ScalarError("stat_length of 0 yields no value for padding", hint="give stat_length >= 1")
    parts = (
        _part(traced, axis, 0, left_length),
        _part(traced, axis, None if right_length is None else traced.shape[axis] - right_length, None),
    )
    dtype, sides = traced.value.dtype, []
    for part, width in zip(parts, (before, after), strict=True):
        value = _STATISTICS[mode](part, axis=axis, keepdims=True)
        if dtype.is_integer and value.value.dtype is not dtype:
            value = np.rint(value)
        sides.append(assignment.filling(value, _with_extent(traced, axis, width), dtype, traced))
    return shaping.concatenate([sides[0], traced, sides[1]], axis)


def _least(traced: Any, axis: int, length: Any) -> Any:
    """Returns stat_length, None if it is the axis or more."""
    if length is None:
        return None
    recorder = traced.recorder
    if not recorder.decide(0, "<=", recorder.plain(length), "stat_length of np.pad"):
        raise ScalarError("index can't contain negative values", hint="give stat_length >= 1")
    longer = recorder.decide(traced.extents[axis], "<=", recorder.plain(length), "stat_length of np.pad")
    return None if longer else length


# -- parameters -------------------------------------------------------------------------------------------------------


def _expand_widths(width: Any, rank: int) -> list[Any]:
    """Expands a width (n, (n,), (before, after), or one pair for each axis) to both sides of every axis."""
    if isinstance(width, np.ndarray) and not width.ndim:
        width = width[()]
    if isinstance(width, dict):
        pairs = {normalize_axis(k, rank): v for k, v in width.items()}
        return [e for k in range(rank) for e in _before_and_after(pairs.get(k, 0))]
    if not isinstance(width, (tuple, list, np.ndarray)) or isinstance(width, Traced):
        return [width] * (2 * rank)
    entries = list(np.atleast_1d(width)) if isinstance(width, np.ndarray) else list(width)
    if not entries:
        raise DtypeError("pad: widths must be integers, and there are none", hint="give one width, as np.pad(x, 1)")
    if not isinstance(entries[0], (tuple, list)) and not rank_of(entries[0]):
        return list(_before_and_after(tuple(entries))) * rank
    if len(entries) == 1:
        return list(_before_and_after(tuple(entries[0]))) * rank
    if len(entries) != rank:
        raise ShapeError(f"pad: {len(entries)} pairs of widths for {rank} axes", hint="give one pair per axis")
    return [e for entry in entries for e in _before_and_after(tuple(entry))]


def _before_and_after(width: Any) -> tuple[Any, Any]:
    if not isinstance(width, tuple):
        return width, width
    if len(width) not in (1, 2):
        raise ShapeError(f"pad: {len(width)} widths for the two sides of an axis", hint="give one or two")
    return (width[0], width[0]) if len(width) == 1 else (width[0], width[1])
