"""Movement rows: ops that only say where an element comes from.

Each row has its shape rule and its pull, a pure function from coordinates of the result to coordinates of an operand.
Attributes are normalised by the frontends: axes are non-negative, slice bounds lie inside the axis, steps are positive.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse.errors import ShapeError
from tracefuse.extents import Extent, ceildiv, divide_exactly, maximum, minimum, product
from tracefuse.ir import Attributes, Require, Shape
from tracefuse.ops.row import IndexOf, Resize, Source, Within, movement, normalize_axes, normalize_axis

# ---------------------------------------------------------------------------------------------------------------------
# axes made, dropped and reordered


def _broadcast_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    flags, rest = attributes["is_broadcast_dim"], list(shapes[0])
    if sum(not flag for flag in flags) != len(rest):
        raise ShapeError(f"broadcast: {len(rest)} axes do not fill {flags}", hint="one False per axis of the operand")
    return tuple(1 if flag else rest.pop(0) for flag in flags)


def _broadcast_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    return (Source(0, tuple(c for c, flag in zip(out, attributes["is_broadcast_dim"], strict=True) if not flag)),)


def _broadcast_numpy(x: Any, is_broadcast_dim: Sequence[bool]) -> Any:
    return x[tuple(None if flag else builtins.slice(None) for flag in is_broadcast_dim)]


broadcast = movement(
    "broadcast", shape=_broadcast_shape, pull=_broadcast_pull, numpy=_broadcast_numpy, attributes=(("is_broadcast_dim", ()),),
    doc="Adds an axis of extent 1 wherever `is_broadcast_dim` is true.",
)  # fmt: skip


def _expand_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    target, own = attributes["shape"], shapes[0]
    if len(target) < len(own):
        raise ShapeError(
            f"expand: {len(own)} axes do not fit {len(target)}", hint="give at least as many extents as axes"
        )
    lead = len(target) - len(own)
    for axis, extent in enumerate(own):
        if extent != 1:
            message = f"axis {axis} has extent {{left}}, not {{right}}"
            require(extent, "==", target[lead + axis], message, "only an axis of extent 1 can be expanded")
    return tuple(target)


def _expand_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    own = shapes[0]
    trailing = out[len(out) - len(own) :]
    return (Source(0, tuple(0 if e == 1 else c for c, e in zip(trailing, own, strict=True))),)


expand = movement(
    "expand", shape=_expand_shape, pull=_expand_pull, broadcasts=True, numpy=lambda x, shape: np.broadcast_to(x, shape), attributes=(("shape", ()),),
    doc="Repeats axes of extent 1 up to `shape`, as NumPy's broadcast_to.",
)  # fmt: skip

full = movement(
    "full", shape=lambda shapes, attributes, require: tuple(attributes["shape"]), attributes=(("shape", ()),),
    pull=lambda out, shapes, result, attributes, index_of: (Source(0, ()),), numpy=lambda x, shape: np.full(shape, x),
    doc="An array of `shape` with every element the operand.",
)  # fmt: skip


def _permute_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    dims = attributes["dims"]
    if sorted(dims) != list(range(len(shapes[0]))):
        raise ShapeError(f"permute: {tuple(dims)} does not order {len(shapes[0])} axes", hint="name each axis once")
    return tuple(shapes[0][d] for d in dims)


def _permute_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    place = dict(zip(attributes["dims"], out, strict=True))
    return (Source(0, tuple(place[d] for d in range(len(out)))),)


permute = movement(
    "permute", shape=_permute_shape, pull=_permute_pull, numpy=lambda x, dims: np.transpose(x, dims), attributes=(("dims", ()),),
    doc="Axis k of the result is axis dims[k] of the operand.",
)  # fmt: skip


def _squeeze_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    dims = normalize_axes(attributes["dims"], len(shapes[0]))
    for axis in dims:
        require(
            shapes[0][axis], "==", 1, f"axis {axis} has extent {{left}}", "only an axis of extent 1 can be squeezed"
        )
    return tuple(e for k, e in enumerate(shapes[0]) if k not in dims)


def _squeeze_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    rest = iter(out)
    return (Source(0, tuple(0 if k in attributes["dims"] else next(rest) for k in range(len(shapes[0])))),)


squeeze = movement(
    "squeeze", shape=_squeeze_shape, pull=_squeeze_pull, numpy=lambda x, dims: np.squeeze(x, tuple(dims)), attributes=(("dims", ()),),
    doc="Drops axes of extent 1.",
)  # fmt: skip


def _reshape_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    if attributes["groups"]:  # made for sizes for which the products of the groups are known to be equal
        return tuple(attributes["new_shape"])
    entries, inferable, total = tuple(attributes["new_shape"]), attributes["inferable"], product(shapes[0])
    message, hint = "{left} elements do not fill a shape of {right}", "the number of elements must stay the same"
    if inferable:
        return _inferred(entries, inferable, total, require, message, hint)
    require(total, "==", product(entries), message, hint)
    return entries


def _inferred(
    entries: Shape, inferable: Sequence[int], total: Extent, require: Require, message: str, hint: str
) -> Shape:
    """The shape where the entries `inferable` may turn out to be -1, which stands for what the others leave over."""
    sizes = "an entry is a size, or -1 for what the others leave over"
    for axis in inferable:
        require(-1, "<=", entries[axis], f"axis {axis} would get {{right}} elements", sizes)
    is_unknown = {axis: maximum(0, -entries[axis]) for axis in inferable}  # 1 for -1, and 0 for a size
    unknown = sum(is_unknown.values())
    require(unknown, "<=", 1, "{left} entries are -1", "one entry can be -1: spell out the others")
    whole = product(entries)
    result = list(entries)
    for axis in inferable:
        others = product(e for k, e in enumerate(entries) if k != axis)
        require(is_unknown[axis], "<=", maximum(0, others), "-1 beside an extent of 0 stands for no size", sizes)
        result[axis] = entries[axis] + (total // maximum(1, others) + 1) * is_unknown[axis]
    rest = total % maximum(1, -whole)
    require(rest, "==", 0, "-1 beside the other entries leaves {left} elements over", hint)
    require(total, "==", whole + unknown * (total - whole), message, hint)
    return tuple(result)


def axis_groups(source: Shape, target: Shape) -> list[tuple[range, range]]:
    """Cuts both shapes into runs of axes with equal products, as fine as can be proved.

    Axes of extent 1 take part in no proof and go with the run that they stand in. The last pair takes what is left.
    """
    groups: list[tuple[range, range]] = []
    i = j = 0
    while i < len(source) or j < len(target):
        start_i, start_j = i, j
        left: Extent = 1
        right: Extent = 1
        while True:
            if i < len(source) and (left == right or divide_exactly(right, left) is not None or j >= len(target)):
                left, i = left * source[i], i + 1
            elif j < len(target):
                right, j = right * target[j], j + 1
            else:
                break
            if left == right and not (left == 1 and (i < len(source) or j < len(target))):
                break
        groups.append((range(start_i, i), range(start_j, j)))
    return groups


def linearize(coordinates: Sequence[Extent], shape: Sequence[Extent]) -> Extent:
    """The row-major position of `coordinates` in `shape`."""
    position: Extent = 0
    for coordinate, extent in zip(coordinates, shape, strict=True):
        position = position * extent + coordinate
    return position


def delinearize(position: Extent, shape: Sequence[Extent]) -> Shape:
    """The coordinates in `shape` of a row-major position; 0 on axes of extent 1."""
    wide = [k for k, e in enumerate(shape) if e != 1]
    coordinates: list[Extent] = [0] * len(shape)
    for count, axis in enumerate(wide):
        inner = product(shape[k] for k in wide[count + 1 :])
        coordinate = position // inner
        coordinates[axis] = coordinate if count == 0 else coordinate % shape[axis]
    return tuple(coordinates)


def _reshape_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    own = shapes[0]
    coordinates: list[Extent] = [0] * len(own)
    for mine, theirs in attributes["groups"] or axis_groups(own, result):
        position = linearize([out[k] for k in theirs], [result[k] for k in theirs])
        for axis, coordinate in zip(mine, delinearize(position, [own[k] for k in mine]), strict=True):
            coordinates[axis] = coordinate
    return (Source(0, tuple(coordinates)),)


reshape = movement(
    "reshape", shape=_reshape_shape, pull=_reshape_pull, numpy=lambda x, new_shape, groups, inferable: np.reshape(x, new_shape), regroups=True,
    attributes=(("new_shape", ()), ("groups", ()), ("inferable", ())),
    doc="The same elements in row-major order with another shape. groups: pairs of axes (of the operand, of the result) with "
    "equal products. inferable: entries that are known at the call alone, and may be -1 there.",
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# axes resized


def _slice_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    starts, ends, steps = (attributes[k] for k in ("start_indices", "end_indices", "strides"))
    shape = shapes[0]
    if not len(starts) == len(ends) == len(steps) == len(shape):
        raise ShapeError(
            f"slice: bounds for {len(starts)} axes, operand has {len(shape)}", hint="give one bound per axis"
        )
    result: list[Extent] = []
    for axis, (extent, start, end, step) in enumerate(zip(shape, starts, ends, steps, strict=True)):
        if isinstance(step, int) and step < 1:
            raise ShapeError(
                f"slice: step {step} on axis {axis}", hint="steps are at least 1; flip the axis for others"
            )
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


def _slice_numpy(x: Any, start_indices: Sequence[int], end_indices: Sequence[int], strides: Sequence[int]) -> Any:
    return x[tuple(builtins.slice(*bounds) for bounds in zip(start_indices, end_indices, strides, strict=True))]


def _slice_resize(shapes: Sequence[Shape], attributes: Attributes) -> tuple[Resize, ...]:
    bounds = zip(shapes[0], *(attributes[k] for k in ("start_indices", "end_indices", "strides")), strict=True)
    return tuple(Resize(0, k, -start, end - extent, step) for k, (extent, start, end, step) in enumerate(bounds))


slice = movement(
    "slice", shape=_slice_shape, pull=_slice_pull, numpy=_slice_numpy, resize=_slice_resize,
    attributes=(("start_indices", ()), ("end_indices", ()), ("strides", ())),
    doc="Elements start, start + step, ... before end, on every axis.",
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
    kept = x[tuple(builtins.slice(max(0, -b), n + min(0, a)) for (b, a), n in zip(pairs, x.shape, strict=True))]
    return np.pad(kept, [(max(0, b), max(0, a)) for b, a in pairs], constant_values=value)


def _pad_resize(shapes: Sequence[Shape], attributes: Attributes) -> tuple[Resize, ...]:
    widths = attributes["pad_widths"]
    return tuple(Resize(0, axis, widths[2 * axis], widths[2 * axis + 1]) for axis in range(len(shapes[0])))


pad = movement(
    "pad", shape=_pad_shape, pull=_pad_pull, numpy=_pad_numpy, resize=_pad_resize, attributes=(("pad_widths", ()), ("value", 0)),
    doc="`value` before and after each axis: pad_widths is before, after per axis, first axis first; negative widths cut.",
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
    total = sum(lengths)
    before = [sum(lengths[:k]) for k in range(len(lengths))]
    return tuple(Resize(k, dim, b, total - b - own) for k, (b, own) in enumerate(zip(before, lengths, strict=True)))


cat = movement(
    "cat", shape=_cat_shape, pull=_cat_pull, resize=_cat_resize, numpy=lambda *xs, dim: np.concatenate(xs, axis=dim), attributes=(("dim", 0),),
    arity=None, doc="Operands one after another along axis `dim`.",
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
    doc="Reverses the axes `dims`.",
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
    doc="Moves elements by `shift` along axis `dim`; what leaves at one end enters at the other.",
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# indices that are data


def _has_elements(data: Shape, dim: int, index: Shape, require: Require) -> None:
    """Where there are positions there must be something to take, on every target."""
    message = f"axis {dim} is empty ({{right}} elements) and there are positions in it"
    require(minimum(1, product(index)), "<=", data[dim], message, "nothing can be taken from an empty axis")


def _take_along_axis_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    data, index = shapes
    dim = normalize_axis(attributes["dim"], len(data))
    if len(index) != len(data):
        raise ShapeError(
            f"take_along_axis: {len(data)} axes and an index of {len(index)}", hint="give both the same rank"
        )
    result = list(index)
    for axis, extent in enumerate(data):
        if axis == dim or extent == 1:
            continue
        if index[axis] == 1:
            result[axis] = extent
        else:
            message = f"extents differ on axis {axis}: {{left}} and {{right}}"
            require(extent, "==", index[axis], message, f"only axis {dim} may differ")
    _has_elements(data, dim, index, require)
    return tuple(result)


def _take_along_axis_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    data, index = shapes
    dim = attributes["dim"]
    taken = index_of(1, tuple(0 if e == 1 else c for c, e in zip(out, index, strict=True)))
    return (
        Source(
            0, tuple(taken if k == dim else 0 if e == 1 else c for k, (c, e) in enumerate(zip(out, data, strict=True)))
        ),
    )


take_along_axis = movement(
    "take_along_axis", shape=_take_along_axis_shape, pull=_take_along_axis_pull, arity=2, data=1, attributes=(("dim", 0),),
    numpy=lambda x, index, dim: np.take_along_axis(x, index.astype(np.int64), dim),
    doc="Elements at the positions that an integer operand holds, along axis `dim`; negative ones count from the end.",
)  # fmt: skip


def _take_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    data, index = shapes
    dim = normalize_axis(attributes["dim"], len(data))
    _has_elements(data, dim, index, require)
    return (*data[:dim], *index, *data[dim + 1 :])


def _take_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    dim, (_, index) = attributes["dim"], shapes
    inner = out[dim : dim + len(index)]
    taken = index_of(1, tuple(0 if e == 1 else c for c, e in zip(inner, index, strict=True)))
    return (Source(0, (*out[:dim], taken, *out[dim + len(index) :])),)


take = movement(
    "take", shape=_take_shape, pull=_take_pull, arity=2, data=1, attributes=(("dim", 0),),
    numpy=lambda x, index, dim: np.take(x, index.astype(np.int64), dim),
    doc="Slices at the positions along axis `dim` that an integer operand holds, whose axes take the place of `dim`.",
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# triangles


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


triu = movement("triu", shape=_matrix_shape, pull=_triu_pull, numpy=lambda x, diagonal: np.triu(x, diagonal), attributes=(("diagonal", 0),), doc="Matrices with zeros below a diagonal.")  # fmt: skip
tril = movement("tril", shape=_matrix_shape, pull=_tril_pull, numpy=lambda x, diagonal: np.tril(x, diagonal), attributes=(("diagonal", 0),), doc="Matrices with zeros above a diagonal.")  # fmt: skip
