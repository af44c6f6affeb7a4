"""Symbolic integers of host scalars, so that shapes computed from scalars stay symbolic.

Integer arithmetic on scalars yields an integer expression. A comparison yields an expression that is 1 or 0, which
`where` multiplies with. Op definitions say what they compute on extents (`on_extents`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tracefuse.definition.recording import Recording
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Operand
from tracefuse.ops import Pointwise


def compute_extent(recording: Recording, op: Pointwise, operands: Sequence[Operand], result: DType) -> Extent | None:
    """Returns the extent that a scalar result of type `result` is; None where no expression describes it."""
    if not result.is_integer or result.itemsize < 4:
        return None
    return (_select_extent if op.promotion == "where" else _apply_to_extents)(recording, op, operands)


def _apply_to_extents(recording: Recording, op: Pointwise, operands: Sequence[Operand]) -> Extent | None:
    if op.on_extents is None:
        return None
    extents = [recording.extent_of(operand) for operand in operands]
    return None if any(e is None for e in extents) else op.on_extents(*extents)


def _select_extent(recording: Recording, op: Pointwise, operands: Sequence[Operand]) -> Extent | None:
    """Returns the extent of `where` on a comparison of integers."""
    condition, if_true, if_false = operands
    truth = recording.comparisons.get(condition) if isinstance(condition, int) else None
    first, second = (recording.extent_of(o) for o in (if_true, if_false))
    if truth is None or first is None or second is None:
        return None
    return second + truth * (first - second)


def compare_extents(recording: Recording, op: Pointwise, operands: Sequence[Operand]) -> Extent | None:
    """Returns the extent that is 1 where a comparison of integer scalars holds, else 0; None for any other op."""
    return _apply_to_extents(recording, op, operands) if op.result == "bool" else None
