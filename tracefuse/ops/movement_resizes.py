"""Movement ops that cut, extend and shift along axes, slide windows, join arrays, and keep a triangle.

Slice bounds lie inside the axis and steps are positive: the frontends see to it. What has no source is a fill value.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse.errors import ShapeError
from tracefuse.ir.axes import normalize_axes, normalize_axis
from tracefuse.ir.derivatives import Linear
from tracefuse.ir.extents import Extent, ceildiv, floordiv, maximum, mod
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.op_kinds import IndexOf, Resize, Source, Within
from tracefuse.ops import printed_calls, transposes
from tracefuse.ops.families import movement


def slice_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    """Returns the shape of a slice of the first operand; its bounds must lie inside the axes."""
    starts, ends, steps = (attributes[k] for k in ("start_indices", "end_indices", "strides"))
    shape = shapes[0]
    if not len(starts) == len(ends) == len(steps) == len(shape):
        raise ShapeError(
            f"slice: bounds for {len(starts)} axes, operand has {len(shape)}", hint="give one bound per axis"
        )
    result: list[Extent] = []
    for axis, (extent, start, end, step) in enumerate(zip(shape, starts, ends, steps, strict=True)):
        require(1, "<=", step, f"step {{right}} on axis {axis}", "steps are at least 1; flip the axis for others")
        hint = "bounds must satisfy 0 <= start <= end <= extent"
        require(0, "<=", start, f"start {{right}} on axis {axis} is negative", hint)
        require(start, "<=", end, f"start {{left}} on axis {axis} is after end {{right}}", hint)
        require(end, "<=", extent, f"end {{left}} on axis {axis} is beyond the extent {{right}}", hint)
        result.append(ceildiv(end - start, step))
    return tuple(result)


def _slice_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    steps = zip(out, attributes["start_indices"], attributes["strides"], strict=True)
    return (Source(0, tuple(start + c * step for c, start, step in steps)),)


def slice_view(x: Any, start_indices: Sequence[int], end_indices: Sequence[int], strides: Sequence[int]) -> Any:
    """Returns a slice of an array as a view."""
    return x[tuple(builtins.slice(*bounds) for bounds in zip(start_indices, end_indices, strides, strict=True))]


def _slice_resize(shapes: Sequence[Shape], attributes: Attributes) -> tuple[Resize, ...]:
    bounds = zip(shapes[0], *(attributes[k] for k in ("start_indices", "end_indices", "strides")), strict=True)
    return tuple(Resize(0, k, -start, end - extent, step) for k, (extent, start, end, step) in enumerate(bounds))


def _unmoved_slice(attributes: Attributes, axis: int, extent: Extent) -> dict[str, Any]:
    """Attributes with which a slice keeps all of `axis`."""
    complete = {"start_indices": 0, "end_indices": extent, "strides": 1}
    return {**attributes, **{key: _replaced(attributes[key], axis, value) for key, value in complete.items()}}


def _replaced(entries: Sequence[Any], axis: int, *values: Any) -> tuple[Any, ...]:
    """Replaces the entries of an axis, which are as many as `values`."""
    first = axis * len(values)
    return (*entries[:first], *values, *entries[first + len(values) :])


def _only_axis(attributes: Attributes, axis: int, extent: Extent) -> None:
    """The op acts on one axis alone."""


slice = movement(
    "slice", slices="read", shifts=_unmoved_slice, shape=slice_shape, pull=_slice_pull, numpy=slice_view, resize=_slice_resize,
    attributes=(("start_indices", ()), ("end_indices", ()), ("strides", ())),
    printed=printed_calls.print_slice, derivative=Linear(transposes.slice), doc="Elements start, start + step, ... before end, on every axis.",
)  # fmt: skip


def _slice_scatter_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    data, values = shapes
    covered = slice_shape([data], attributes, require)
    if len(values) != len(covered):
        raise ShapeError(
            f"slice_scatter: values with {len(values)} axes for a slice with {len(covered)}",
            hint="give values of the shape of the slice",
        )
    for axis, (extent, length) in enumerate(zip(covered, values, strict=True)):
        message = f"the slice has {{left}} elements on axis {axis}, the values have {{right}}"
        require(extent, "==", length, message, "give values of the shape of the slice")
    return data


def slice_sources(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    """Returns the sources of an array with another slice: the second operand inside of it, the first elsewhere."""
    coordinates, conditions = [], []
    bounds = zip(out, shapes[0], *(attributes[k] for k in ("start_indices", "end_indices", "strides")), strict=True)
    for c, extent, start, end, step in bounds:
        coordinates.append(floordiv(c - start, step) if step != 1 else c - start)
        if start != 0 or end != extent:
            conditions.append(Within(c, start, end))
        if step != 1:
            conditions.append(Within(mod(c - start, step), 0, 1))
    return (Source(1, tuple(coordinates), tuple(conditions)), Source(0, tuple(out)))


def _slice_scatter_numpy(
    x: Any, values: Any, start_indices: Sequence[int], end_indices: Sequence[int], strides: Sequence[int]
) -> Any:
    result = x.copy()
    slice_view(result, start_indices, end_indices, strides)[...] = values
    return result


slice_scatter = movement(
    "slice_scatter", shape=_slice_scatter_shape, pull=slice_sources, numpy=_slice_scatter_numpy, arity=2, slices="written", shifts=_unmoved_slice,
    attributes=(("start_indices", ()), ("end_indices", ()), ("strides", ())),
    derivative=Linear(transposes.slice_scatter), doc="The first operand with the elements start, start + step, ... before end, on every axis, replaced by the second.",
)  # fmt: skip


def _pad_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    widths, result = attributes["pad_widths"], []
    for axis, extent in enumerate(shapes[0]):
        before, after = widths[2 * axis], widths[2 * axis + 1]
        hint = "a negative width may not remove more than the axis has"
        require(0, "<=", extent + before + after, f"axis {axis} would get {{right}} elements", hint)
        result.append(extent + before + after)
    return tuple(result)


def _pad_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    widths = attributes["pad_widths"]
    coordinates = tuple(c - widths[2 * k] for k, c in enumerate(out))
    padded = [k for k in range(len(out)) if widths[2 * k] != 0 or widths[2 * k + 1] != 0]
    return (Source(0, coordinates, tuple(Within(coordinates[k], 0, shapes[0][k]) for k in padded)),)


def _pad_numpy(x: Any, pad_widths: Sequence[int], value: Any) -> Any:
    pairs = [(pad_widths[2 * k], pad_widths[2 * k + 1]) for k in range(x.ndim)]
    inner = x[tuple(builtins.slice(max(0, -b), n + min(0, a)) for (b, a), n in zip(pairs, x.shape, strict=True))]
    return np.pad(inner, [(max(0, b), max(0, a)) for b, a in pairs], constant_values=value)


def _pad_resize(shapes: Sequence[Shape], attributes: Attributes) -> tuple[Resize, ...]:
    widths = attributes["pad_widths"]
    return tuple(Resize(0, axis, widths[2 * axis], widths[2 * axis + 1]) for axis in range(len(shapes[0])))


pad = movement(
    "pad", shape=_pad_shape, pull=_pad_pull, numpy=_pad_numpy, resize=_pad_resize, attributes=(("pad_widths", ()), ("value", 0)),
    printed=printed_calls.print_pad,
    shifts=lambda attributes, axis, extent: {**attributes, "pad_widths": _replaced(attributes["pad_widths"], axis, 0, 0)},
    derivative=Linear(transposes.pad, attributes={"value": 0}), doc="`value` before and after each axis: pad_widths is before, after per axis, first axis first; negative widths cut.",
)  # fmt: skip


def _cat_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    dim = normalize_axis(attributes["dim"], len(shapes[0]))
    total: Extent = 0
    for shape in shapes:
        if len(shape) != len(shapes[0]):
            raise ShapeError(
                f"cat: operands have {len(shapes[0])} and {len(shape)} axes", hint="give all the same rank"
            )
        for axis, extent in enumerate(shape):
            if axis != dim:
                message = f"extents differ on axis {axis}: {{left}} and {{right}}"
                require(shapes[0][axis], "==", extent, message, f"only axis {dim} may differ")
        total = total + shape[dim]
    return tuple(total if k == dim else e for k, e in enumerate(shapes[0]))


def _cat_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    dim = attributes["dim"]
    sources = []
    start: Extent = 0
    for operand, shape in enumerate(shapes):
        end = start + shape[dim]
        coordinates = tuple(c - start if k == dim else c for k, c in enumerate(out))
        sources.append(Source(operand, coordinates, (Within(out[dim], start, end),)))
        start = end
    return tuple(sources)


def _cat_resize(shapes: Sequence[Shape], attributes: Attributes) -> tuple[Resize, ...]:
    dim = attributes["dim"]
    lengths = [shape[dim] for shape in shapes]
    *before, total = itertools.accumulate(lengths, initial=0)
    return tuple(
        Resize(k, dim, b, total - b - length) for k, (b, length) in enumerate(zip(before, lengths, strict=True))
    )


cat = movement(
    "cat", shape=_cat_shape, pull=_cat_pull, resize=_cat_resize, numpy=lambda *xs, dim: np.concatenate(xs, axis=dim), attributes=(("dim", 0),),
    arity=None, associative=True, shifts=_only_axis, derivative=Linear(transposes.cat), doc="Operands one after another along axis `dim`.",
)  # fmt: skip


def _same_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    normalize_axes(attributes["dims"], len(shapes[0]))
    return shapes[0]


def _flip_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    return (Source(0, tuple(shapes[0][k] - 1 - c if k in attributes["dims"] else c for k, c in enumerate(out))),)


flip = movement(
    "flip", shape=_same_shape, pull=_flip_pull, numpy=lambda x, dims: np.flip(x, tuple(dims)), attributes=(("dims", ()),),
    shifts=lambda attributes, axis, extent: {"dims": tuple(dim for dim in attributes["dims"] if dim != axis)},
    derivative=Linear(transposes.flip), doc="Reverses the axes `dims`.",
)  # fmt: skip


def _roll_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    dim, shape = attributes["dim"], shapes[0]
    extent = shape[dim]
    shift = attributes["shift"] % extent if extent != 0 else 0
    moved = [
        (out[dim] - shift + extent, Within(out[dim], 0, shift)),
        (out[dim] - shift, Within(out[dim], shift, extent)),
    ]
    return tuple(
        Source(0, tuple(new if k == dim else c for k, c in enumerate(out)), (condition,)) for new, condition in moved
    )


def _roll_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    normalize_axis(attributes["dim"], len(shapes[0]))
    return shapes[0]


def _roll_resize(shapes: Sequence[Shape], attributes: Attributes) -> tuple[Resize, ...]:
    dim = attributes["dim"]
    shift = attributes["shift"] % maximum(1, shapes[0][dim])
    return (Resize(0, dim, shift, -shift, moves=True),)


roll = movement(
    "roll", shape=_roll_shape, pull=_roll_pull, resize=_roll_resize, numpy=lambda x, shift, dim: np.roll(x, shift, dim), attributes=(("shift", 0), ("dim", 0)),
    shifts=_only_axis, derivative=Linear(transposes.roll), doc="Moves elements by `shift` along axis `dim`; what leaves at one end enters at the other.",
)  # fmt: skip


def _windows_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    dim, width = normalize_axis(attributes["dim"], len(shapes[0])), attributes["width"]
    hint = "windows have at least one element and at most as many as the axis"
    require(1, "<=", width, "a window of {right} elements", hint)
    require(width, "<=", shapes[0][dim], f"a window of {{left}} elements on axis {dim}, which has {{right}}", hint)
    return (*(e - width + 1 if k == dim else e for k, e in enumerate(shapes[0])), width)


def _windows_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    return (Source(0, tuple(c + out[-1] if k == attributes["dim"] else c for k, c in enumerate(out[:-1]))),)


windows = movement(
    "windows", shape=_windows_shape, pull=_windows_pull, attributes=(("dim", 0), ("width", 1)),
    numpy=lambda x, dim, width: np.lib.stride_tricks.sliding_window_view(x, width, dim),
    derivative=Linear(transposes.windows), doc="All runs of `width` neighbours along axis `dim`, each in a new last axis.",
)  # fmt: skip


def _matrix_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    if len(shapes[0]) < 2:
        raise ShapeError(f"a triangle of an array with {len(shapes[0])} axes", hint="give a matrix")
    return shapes[0]


def _triu_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    return (Source(0, out, (Within(out[-1] - out[-2], attributes["diagonal"], shapes[0][-1]),)),)


def _tril_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    return (Source(0, out, (Within(out[-1] - out[-2], -shapes[0][-2], attributes["diagonal"] + 1),)),)


triu = movement("triu", shape=_matrix_shape, pull=_triu_pull, numpy=lambda x, diagonal: np.triu(x, diagonal), attributes=(("diagonal", 0),), derivative=Linear(transposes.triu), doc="Matrices with zeros below a diagonal.")  # fmt: skip
tril = movement("tril", shape=_matrix_shape, pull=_tril_pull, numpy=lambda x, diagonal: np.tril(x, diagonal), attributes=(("diagonal", 0),), derivative=Linear(transposes.tril), doc="Matrices with zeros above a diagonal.")  # fmt: skip
