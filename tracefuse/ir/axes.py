"""Axis normalization and shape broadcasting, shared by all op definitions.

Must not know: ops.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracefuse.errors import AxisError, ShapeError
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Require, Shape, is_input_extent


def normalize_axis(axis: int, rank: int, name: str = "axis") -> int:
    """Returns the nonnegative axis; raises AxisError if it is out of range."""
    if not -rank <= axis < rank:
        hint = f"use {-rank} to {rank - 1}" if rank else "leave the axis out: there is none"
        raise AxisError(f"{name} {axis} is out of range for {rank} axes", hint=hint)
    return axis % rank


def normalize_axes(axes: Sequence[int], rank: int, name: str = "axis") -> tuple[int, ...]:
    """Returns sorted nonnegative axes; raises AxisError if one is out of range, ShapeError for a duplicate."""
    result = [normalize_axis(a, rank, name) for a in axes]
    if len(set(result)) != len(result):
        raise ShapeError(f"{name} named twice in {tuple(axes)}", hint="name each axis once")
    return tuple(sorted(result))


def broadcast_shapes(shapes: Sequence[Shape], require: Require) -> Shape:
    """Broadcasts shapes as NumPy does: aligns trailing axes; extents must be equal or 1."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Extent] = []
    for axis in range(rank):
        extent: Extent = 1
        for shape in shapes:
            position = axis - (rank - len(shape))
            if position < 0 or shape[position] == 1:
                continue
            other = shape[position]
            if extent == 1:
                extent = other
            else:
                message = f"extents differ on axis {axis}: {{left}} and {{right}}"
                require(extent, "==", other, message, "broadcasting needs one of them to be 1")
                if isinstance(other, int) or (is_input_extent(other) and not is_input_extent(extent)):
                    extent = other
        result.append(extent)
    return tuple(result)
