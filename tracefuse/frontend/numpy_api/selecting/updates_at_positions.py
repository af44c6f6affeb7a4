"""ufunc.at on traced values: updates of elements at positions, a repeated position every time."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.dtypes import DType, bool_
from tracefuse.errors import ScalarError, ShapeError
from tracefuse.frontend.tracer.array_ops import assignment, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.in_place import check_writable, into
from tracefuse.frontend.tracer.array_ops.index_keys import is_array, is_mask
from tracefuse.frontend.tracer.array_ops.masked_elements import key_parts
from tracefuse.frontend.tracer.array_ops.traced_ops import as_array, missing
from tracefuse.frontend.tracer.libraries.stage_calls import call_or_refuse
from tracefuse.frontend.tracer.values.operands import Resolved
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.frontend.tracer.values.ufunc_loops import loop_types


def update_at(ufunc: np.ufunc, target: Any, key: Any, *values: Any) -> None:
    """Records ufunc.at: unlike `target[key] = ufunc(target[key], value)`, it updates a repeated position every time."""
    name = ufunc.__name__
    if ufunc.nout != 1 or ufunc.nin != 1 + len(values):
        raise ScalarError(f"np.{name}.at takes {ufunc.nin - 1} values", hint="see the documentation of NumPy")
    if not isinstance(target, Traced):
        raise missing(f"np.{name}.at on an array that is not traced", "make the array in the function, as np.zeros(n)")
    x: Any = target
    check_writable(x)
    key = key_parts(key)
    if not values:
        update = _update_between_stages if any(map(_is_truth, key)) else _update_in_turns
        update(ufunc, x, key)
        return
    value = assignment.array_of(values[0]) if isinstance(values[0], (list, tuple)) else values[0]
    operand = as_array(_in_the_type_of(ufunc, x.value.dtype, value))
    if operand.memory is x.memory:  # the updates do not change it, as NumPy copies it then
        operand = traced_ops.copy(operand)
    if any(map(_is_truth, key)):
        _update_between_stages(ufunc, x, key, operand)
        return
    resolved: list[Resolved] = [x.recorder.resolve(operand_of_call) for operand_of_call in (x, operand)]
    types = loop_types(ufunc, [(r.dtype, None) for r in resolved], [x.value.dtype], casting="unsafe")
    _check_fits(x, key, operand)
    is_step_of_half = ufunc is np.nextafter and types[0].is_half  # kernels combine halves in float32
    is_exact = not is_step_of_half and _is_exact_in(x.value.dtype, types[0], name)
    if types[0] is not types[2] or types[1] is not types[0] or not is_exact:
        _update_in_turns(ufunc, x, key, operand)
        return
    wide = traced_ops.astype(x, types[0], copy=False)
    result = assignment.combined_at(wide, key, traced_ops.astype(operand, types[1], copy=False), name)
    if result is None:  # a key without positions names each element once
        if len(operand.extents) > np.ndim(x[key]):
            raise ShapeError(
                f"np.{name}.at: values have more axes than the elements", hint="give values of their shape"
            )
        x[key] = traced_ops.astype(ufunc(x[key], operand), x.value.dtype, copy=False)
    else:
        selected = traced_ops.astype(result, x.value.dtype, copy=False)
        into(assignment.view_of(x, key), selected)


def _is_truth(part: Any) -> bool:
    """Whether a part of a key selects all elements or none: a truth value, or a mask without axes."""
    return isinstance(part, (bool, np.bool_)) or (is_mask(part) and not np.ndim(part))


def _check_fits(x: Traced, key: Any, operand: Any) -> None:
    """Requires that positions are inside of an array, and then that values broadcast to the elements there."""
    if any(map(is_mask, key)):
        return
    elements = as_array(assignment.getitem(x, key))
    if len(as_array(operand).extents) > len(elements.extents):
        raise ShapeError("array is not broadcastable to correct shape", hint="give values of the shape of the elements")
    shaping.broadcast_to(operand, x.recorder.sizes(elements.extents))


def _in_the_type_of(ufunc: np.ufunc, dtype: DType, value: Any) -> Any:
    """Returns a Python number as an array: an integer in the array's type if that holds it and int64 holds the type.

    NumPy takes the integer as int64; updates of functions of integers wrap alike.
    """
    character = dtype.numpy.char
    is_of_integers = dtype.is_integer and f"{character}{character}->{character}" in ufunc.types
    if type(value) is int and is_of_integers and np.can_cast(dtype.numpy, np.int64):
        limits = np.iinfo(dtype.name)
        if limits.min <= value <= limits.max:
            return np.asarray(value, dtype.numpy)
    return np.asarray(value) if isinstance(value, (bool, int, float, complex)) else value


def _is_exact_in(dtype: DType, loop: DType, name: str) -> bool:
    """Whether updates in the loop's type, cast once, are those that NumPy casts to the array's type one by one."""
    if dtype is loop:
        return True
    if loop.is_complex and not dtype.is_complex:  # each cast drops an imaginary part
        return False
    if not np.can_cast(dtype.numpy, loop.numpy, "safe"):
        return False
    if dtype.is_integer:
        return loop.is_integer and name in _MODULAR
    return dtype is not bool_


_MODULAR = ("add", "subtract", "multiply", "bitwise_and", "bitwise_or", "bitwise_xor")
"""Ufuncs whose low bits depend on the low bits of their operands alone."""


def _update_in_turns(ufunc: np.ufunc, x: Any, key: Any, value: Any = None) -> None:
    """Updates elements in as many turns as the most frequent position occurs; each turn casts to the array's type."""
    parts = key_parts(key)
    positions = [_known(part) for part in parts if is_array(part) and not is_mask(part)]
    if any(part is None for part in positions):
        _update_between_stages(ufunc, x, key, value)
        return
    if not positions:
        _update_once(ufunc, x, key, value)
        return
    if value is not None and len(parts) > 1:
        _update_between_stages(ufunc, x, key, value)
        return
    values = None if value is None else _values_of_positions(x, positions[0], value)
    counted = [_from_the_start(x, parts, k) for k, part in enumerate(parts) if is_array(part) and not is_mask(part)]
    columns = [np.ravel(array) for array in np.broadcast_arrays(*counted)]
    _, inverse, counts = np.unique(np.stack(columns), axis=1, return_inverse=True, return_counts=True)
    order = np.argsort(inverse.reshape(-1), kind="stable")
    turns = np.empty_like(order)
    turns[order] = np.concatenate([np.arange(count) for count in counts]) if len(counts) else []
    for turn in range(int(turns.max(initial=-1)) + 1):
        chosen = iter([column[turns == turn] for column in columns])
        once = tuple(next(chosen) if is_array(part) and not is_mask(part) else part for part in parts)
        _update_once(ufunc, x, once, None if values is None else values[np.flatnonzero(turns == turn)])


