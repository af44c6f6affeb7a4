"""NumPy's functions that write elements of an argument, on traced values: copyto, put and place."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import bool_
from tracefuse.errors import DtypeError, IndexTypeError, OutOfRangeError, ScalarError, ShapeError
from tracefuse.frontend.numpy_api.arrangement.flat_elements import FlatElements, spread_under_mask
from tracefuse.frontend.numpy_api.arrangement.grids import resize
from tracefuse.frontend.numpy_api.arrangement.moving_elements import check_is_array
from tracefuse.frontend.numpy_api.arrangement.shapes import require_array
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import assignment, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.in_place import into, note_update
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_array, missing
from tracefuse.frontend.tracer.record.assigned_numbers import check_has_no_axes, scalar_in, without_none
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import minimum, product
from tracefuse.ops import REGISTRY

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


@implements(np.copyto)
def copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    target = as_array(dst)
    value = copied_value(target, src, casting)
    into(dst, value if where is True else apply("where", where, value, target))


def copied_value(target: Any, src: Any, casting: str = "same_kind") -> Any:
    """Returns what np.copyto writes into an array: the value cast and broadcast. Raises DtypeError for the cast."""
    src = assignment.array_of(src) if isinstance(src, (list, tuple)) else src
    dtype, resolved = target.value.dtype, target.recorder.resolve(src)
    source_dtype = resolved.dtype if resolved.weak is None else _WEAK[resolved.weak]
    # A Python integer goes into any type that holds it, a float into any type of floats.
    rule = casting if resolved.weak is None or casting == "unsafe" else "same_kind"
    if not np.can_cast(source_dtype.numpy, dtype.numpy, rule):  # type: ignore[arg-type]
        raise DtypeError(
            f"Cannot cast from {resolved.weak or source_dtype} to {dtype} according to the rule '{casting}'",
            hint="write np.copyto(x, value, casting='unsafe')", where=source.user_line(),
        )  # fmt: skip
    if casting == "unsafe" and resolved.weak in ("float", "complex"):
        src = traced_ops.astype(as_array(src), dtype)
    return assignment.filling(src, target.extents, dtype, target)


_WEAK = {"bool": bool_, "int": dtypes.uint8, "float": dtypes.float16, "complex": dtypes.complex64}
"""A type that casts to every type that takes a Python number of a kind."""


def fill(a: Any, value: Any) -> None:
    """Assigns one number to every element, as NumPy assigns it to one element."""
    target = as_array(a)
    value = without_none(value, target.value.dtype)
    check_has_no_axes(value, target.value.dtype)
    value = scalar_in(value, target.value.dtype, target.recorder)
    into(a, assignment.filling(value, target.extents, target.value.dtype, target))


def _check_safe(values: Any, target: Any) -> None:
    """Raises DtypeError for an array, other than a NumPy scalar, that does not go into the target's type safely."""
    if not isinstance(values, Traced | np.ndarray) or (isinstance(values, Traced) and values.is_immutable):
        return
    value_dtype, dtype = as_array(values).value.dtype, target.value.dtype
    if not np.can_cast(value_dtype.numpy, dtype.numpy, "safe"):
        raise DtypeError(
            f"Cannot cast array data from {value_dtype} to {dtype} according to the rule 'safe'",
            hint="cast the values with astype first", where=source.user_line(),
        )  # fmt: skip


def _check_apart(values: Any, target: Any) -> None:
    """Raises for values in the memory of the array that np.place changes, which NumPy reads while it writes them."""
    is_shared = isinstance(values, Traced) and views.owner_of(values) is views.owner_of(target)
    if is_shared and values.value.dtype is target.value.dtype:
        raise missing("np.place of values in the memory of the array", "write np.place(x, mask, values.copy())")


@implements(np.putmask)
def putmask(a: Any, mask: Any, values: Any) -> None:
    """Replaces masked elements by the values at the same positions; values repeat to the size of the array."""
    if isinstance(a, Traced) and a.is_immutable:
        raise DtypeError("putmask: first argument must be an array", hint="make an array of it: np.array(x)")
    target = as_array(a)
    _check_safe(values, target)
    replacement = assignment.elements_of(values, target)
    recorder, count = target.recorder, product(replacement.extents)
    chosen = _mask_of(mask, target)
    if recorder.decide(count, "==", 0, "whether np.putmask has values"):
        note_update(target)
        return
    if replacement.extents != target.extents and not recorder.decide(count, "==", 1, "one value of np.putmask"):
        flat = resize(replacement, target.size)
        replacement = shaping.reshape(flat, recorder.sizes(target.extents))
    elif replacement.extents != target.extents:
        replacement = shaping.reshape(replacement, ())
    into(a, apply("where", chosen, replacement, target))


