"""Conversions between coordinates and row-major positions.

Must not know: ops.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracefuse.ir.extents import Extent, divide_exactly
from tracefuse.ir.fusion import Shape


def linearize(coordinates: Sequence[Extent], shape: Sequence[Extent]) -> Extent:
    """Returns the row-major position of `coordinates` in `shape`."""
    position: Extent = 0
    for coordinate, extent in zip(coordinates, shape, strict=True):
        position = position * extent + coordinate
    return position


def delinearize(position: Extent, shape: Sequence[Extent]) -> Shape:
    """Returns the coordinates of a row-major position: 0 on axes of extent 1, and on all axes of an empty shape."""
    if 0 in shape:
        return (0,) * len(shape)
    wide = [k for k, e in enumerate(shape) if e != 1]
    coordinates: list[Extent] = [0] * len(shape)
    # Each quotient is divided further: so the coordinates of a position that was linearized with the same extents, plus
    # or minus something, fold axis by axis when they are linearized again.
    for axis in reversed(wide[1:]):
        coordinates[axis], position = position % shape[axis], position // shape[axis]
    if wide:
        coordinates[wide[0]] = position
    return tuple(coordinates)


def axis_groups(source: Shape, target: Shape) -> list[tuple[range, range]]:
    """Divides both shapes into the shortest runs of axes whose products are proved equal.

    An axis of extent 1 belongs to the run that surrounds it. The last pair takes the remaining axes.
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
