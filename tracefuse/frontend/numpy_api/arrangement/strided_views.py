"""Views of windows and of arbitrary strides: `np.lib.stride_tricks`.

Windows are a movement, which copies nothing. A view of other strides takes elements at positions of a contiguous array;
a write puts them back. Where several of its elements have one place in memory, it is read-only: which of them NumPy
writes last depends on the order in which it visits them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.errors import OutOfRangeError, ShapeError, UnsupportedError
from tracefuse.frontend.numpy_api.registration import array_memory
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.array_ops import shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.traced_ops import as_tensor
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.traced import Traced, ViewStep
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.extents import Extent, divide_exactly, product
from tracefuse.ops import REGISTRY

FUNCTIONS = Functions()
implements = FUNCTIONS.implements

_OVERLAP = "a view in which several elements have one place in memory"


@implements(np.lib.stride_tricks.sliding_window_view)
def sliding_window_view(
    x: Any, window_shape: Any, axis: Any = None, *, subok: bool = False, writeable: bool = False
) -> Any:
    """A view with the windows in new trailing axes; no window is copied unless the result needs it."""
    result = traced = as_tensor(x)
    recorder, rank = traced.recorder, len(traced.extents)
    widths = window_shape if isinstance(window_shape, (tuple, list)) else (window_shape,)
    axes = tuple(range(rank)) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    if len(widths) != len(axes):
        raise ShapeError(
            f"sliding_window_view: {len(widths)} widths for {len(axes)} axes", hint="give one width for each axis"
        )
    for width, axis_of_width in zip(shaping.new_shape_entries(widths, recorder), axes, strict=True):
        dim = normalize_axis(operator.index(axis_of_width), rank)
        if recorder.decide(width, "==", 0, "a window without elements"):
            result = _empty_windows(result, dim)
        else:
            result = views.take_view("windows", result, dim=dim, width=width)
    if result is traced:
        result = views.alias(traced)
    result.read_only = _OVERLAP if writeable else "the result of sliding_window_view"
    return result


def _empty_windows(array: Traced, dim: int) -> Traced:
    """Returns windows without elements: one more than the axis has elements, as in NumPy."""
    before, after = array.extents[:dim], array.extents[dim + 1 :]
    shape = (*before, array.extents[dim] + 1, *after, 0)
    windows: Traced = array.recorder.movement("full", [0], shape=shape, dtype=array.value.dtype)
    return windows


def as_strided(
    recorder: Recorder, x: Any, shape: Any = None, strides: Any = None, subok: bool = False, writeable: bool = True,
    **more: Any,
) -> Any:  # fmt: skip
    """Records np.lib.stride_tricks.as_strided: the elements of a contiguous array at strides in bytes from its first.

    Raises UnsupportedError for an array that is not contiguous and strides that are no multiple of the element size,
    and OutOfRangeError where an element lies outside of the array.
    """
    if not isinstance(x, Traced):
        return np.lib.stride_tricks.as_strided(x, shape, strides, subok, writeable, **more)
    array = as_tensor(x)
    flat = _in_memory_order(array)
    extents = array.extents if shape is None else shaping.new_shape(tuple(_entries(shape)), recorder)
    if strides is None and array_memory.ArrayFlags(array).c_contiguous:
        steps = tuple(views.strides_in(None, extents))
    else:
        in_bytes = array_memory.strides_in_bytes(array) if strides is None else _entries(strides)
        if len(extents) != len(in_bytes):
            raise ShapeError("mismatch in length of strides and shape", hint="give a stride for each axis")
        steps = tuple(_in_elements(array, stride) for stride in in_bytes)
    _check_inside(flat, extents, steps)
    positions: Any = traced_ops.iota(recorder, 0, 1, 1, dtypes.int64)
    for extent, step in zip(extents, steps, strict=True):
        line: Any = traced_ops.iota(recorder, 0, 1, extent, dtypes.int64)
        positions = shaping.expand_dims(positions, -1) + line * recorder.sizes((step,))[0]
    positions = shaping.squeeze(positions, 0)
    result = _at_positions(flat, positions, steps)
    if not _is_injective(flat, extents, steps):
        result.read_only = result.read_only or _OVERLAP
    elif not writeable:
        result.read_only = result.read_only or "the result of as_strided"
    return result


def _entries(values: Any) -> Sequence[Any]:
    return values if isinstance(values, (tuple, list)) else (values,)


def _in_memory_order(array: Traced) -> Any:
    """Returns the elements of a contiguous array in one axis, as a view."""
    array.settle()
    flags, axis = array_memory.ArrayFlags(array), _one_axis(array)
    if flags.c_contiguous:
        return views.reshape(array, axis)
    if flags.f_contiguous:
        return views.reshape(shaping.transpose(array), axis)
    raise UnsupportedError(
        "as_strided of an array that is not contiguous: its view may reach elements of another",
        hint="take slices, or copy: y = np.ascontiguousarray(x), with the strides of y", where=source.user_line(),
    )  # fmt: skip


def _one_axis(array: Traced) -> tuple[Extent]:
    """Returns the shape of all elements in one axis."""
    return (product(array.extents),)


def _in_elements(array: Traced, stride: Any) -> Extent:
    """Returns a stride in bytes as one in elements."""
    recorder, itemsize = array.recorder, array.value.dtype.itemsize
    extent = recorder.plain(stride if hasattr(stride, "extent") else operator.index(stride))
    exact = divide_exactly(extent, itemsize)
    if exact is None:
        raise UnsupportedError(
            f"as_strided with a stride of {stride} bytes, between elements of {itemsize} bytes",
            hint="give strides that are multiples of x.itemsize", where=source.user_line(),
        )  # fmt: skip
    return exact


def _check_inside(flat: Traced, extents: Sequence[Extent], steps: Sequence[Extent]) -> None:
    """Raises OutOfRangeError unless every element of a view lies in its array; the outcome is guarded."""
    recorder, reason = flat.recorder, "the elements of as_strided"
    if recorder.decide(product(extents), "==", 0, reason):
        return
    low: Extent = 0
    high: Extent = 1
    for extent, step in zip(extents, steps, strict=True):
        if recorder.decide(0, "<=", step, reason):
            high = high + step * (extent - 1)
        else:
            low = low + step * (extent - 1)
    if not (recorder.decide(0, "<=", low, reason) and recorder.decide(high, "<=", flat.extents[0], reason)):
        raise OutOfRangeError(
            "as_strided reaches memory outside of the array", hint="give a smaller shape, or positive strides",
            where=source.user_line(),
        )  # fmt: skip


def _is_injective(flat: Traced, extents: Sequence[Extent], steps: Sequence[Extent]) -> bool:
    """Whether no two elements of a view have one place: each stride exceeds what the smaller ones span; guarded."""
    recorder, reason = flat.recorder, "whether elements of as_strided overlap"
    span: Extent = 0
    for extent, step in sorted(zip(extents, steps, strict=True), key=lambda pair: recorder.known(pair[1])):
        if recorder.decide(extent, "<=", 1, reason):
            continue
        if not recorder.decide(span + 1, "<=", step, reason):
            return False
        span = span + step * (extent - 1)
    return True


def _at_positions(flat: Any, positions: Any, steps: Sequence[Extent]) -> Any:
    """Returns the view of a flat array at positions; a write puts its elements there."""
    recorder, count = flat.recorder, product(positions.extents)
    places = recorder.movement("reshape", [positions], new_shape=(count,))

    def read(base: Any) -> Any:
        return shaping.take(base, positions, 0)

    def write(base: Any, values: Any) -> Any:
        rows = recorder.movement("reshape", [values], new_shape=(count,))
        return recorder.library(REGISTRY["index_put"], [base, places, rows], how="assign")

    step = ViewStep(("as_strided", positions.extents, tuple(steps)), read, write)
    return views.attach(read(flat), flat, step, lambda strides: tuple(one * strides[0] for one in steps))