def _mask_of(mask: Any, target: Any) -> Any:
    """Returns a mask of as many elements as the array, in its shape."""
    chosen = as_array(mask)
    count, size = product(chosen.extents), product(target.extents)
    message, hint = "putmask: mask and data must be the same size, not {left} and {right}", "give a mask of its shape"
    target.recorder.builder.require(count, "==", size, message, hint, source.user_line())
    return chosen if chosen.extents == target.extents else shaping.reshape(chosen, target.shape)


@implements(np.place)
def place(arr: Any, mask: Any, vals: Any) -> None:
    """Replaces the masked elements, in row-major order, by the values, which repeat."""
    target, chosen = as_array(arr), apply("ne", as_array(mask), 0)
    _check_safe(vals, target)
    _check_apart(vals, target)
    values = shaping.reshape(assignment.elements_of(vals, target), -1)
    message, hint = "place: mask and data must be the same size", "give a mask of the array's shape"
    sizes = (product(chosen.extents), "==", product(target.extents))
    target.recorder.builder.require(*sizes, message, hint, source.user_line())
    if target.recorder.decide(product(target.extents), "==", 0, "whether np.place has elements to replace"):
        note_update(target)
        return
    if target.recorder.decide(values.extents[0], "==", 0, "whether np.place has values"):
        note_update(target)
        if bool(traced_ops.reduce("any", chosen)):
            raise ScalarError("Cannot insert from an empty array!", hint="give a value", where=source.user_line())
        return
    if values.extents[0] == 1:
        spread = shaping.reshape(values, ())
    else:
        spread = shaping.reshape(spread_under_mask(chosen, values), target.shape)
    into(arr, apply("where", shaping.reshape(chosen, target.shape), spread, target))


@implements(np.fill_diagonal)
def fill_diagonal(a: Any, val: Any, wrap: bool = False) -> None:
    """Assigns where the positions on all axes are equal; with `wrap`, the diagonal of a tall matrix begins again."""
    require_array(a, "ndim")
    target = as_array(a)
    recorder, rank = target.recorder, len(target.extents)
    if rank < 2:
        raise ShapeError("array must be at least 2-d", hint="give a matrix")
    if rank > 2:
        message, hint = "All dimensions of input must be of equal length", "give an array of equal extents"
        for extent in target.extents[1:]:
            recorder.builder.require(target.extents[0], "==", extent, message, hint, source.user_line())
    value = assignment.elements_of(val, target)
    if value.extents:
        value = shaping.reshape(value, -1)
        if recorder.decide(value.extents[0], "==", 0, "whether np.fill_diagonal has values"):
            note_update(target)
            return
    if wrap and rank == 2:
        _fill_wrapped(a, value, target)
        return
    shortest, *others = target.extents
    for extent in others[: 1 if rank == 2 else 0]:
        shortest = shortest if recorder.decide(shortest, "<=", extent, "the length of a diagonal") else extent
    bounds = {"start_indices": (0,) * rank, "end_indices": (shortest,) * rank, "strides": (1,) * rank}
    view = views.take_view("diagonal", target, **bounds, dims=tuple(range(rank)))
    if value.extents:
        order = traced_ops.iota(recorder, 0, 1, shortest, dtypes.int64)
        value = shaping.take(value, order % value.shape[0], 0)
    into(view, assignment.filling(value, view.extents, view.value.dtype, view))


def _fill_wrapped(a: Any, value: Any, target: Any) -> None:
    """Assigns to every diagonal of a matrix whose elements follow one another in memory at equal distances."""
    recorder = target.recorder
    lines = [
        shaping.expand_dims(traced_ops.iota(recorder, 0, 1, extent, dtypes.int64), 1 - axis)
        for axis, extent in enumerate(target.extents)
    ]
    step = target.shape[1] + 1
    first = lines[0] % step
    if value.extents:
        order = (lines[0] * target.shape[1] + first) // step
        value = shaping.take(value, order % value.shape[0], 0)
    into(a, apply("where", first == lines[1], value, target))


