"""Movement ops whose coordinates are data: elements at the positions that an integer operand holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracefuse.errors import OutOfRangeError, ShapeError
from tracefuse.ir.axes import normalize_axis
from tracefuse.ir.derivatives import Linear
from tracefuse.ir.extents import minimum, product
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.op_kinds import IndexOf, Source
from tracefuse.ops import transposes
from tracefuse.ops.families import movement


def _has_elements(data: Shape, dim: int, result: Shape, require: Require) -> None:
    """Where the result has elements there must be something to take, on every target."""
    message = f"axis {dim} is empty ({{right}} elements) and there are positions in it"
    hint = "nothing can be taken from an empty axis"
    require(minimum(1, product(result)), "<=", data[dim], message, hint, OutOfRangeError)


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
            require(extent, "==", index[axis], message, f"only axis {dim} may differ", OutOfRangeError)
    _has_elements(data, dim, tuple(result), require)
    return tuple(result)


def _take_along_axis_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    data, index = shapes
    dim = attributes["dim"]
    position = index_of(1, tuple(0 if e == 1 else c for c, e in zip(out, index, strict=True)))
    return (
        Source(
            0,
            tuple(position if k == dim else 0 if e == 1 else c for k, (c, e) in enumerate(zip(out, data, strict=True))),
        ),
    )


take_along_axis = movement(
    "take_along_axis", shape=_take_along_axis_shape, pull=_take_along_axis_pull, arity=2, data=1, attributes=(("dim", 0),),
    numpy=lambda x, index, dim: np.take_along_axis(x, index.astype(np.int64), dim),
    derivative=Linear(transposes.take_along_axis, operands=(0,)), doc="Elements at the positions that an integer operand holds, along axis `dim`; negative ones count from the end.",
)  # fmt: skip


unless_empty = movement(
    "unless_empty", shape=_take_along_axis_shape, pull=_take_along_axis_pull, arity=2, data=1, attributes=(("dim", 0),),
    numpy=lambda x, index, dim: np.take_along_axis(x, index.astype(np.int64), dim),
    outside="zero-size array to reduction operation which has no identity: the mask selects no element",
    derivative=Linear(transposes.take_along_axis, operands=(0,)), doc="Reduced elements of a selection along an axis `dim` of extent 1; the second operand is 1 where nothing was selected.",
)  # fmt: skip


def _take_shape(shapes: Sequence[Shape], attributes: Attributes, require: Require) -> Shape:
    data, index = shapes
    dim = normalize_axis(attributes["dim"], len(data))
    result = (*data[:dim], *index, *data[dim + 1 :])
    _has_elements(data, dim, result, require)
    return result


def _take_pull(
    out: Shape, shapes: Sequence[Shape], result: Shape, attributes: Attributes, index_of: IndexOf
) -> tuple[Source, ...]:
    dim, (_, index) = attributes["dim"], shapes
    inner = out[dim : dim + len(index)]
    position = index_of(1, tuple(0 if e == 1 else c for c, e in zip(inner, index, strict=True)))
    return (Source(0, (*out[:dim], position, *out[dim + len(index) :])),)


take = movement(
    "take", shape=_take_shape, pull=_take_pull, arity=2, data=1, attributes=(("dim", 0),),
    numpy=lambda x, index, dim: np.take(x, index.astype(np.int64), dim),
    derivative=Linear(transposes.take, operands=(0,)), doc="Slices at the positions along axis `dim` that an integer operand holds, whose axes take the place of `dim`.",
)  # fmt: skip
