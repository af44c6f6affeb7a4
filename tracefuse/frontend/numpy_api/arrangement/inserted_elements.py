"""np.insert and np.delete on traced values: elements that are put between others, and elements that are left out.

A few integers cut the axis into slices, whatever its extent is. The positions of a slice count on in equal steps: what
lies between them is taken from computed positions. Other positions are computed for the extent of the call, which is a
guard then.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tracefuse import source
from tracefuse.dtypes import int64
from tracefuse.errors import OutOfRangeError, ShapeError
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.assignment import elements_of, filling
from tracefuse.frontend.tracer.array_ops.index_keys import positions_of_slice
from tracefuse.frontend.tracer.array_ops.integers_as_sizes import as_size
from tracefuse.frontend.tracer.array_ops.selections import flat_positions
from tracefuse.frontend.tracer.array_ops.traced_ops import as_array, missing
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import Extent

FUNCTIONS = Functions()
implements = FUNCTIONS.implements

MOST_CUTS = 8
"""Positions that cut an axis into slices. A concatenation of more costs more than a gather."""


def axis_of(arr: Any, axis: Any) -> tuple[Any, int]:
    """Returns the array and the axis; flattened and 0 for None."""
    x = as_array(arr)
    if axis is None:
        return shaping.reshape(x, -1), 0
    return x, normalize_axis(operator.index(axis), len(x.extents))


@implements(np.delete)
def delete(arr: Any, obj: Any, axis: Any = None) -> Any:
    x, dim = axis_of(arr, axis)
    obj = as_size(obj)
    if isinstance(obj, Traced):
        _require_mask_of(obj, x, dim)
        mask = x.recorder.movement("full", [True], shape=(x.extents[dim],))
        mask[obj] = False
        return shaping.take(x, flat_positions(mask, "np.delete at traced positions"), dim)
    if isinstance(obj, slice):
        return _without_slice(x, dim, obj)
    cuts = _cuts_of(obj, x, dim, 1)
    if cuts is None:
        size = x.recorder.pin(x.extents[dim], "np.delete")
        return shaping.take(x, np.delete(np.arange(size), obj), dim)
    pieces, start = list[Any](), 0
    for cut in cuts if len(cuts) == 1 else {cut.position: cut for cut in cuts}.values():
        pieces.append(_piece(x, dim, start, cut.bound))
        start = cut.bound + 1
    return shaping.concatenate([*pieces, _piece(x, dim, start, None)], dim)


def _require_mask_of(obj: Any, x: Any, dim: int) -> None:
    """Raises ShapeError for a mask of np.delete that has not exactly the elements of the axis."""
    if obj.value.dtype.kind != "bool":
        return
    hint = "give a mask with one axis, of the extent of the axis"
    if len(obj.extents) != 1:
        raise ShapeError(f"np.delete: a mask with {len(obj.extents)} axes", hint=hint, where=source.user_line())
    message = "np.delete: a mask of {left} elements for an axis of {right}"
    x.recorder.builder.require(obj.extents[0], "==", x.extents[dim], message, hint, source.user_line())


@implements(np.insert)
def insert(arr: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    x, dim = axis_of(arr, axis)
    obj = as_size(obj)
    if isinstance(obj, Traced):
        raise missing("np.insert at traced positions: the size of the result depends on the data",
                      "give the positions as NumPy arrays or integers")  # fmt: skip
    added = elements_of(values, x)
    if isinstance(obj, slice):
        line = positions_of_slice(obj, x.extents[dim], x.recorder)
        if not x.recorder.decide(line[2], "==", 1, "whether a slice has one position"):
            return _with_slice(x, dim, line, added)
        obj = x.recorder.sizes(line[:1])
    cuts = _cuts_of(obj, x, dim, 0)
    if cuts is None:
        return _insert_at_known_positions(x, dim, obj, added)
    lead = len(x.extents) - len(added.extents)
    added = shaping.expand_dims(added, tuple(range(lead))) if lead > 0 else added
    if not isinstance(obj, (list, tuple, np.ndarray)) or not np.ndim(obj):
        added = shaping.moveaxis(added, 0, dim)
    blocks = _blocks(x, dim, added, len(cuts))
    pieces, start = list[Any](), 0
    for cut in cuts:
        pieces += [_piece(x, dim, start, cut.bound), blocks[cut.number]]
        start = cut.bound
    return shaping.concatenate([*pieces, _piece(x, dim, start, None)], dim)


def _blocks(x: Any, dim: int, added: Any, count: int) -> Sequence[Any]:
    """Returns what stands at each of `count` positions: all values at a single one, else one of them."""
    sizes = list(x.recorder.sizes(x.extents))
    sizes[dim] = added.shape[dim] if count == 1 else count
    wide = filling(added, x.recorder.plain(tuple(sizes)), x.value.dtype, x)
    return [wide] if count == 1 else [_piece(wide, dim, k, k + 1) for k in range(count)]


def _without_slice(x: Any, dim: int, part: slice) -> Any:
    """Returns the elements along an axis that a slice does not select."""
    recorder, extent = x.recorder, x.extents[dim]
    first, step, count, _ = positions_of_slice(part, extent, recorder)
    if not recorder.decide(2, "<=", step, "whether a slice leaves elements between its own"):
        start, stop = recorder.sizes((first, first + count))
        return shaping.concatenate([_piece(x, dim, 0, start), _piece(x, dim, stop, None)], dim)
    before, between, most = recorder.sizes((first, step - 1, count))
    places = traced_ops.iota(recorder, 0, 1, extent - count, int64)
    return shaping.take(x, places + np.clip((places - before) // between + 1, 0, most), dim)


def _with_slice(x: Any, dim: int, line: tuple[Extent, Extent, Extent, bool], added: Any) -> Any:
    """Returns x with values, which broadcast, inserted before each of the positions of a slice, which are not one."""
    recorder, extents = x.recorder, list(x.extents)
    first, step, count, is_reversed = line
    total = extents[dim] + count
    if not recorder.decide(1, "<=", count, "whether a slice has positions"):
        return traced_ops.copy(x)
    start, by, most, last = recorder.sizes((first, step + 1, count, extents[dim] - 1))
    places = traced_ops.iota(recorder, 0, 1, total, int64)
    inserted = np.clip((places - start + by - 1) // by, 0, most)
    result = shaping.take(x, np.minimum(places - inserted, last), dim)
    between = slice(start, recorder.sizes((first + (count - 1) * (step + 1) + 1,))[0], by)
    extents[dim] = count
    wide: Any = filling(added, recorder.plain(tuple(extents)), x.value.dtype, x)
    result[(*(slice(None),) * dim, between)] = np.flip(wide, dim) if is_reversed else wide
    return result


def _insert_at_known_positions(x: Any, dim: int, places: Any, added: Any) -> Any:
    """Concatenates the array and the values, then takes elements in the order that np.insert gives positions."""
    recorder = x.recorder
    size = recorder.pin(x.extents[dim], "np.insert")
    lead = len(x.extents) - len(added.extents)
    if lead < 0 and np.size(places) == 0:  # nothing goes to no places, of any shape
        added = np.zeros_like(added, shape=added.shape[-lead:])
    added = shaping.expand_dims(added, tuple(range(lead))) if lead > 0 else added
    places = np.asarray(places, np.int64) if isinstance(places, (list, tuple)) and not len(places) else places
    places = np.flatnonzero(places) if isinstance(places, np.ndarray) and places.dtype == bool else places
    if np.size(places) != 1:
        count = int(np.insert(np.arange(size), places, -1).size) - size
    else:
        added = added if np.ndim(places) else shaping.moveaxis(added, 0, dim)
        count = recorder.pin(added.extents[dim], "np.insert")
        places = np.full(count, operator.index(np.asarray(places).item()))
    sizes = list(recorder.sizes(x.extents))
    sizes[dim] = count
    wide = filling(added, recorder.plain(tuple(sizes)), x.value.dtype, x)
    order = np.insert(np.arange(size), places, np.arange(size, size + count))
    return shaping.take(shaping.concatenate([x, wide], dim), order, dim)


# -- cuts -------------------------------------------------------------------------------------------------------------


class _Cut(NamedTuple):
    """A position as the caller gives it, its number among the positions, and where it is along the axis."""

    position: Any
    number: int
    bound: Any


def _cuts_of(obj: Any, x: Any, dim: int, needed: int) -> list[_Cut] | None:
    """Returns positions along the axis in their order; None unless they are few integers.

    needed: the elements that must follow a position, 0 or 1. Requires that the positions are inside of the axis.
    """
    if isinstance(obj, SymbolicSize) or _is_integer(obj):
        positions = [obj if isinstance(obj, SymbolicSize) else int(obj)]
    else:
        listed = obj if isinstance(obj, (list, tuple, np.ndarray)) else ()
        if np.ndim(listed) != 1 or not 0 < len(listed) <= MOST_CUTS or not all(map(_is_integer, listed)):
            return None
        positions = [int(one) for one in listed]
    signs = [bool(one < 0) for one in positions]
    if len({*signs}) > 1 and not max(positions) < x.shape[dim] + min(positions):
        return None  # which of two positions comes first depends on the extent
    hint, where = "give positions inside of the axis", source.user_line()
    for one, is_negative in zip(positions, signs, strict=True):
        named = "a computed index" if isinstance(one, SymbolicSize) else f"index {one}"
        text, least = f"{named} is out of bounds for axis {dim} with size {{right}}", one + needed
        least = x.recorder.plain(-one if is_negative else least)
        x.recorder.builder.require(least, "<=", x.extents[dim], text, hint, where, OutOfRangeError)
    bounds = [x.shape[dim] + one if is_negative else one for one, is_negative in zip(positions, signs, strict=True)]
    cuts = list(map(_Cut, positions, range(len(positions)), bounds))
    return cuts if len(cuts) == 1 else sorted(cuts, key=lambda cut: (cut.position < 0, cut.position))


def _is_integer(one: Any) -> bool:
    return isinstance(one, (int, np.integer)) and not isinstance(one, bool)


def _piece(x: Any, dim: int, start: Any, stop: Any) -> Any:
    return x[(*(slice(None),) * dim, slice(start, stop))]
