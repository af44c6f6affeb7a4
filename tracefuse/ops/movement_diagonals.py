"""Movement ops that read and write diagonals: the elements of a slice whose coordinates on some axes are equal.

The attributes are those of a slice, and `dims`, the axes of equal coordinates in ascending order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse.errors import ShapeError
from tracefuse.ir.axes import normalize_axes
from tracefuse.ir.derivatives import Linear
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.op_kinds import IndexOf, Source, Within
from tracefuse.ops import transposes
from tracefuse.ops.families import movement
from tracefuse.ops.movement_resizes import slice_shape, slice_sources, slice_view

_ATTRIBUTES = (("start_indices", ()), ("end_indices", ()), ("strides", ()), ("dims", ()))


def _diagonal_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    covered = slice_shape(shapes[:1], attributes, require)
    first, *others = dims = normalize_axes(attributes["dims"], len(covered))
    if not others or sorted(dims) != list(dims):
        raise ShapeError(f"a diagonal of the axes {tuple(dims)}", hint="name two or more axes in ascending order")
    for axis in others:
        message = f"the diagonal of axes {first} and {axis}: extents {{left}} and {{right}} differ"
        require(covered[first], "==", covered[axis], message, "slice the longer one first")
    return (*(extent for axis, extent in enumerate(covered) if axis not in dims), covered[first])


def _diagonal_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    others = iter(out[:-1])
    inside = [out[-1] if axis in attributes["dims"] else next(others) for axis in range(len(shapes[0]))]
    steps = zip(inside, attributes["start_indices"], attributes["strides"], strict=True)
    return (Source(0, tuple(start + c * step for c, start, step in steps)),)


def diagonal_view(x: Any, dims: Sequence[int]) -> Any:
    """Returns the elements of an array with equal coordinates on `dims` as a view, which can be written if x can."""
    first, second, *others = dims
    view = x.diagonal(0, first, second)
    for removed, axis in enumerate(others, start=2):
        view = view.diagonal(0, axis - removed, view.ndim - 1)
    if isinstance(x, np.ndarray) and x.flags.writeable:
        view.setflags(write=True)
    return view


def _diagonal_numpy(x: Any, dims: Sequence[int], **bounds: Sequence[int]) -> Any:
    return diagonal_view(slice_view(x, **bounds), dims)


diagonal = movement(
    "diagonal", slices="read", shape=_diagonal_shape, pull=_diagonal_pull, numpy=_diagonal_numpy, attributes=_ATTRIBUTES,
    derivative=Linear(transposes.diagonal), doc="The elements of a slice whose coordinates on the axes `dims` are equal, along the last axis of the result.",
)  # fmt: skip


def _diagonal_scatter_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    data, values = shapes
    covered = _diagonal_shape([data], attributes, require)
    if len(values) != len(covered):
        raise ShapeError(
            f"diagonal_scatter: values with {len(values)} axes for a diagonal with {len(covered)}",
            hint="give values of the shape of the diagonal",
        )
    for axis, (extent, length) in enumerate(zip(covered, values, strict=True)):
        message = f"the diagonal has {{left}} elements on axis {axis}, the values have {{right}}"
        require(extent, "==", length, message, "give values of the shape of the diagonal")
    return data


def _diagonal_scatter_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    written, before = slice_sources(out, shapes, result, attributes, index_of)
    first, *others = attributes["dims"]
    along = written.coordinates[first]
    equal = tuple(Within(written.coordinates[axis] - along, 0, 1) for axis in others)
    rest = tuple(c for axis, c in enumerate(written.coordinates) if axis not in attributes["dims"])
    return (Source(1, (*rest, along), (*written.conditions, *equal)), before)


def _diagonal_scatter_numpy(x: Any, values: Any, dims: Sequence[int], **bounds: Sequence[int]) -> Any:
    result = x.copy()
    _diagonal_numpy(result, dims, **bounds)[...] = values
    return result


diagonal_scatter = movement(
    "diagonal_scatter", slices="written", shape=_diagonal_scatter_shape, pull=_diagonal_scatter_pull, numpy=_diagonal_scatter_numpy, arity=2, attributes=_ATTRIBUTES,
    derivative=Linear(transposes.diagonal_scatter), doc="The first operand with the elements of a slice whose coordinates on the axes `dims` are equal replaced by the second.",
)  # fmt: skip