def _update_between_stages(ufunc: np.ufunc, x: Any, key: Any, value: Any = None) -> None:
    """Calls NumPy's ufunc.at on a copy of the elements between two stages of a call."""
    name = f"np.{ufunc.__name__}.at"
    values = () if value is None else (value,)
    refusal = missing(
        f"{name} at positions that depend on arguments",
        f"write x[i] = np.{ufunc.__name__}(x[i]{', values' if values else ''}) for distinct positions"
        + (f", or cast the values to {x.value.dtype}" if values else ""),
    )
    result = call_or_refuse(_updated_copy, name, (ufunc, x, key, *values), {}, refusal)
    into(x, shaping.reshape(result, x.shape))


def _updated_copy(ufunc: np.ufunc, array: Any, key: Any, *values: Any) -> Any:
    updated = np.array(array)
    ufunc.at(updated, key, *values)
    return updated


def _from_the_start(x: Any, parts: Any, place: int) -> Any:
    """Returns the positions of a part of a key, counted from the start of their axis."""
    positions = _known(parts[place])
    if not np.any(positions < 0):
        return positions
    if any(part is Ellipsis for part in parts[:place]):
        axis = place - len(parts)
    else:
        axis = sum(part is not None for part in parts[:place])
    extent = x.recorder.pin(x.extents[axis], "the positions of ufunc.at")
    return np.where((positions < 0) & (positions >= -extent), positions + extent, positions)


def _values_of_positions(x: Any, positions: Any, value: Any) -> Any:
    """Broadcasts a value to the elements at positions along the first axis; returns a row for each position."""
    rest = x.shape[1:]
    spread = shaping.broadcast_to(value, (*positions.shape, *rest))
    return shaping.reshape(spread, (positions.size, *rest))


def _update_once(ufunc: np.ufunc, x: Any, key: Any, value: Any) -> None:
    result = ufunc(x[key]) if value is None else ufunc(x[key], value)
    x[key] = traced_ops.astype(result, x.value.dtype, copy=False)


def _known(part: Any) -> Any:
    """Returns an index array that depends on no argument, None for others."""
    if isinstance(part, Traced):
        return part.recorder.contents.of(part.number, "the positions of ufunc.at")
    return np.asarray(part)
