"""Ranges of positions of a slice, as a movement changes them: of `x[::-1]`, the range 0:2 is `x[-2:]`.

Must not know: ops, segments, kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tracefuse.ir.extents import Extent, ceildiv, divide_exactly, product
from tracefuse.ir.fusion import Shape
from tracefuse.ir.row_major import axis_groups, delinearize, linearize

Range: TypeAlias = tuple[Extent, Extent, Extent]
"""The first position of a slice on an axis, the last (exclusive) and the step."""

Proof: TypeAlias = Callable[[Extent], bool]
"""Whether it is proved that an extent is not negative."""


def count_of(positions: Range) -> Extent:
    """Returns the number of positions of a range."""
    start, end, step = positions
    return ceildiv(end - start, step)


def is_complete(positions: Range, extent: Extent) -> bool:
    """Whether it is proved that a range has every position of an axis."""
    return positions == (0, extent, 1)


def within(outer: Range, inner: Range, is_nonnegative: Proof) -> Range | None:
    """Returns the range `inner` of the positions of `outer` as a range of the axis; None if it is not known.

    The end of a range without elements would lie before its start, or its start outside of the axis.
    """
    (begin, _, step), (first, last, by) = outer, inner
    if is_complete(inner, count_of(outer)):
        return outer
    if not isinstance(step, int) or not isinstance(by, int):
        return None
    start, length = begin + step * first, last - first
    if step == 1:
        return start, start + length, by
    return (start, start + step * (length - 1) + 1, step * by) if is_nonnegative(length - 1) else None


def flipped(positions: Range, extent: Extent, is_nonnegative: Proof) -> Range | None:
    """Returns the positions of a range of a flipped axis on the axis itself; None if they are not known."""
    first, last, by = positions
    if by == 1:
        return extent - last, extent - first, 1
    if not isinstance(by, int) or not is_nonnegative(last - first - 1):
        return None
    return extent - 1 - first - by * (count_of(positions) - 1), extent - first, by


def regrouped(positions: Sequence[Range], view: Shape, array: Shape) -> list[Range] | None:
    """Returns the positions of a slice of a reshaped array as ranges of the array; None where these are no ranges.

    positions: of the view, which has as many elements as the array, in the same row-major order.
    """
    result: list[Range] = []
    for array_axes, view_axes in axis_groups(array, view):
        inner, extents = [positions[k] for k in view_axes], [view[k] for k in view_axes]
        into = [array[k] for k in array_axes]
        if all(map(is_complete, inner, extents)):
            found: list[Range] | None = [(0, extent, 1) for extent in into]
        elif len(into) == len(extents) == 1:
            found = inner
        else:
            run = _run(inner, extents)
            found = None if run is None else _split_run(*run, into)
        if found is None:
            return None
        result += found
    return result


def _run(positions: Sequence[Range], extents: Sequence[Extent]) -> tuple[Extent, Extent, Extent] | None:
    """Returns the first row-major position of a slice, their number and their distance; None if they are no run."""
    wide = [k for k, one in enumerate(positions) if count_of(one) != 1]
    start = linearize([one[0] for one in positions], extents)
    if not wide:
        return start, 1, 1
    axis = wide[0]
    count, step, stride = count_of(positions[axis]), positions[axis][2], product(extents[axis + 1 :])
    if len(wide) == 1:
        return start, count, step * stride
    complete = all(is_complete(positions[k], extents[k]) for k in range(axis + 1, len(extents)))
    return (start, count * stride, 1) if complete and step == 1 else None


def _split_run(start: Extent, count: Extent, step: Extent, extents: Sequence[Extent]) -> list[Range] | None:
    """Returns a run of row-major positions of some axes as a range of each axis; None if they are no ranges."""
    if len(extents) == 1:
        return [(start, start + step * (count - 1) + 1 if step != 1 else start + count, step)]
    if step != 1:
        return None
    if count == 1:
        return [(k, k + 1, 1) for k in delinearize(start, extents)]
    for axis in range(1, len(extents)):
        block = product(extents[axis:])
        position, blocks = divide_exactly(start, block), divide_exactly(count, block)
        if position is None or blocks is None or (axis > 1 and blocks != 1):
            continue
        inner: list[Range] = [(0, extent, 1) for extent in extents[axis:]]
        if axis == 1:
            return [(position, position + blocks, 1), *inner]
        return [*((k, k + 1, 1) for k in delinearize(position, extents[:axis])), *inner]
    return None
