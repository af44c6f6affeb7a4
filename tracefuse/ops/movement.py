"""Movement ops that add, drop, reorder and regroup axes.

Each op has its shape rule and its pull, a pure function from coordinates of the result to coordinates of an operand.
Attributes are normalised by the frontends: axes are non-negative.

Must not know: kernels.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse.errors import ShapeError
from tracefuse.ir.axes import normalize_axes
from tracefuse.ir.derivatives import Linear
from tracefuse.ir.extents import Extent, maximum, product
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.op_kinds import IndexOf, Source
from tracefuse.ir.row_major import axis_groups, delinearize, linearize
from tracefuse.ops import printed_calls, transposes
from tracefuse.ops.families import movement


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
    derivative=Linear(transposes.broadcast), doc="Adds an axis of extent 1 wherever `is_broadcast_dim` is true.",
)  # fmt: skip


def _expand_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    target, source = attributes["shape"], shapes[0]
    if len(target) < len(source):
        raise ShapeError(
            f"expand: {len(source)} axes do not fit {len(target)}", hint="give at least as many extents as axes"
        )
    lead = len(target) - len(source)
    for axis, extent in enumerate(source):
        if extent != 1:
            message = f"axis {axis} has extent {{left}}, not {{right}}"
            require(extent, "==", target[lead + axis], message, "only an axis of extent 1 can be expanded")
    return tuple(target)


def _expand_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    source = shapes[0]
    trailing = out[len(out) - len(source) :]
    return (Source(0, tuple(0 if e == 1 else c for c, e in zip(trailing, source, strict=True))),)


expand = movement(
    "expand", shape=_expand_shape, pull=_expand_pull, broadcasts=True, numpy=lambda x, shape: np.broadcast_to(x, shape), attributes=(("shape", ()),),
    derivative=Linear(transposes.sum_to_operand), doc="Repeats axes of extent 1 up to `shape`, as NumPy's broadcast_to.",
)  # fmt: skip

full = movement(
    "full", shape=lambda shapes, attributes, require: tuple(attributes["shape"]), attributes=(("shape", ()),),
    pull=lambda out, shapes, result, attributes, index_of: (Source(0, ()),), numpy=lambda x, shape: np.full(shape, x),
    printed=printed_calls.print_full, derivative=Linear(transposes.sum_to_operand), doc="An array of `shape` with every element the operand.",
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
    derivative=Linear(transposes.permute), doc="Axis k of the result is axis dims[k] of the operand.",
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
    derivative=Linear(transposes.squeeze), doc="Drops axes of extent 1.",
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
    """The shape where the entries `inferable` may turn out to be -1, whose extent the others determine."""
    sizes = "an entry is a size, or -1 for what the others leave over"
    for axis in inferable:
        require(-1, "<=", entries[axis], f"axis {axis} would get {{right}} elements", sizes)
    is_unknown = {axis: maximum(0, -entries[axis]) for axis in inferable}  # 1 for -1, and 0 for a size
    unknown = sum(is_unknown.values())
    require(unknown, "<=", 1, "{left} entries are -1", "one entry can be -1: spell out the others")
    total_of_entries = product(entries)
    result = list(entries)
    for axis in inferable:
        known_total = product(e for k, e in enumerate(entries) if k != axis)
        require(is_unknown[axis], "<=", maximum(0, known_total), "-1 beside an extent of 0 stands for no size", sizes)
        result[axis] = entries[axis] + (total // maximum(1, known_total) + 1) * is_unknown[axis]
    rest = total % maximum(1, -total_of_entries)
    require(rest, "==", 0, "-1 beside the other entries leaves {left} elements over", hint)
    require(total, "==", total_of_entries + unknown * (total - total_of_entries), message, hint)
    return tuple(result)


def _reshape_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    source = shapes[0]
    coordinates: list[Extent] = [0] * len(source)
    for source_axes, result_axes in attributes["groups"] or axis_groups(source, result):
        position = linearize([out[k] for k in result_axes], [result[k] for k in result_axes])
        for axis, coordinate in zip(source_axes, delinearize(position, [source[k] for k in source_axes]), strict=True):
            coordinates[axis] = coordinate
    return (Source(0, tuple(coordinates)),)


reshape = movement(
    "reshape", shape=_reshape_shape, pull=_reshape_pull, numpy=lambda x, new_shape, groups, inferable: np.reshape(x, new_shape), regroups=True,
    printed=printed_calls.print_reshape,
    attributes=(("new_shape", ()), ("groups", ()), ("inferable", ())),
    derivative=Linear(transposes.reshape), doc="The same elements in row-major order with another shape. groups: pairs of axes (of the operand, of the result) with "
    "equal products. inferable: entries that are known at the call alone, and may be -1 there.",
)  # fmt: skip
