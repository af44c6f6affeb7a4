"""The order of axes in the memory of arrays that an operation makes: NumPy keeps that of the operands.

Questions about strides are answered for the current call and guarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Shape

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.record.assumptions import Assumptions

_REASON = "the layout of an array that an operation makes"


def strides_as_operands(
    recorder: Assumptions,
    operands: Sequence[tuple[Shape, Shape]],
    extents: Shape,
    remaining: Sequence[int],
    copies: bool,
) -> Shape:
    """Returns the strides of a new array, in elements, whose axes lie in memory as those of the operands.

    operands: (strides, extents) of each. extents: of the result. remaining: the axis of the operands for each of its
    axes. copies: whether NumPy copies elements, and so orders axes with stride 0 too; its ufuncs ignore these.
    """
    rank = max(len(strides) for strides, _ in operands)
    columns = [_column(recorder, operands, axis - rank, copies) for axis in range(rank)]
    order = [axis for axis in _sorted_axes(recorder, columns) if axis in remaining]
    result: list[Extent] = [0] * len(extents)
    step: Extent = 1
    for axis in order:
        place = remaining.index(axis)
        result[place] = step
        step = step * extents[place]
    return tuple(result)


def _column(
    recorder: Assumptions, operands: Sequence[tuple[Shape, Shape]], axis: int, copies: bool
) -> list[Extent | None]:
    """The magnitude of the stride of each operand on an axis, counted from the end; None for one that is ignored."""
    column: list[Extent | None] = []
    for strides, extents in operands:
        if -axis > len(strides):
            column.append(None)
            continue
        stride = strides[axis]
        ignored = recorder.decide(extents[axis], "==", 1, _REASON)
        ignored = ignored or (not copies and recorder.decide(stride, "==", 0, _REASON))
        is_positive = ignored or recorder.decide(0, "<=", stride, _REASON)
        column.append(None if ignored else stride if is_positive else -stride)
    return column


def _sorted_axes(recorder: Assumptions, columns: Sequence[Sequence[Extent | None]]) -> list[int]:
    """Sorts axes from the innermost on, as NumPy's iterator does: where operands disagree, the last axis is inner."""
    order: list[int] = []
    for axis in reversed(range(len(columns))):
        place = len(order)
        for other in reversed(range(len(order))):
            is_outer = _is_outer(recorder, columns[axis], columns[order[other]])
            if is_outer:
                break
            if is_outer is False:
                place = other
        order.insert(place, axis)
    return order


def _is_outer(recorder: Assumptions, axis: Sequence[Extent | None], other: Sequence[Extent | None]) -> bool | None:
    """Whether an axis stays outside of one after it; None where no operand has elements along both."""
    answers = [
        recorder.decide(inner, "<=", outer, _REASON)
        for outer, inner in zip(axis, other, strict=True)
        if outer is not None and inner is not None
    ]
    return any(answers) if answers else None
