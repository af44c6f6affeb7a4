"""Axes and shapes as every row reads them: which axis a number names, and what broadcasting makes of shapes.

Knows: extents. Must not know: rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracefuse.errors import AxisError, ShapeError
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Require, Shape, is_input_extent


def normalize_axis(axis: int, rank: int, what: str = "axis") -> int:
    """A non-negative axis; AxisError where it is out of range."""
    if not -rank <= axis < rank:
        hint = f"use {-rank} to {rank - 1}" if rank else "leave the axis out: there is none"
        raise AxisError(f"{what} {axis} is out of range for {rank} axes", hint=hint)
    return axis % rank


def normalize_axes(axes: Sequence[int], rank: int, what: str = "axis") -> tuple[int, ...]:
    """Sorted non-negative axes; AxisError for one out of range, ShapeError for one named twice."""
    result = [normalize_axis(a, rank, what) for a in axes]
    if len(set(result)) != len(result):
        raise ShapeError(f"{what} named twice in {tuple(axes)}", hint="name each axis once")
    return tuple(sorted(result))


def broadcast_shapes(shapes: Sequence[Shape], require: Require) -> Shape:
    """NumPy's broadcasting: trailing axes are aligned, an extent of 1 gives way, other extents must be equal."""
    rank = max((len(s) for s in shapes), default=0)
    result: list[Extent] = []
    for axis in range(rank):
        extent: Extent = 1
        for shape in shapes:
            own = axis - (rank - len(shape))
            if own < 0 or shape[own] == 1:
                continue
            if extent == 1:
                extent = shape[own]
            else:
                message = f"extents differ on axis {axis}: {{left}} and {{right}}"
                require(extent, "==", shape[own], message, "broadcasting needs one of them to be 1")
                if isinstance(shape[own], int) or (is_input_extent(shape[own]) and not is_input_extent(extent)):
                    extent = shape[own]
        result.append(extent)
    return tuple(result)