@implements(np.put_along_axis)
def put_along_axis(arr: Any, indices: Any, values: Any, axis: Any) -> None:
    require_array(arr, "flat" if axis is None else "ndim")
    check_is_array(indices)
    if axis is None:
        if len(as_array(indices).extents) != 1:
            raise ShapeError("`indices` must have one axis where axis is None", hint="give a vector of positions")
        elements = FlatElements(as_array(arr)).copy()
        put_along_axis(elements, indices, values, 0)
        into(arr, shaping.reshape(elements, as_array(arr).shape))
        return
    target, index = as_array(arr), as_array(indices)
    if not index.value.dtype.is_integer:
        raise IndexTypeError(f"`indices` must be an integer array, not {index.value.dtype}", hint="cast them")
    dim, recorder = normalize_axis(operator.index(axis), len(target.extents)), target.recorder
    if len(index.extents) != len(target.extents):
        message = "`indices` and `arr` must have the same number of dimensions"
        raise ShapeError(message, hint="give positions of the shape of the array", where=source.user_line())
    repeated = _repeated_axes(target, index, dim)
    sizes = [index.shape[k] if k == dim or k in repeated else target.shape[k] for k in range(len(target.extents))]
    message = "shape mismatch: indexing arrays could not be broadcast together: {left} and {right}"
    for k in range(len(sizes)):
        if k != dim and k not in repeated and not recorder.decide(index.extents[k], "==", 1, "np.put_along_axis"):
            hint, where = "give positions of the shape of the array", source.user_line()
            recorder.builder.require(index.extents[k], "==", target.extents[k], message, hint, where, OutOfRangeError)
    elements = assignment.elements_of(values, target)
    while len(elements.extents) > len(sizes) and recorder.decide(elements.extents[0], "==", 1, "np.put_along_axis"):
        elements = shaping.squeeze(elements, 0)
    operands = [shaping.broadcast_to(x, tuple(sizes)) for x in (index, elements)]
    if repeated:
        operands = [_joined_with(x, repeated, dim) for x in operands]
    into(arr, recorder.library(REGISTRY["scatter"], [target, *operands], dim=dim))


def _repeated_axes(target: Any, index: Any, dim: int) -> list[int]:
    """The axes beside `dim` of extent 1 that several positions of the index repeat."""
    decide, question = target.recorder.decide, "whether np.put_along_axis repeats an axis"
    pairs = [(k, *extents) for k, extents in enumerate(zip(target.extents, index.extents, strict=True)) if k != dim]
    return [k for k, size, count in pairs if decide(size, "==", 1, question) and not decide(count, "==", 1, question)]


def _joined_with(x: Any, repeated: Sequence[int], dim: int) -> Any:
    """The elements along the repeated axes as further ones along `dim`, in row-major order: the last write wins."""
    joined = sorted((*repeated, dim))
    others = [k for k in range(len(x.extents)) if k not in joined]
    sizes = [1 if k in joined else x.shape[k] for k in range(len(x.extents))]
    sizes[dim] = math.prod(x.shape[k] for k in joined)
    rows = shaping.reshape(shaping.transpose(x, (*others, *joined)), (*(x.shape[k] for k in others), sizes[dim]))
    return shaping.reshape(shaping.moveaxis(rows, -1, sum(k < dim for k in others)), tuple(sizes))


@implements(np.put)
def put(a: Any, ind: Any, v: Any, mode: str = "raise") -> None:
    """Assigns to row-major positions; mode 'clip' clamps them to the array, 'wrap' takes them modulo its size."""
    if isinstance(a, Traced) and a.is_immutable:  # NumPy changes a copy of a scalar
        a = traced_ops.as_written(traced_ops.copy(a))
    positions: Any = shaping.reshape(shaping.cast_positions(ind, "safe"), -1)
    size = as_array(a).size
    few, recorder = minimum(1, positions.extents[0]), positions.recorder
    if not recorder.decide(few, "<=", product(as_array(a).extents), "whether np.put has elements to replace"):
        raise OutOfRangeError(
            "cannot replace elements of an empty array", hint="give an array with elements", where=source.user_line()
        )
    if recorder.decide(positions.extents[0], "==", 0, "whether np.put has positions"):
        note_update(as_array(a))
        return
    if mode == "clip":
        positions = np.minimum(np.maximum(positions, 0), size - 1)
    elif mode == "wrap":
        positions = positions % size
    elif mode != "raise":
        raise ScalarError(f"clipmode not understood: {mode!r}", hint="use 'raise', 'wrap' or 'clip'")
    FlatElements(a)[positions] = v
