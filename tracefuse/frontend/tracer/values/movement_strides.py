"""The strides of views: how each movement changes the strides of the array that it is taken from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Shape

Strides: TypeAlias = Callable[[Shape, Shape, Mapping[str, Any]], Shape]
"""The strides of a view, from those of what it was taken from, the extents of that, and the movement's attributes."""


def _sliced_strides(strides: Shape, extents: Shape, attributes: Mapping[str, Any]) -> Shape:
    return tuple(stride * step for stride, step in zip(strides, attributes["strides"], strict=True))


def _diagonal_strides(strides: Shape, extents: Shape, attributes: Mapping[str, Any]) -> Shape:
    steps, dims = _sliced_strides(strides, extents, attributes), attributes["dims"]
    joined: Extent = 0
    for axis in dims:
        joined = joined + steps[axis]
    return (*(step for axis, step in enumerate(steps) if axis not in dims), joined)


def _flipped_strides(strides: Shape, extents: Shape, attributes: Mapping[str, Any]) -> Shape:
    return tuple(-stride if axis in attributes["dims"] else stride for axis, stride in enumerate(strides))


def _squeezed_strides(strides: Shape, extents: Shape, attributes: Mapping[str, Any]) -> Shape:
    return tuple(stride for axis, stride in enumerate(strides) if axis not in attributes["dims"])


def _strides_with_new_axes(strides: Shape, extents: Shape, attributes: Mapping[str, Any]) -> Shape:
    rest = iter(strides)
    return tuple(0 if flag else next(rest) for flag in attributes["is_broadcast_dim"])


def _repeated_strides(strides: Shape, extents: Shape, attributes: Mapping[str, Any]) -> Shape:
    lead = len(attributes["shape"]) - len(strides)
    return (*[0] * lead, *(0 if extent == 1 else stride for stride, extent in zip(strides, extents, strict=True)))


STRIDES_OF_VIEWS: dict[str, Strides] = {
    "permute": lambda strides, extents, attributes: tuple(strides[d] for d in attributes["dims"]),
    "flip": _flipped_strides,
    "squeeze": _squeezed_strides,
    "broadcast": _strides_with_new_axes,
    "slice": _sliced_strides,
    "diagonal": _diagonal_strides,
    "expand": _repeated_strides,
    "windows": lambda strides, extents, attributes: (*strides, strides[attributes["dim"]]),
}
