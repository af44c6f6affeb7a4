"""Symbolic integers of host scalars, so that shapes computed from scalars stay symbolic.

Integer arithmetic on scalars yields an integer expression. A comparison yields an expression that is 1 or 0, which
`where` multiplies with.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from tracefuse.definition.recording import Recording
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, floordiv, is_nonnegative, maximum, minimum
from tracefuse.ir.fusion import Operand
from tracefuse.ops import Pointwise


def _floor_divide(left: Extent, right: Extent) -> Extent | None:
    return floordiv(left, right) if is_nonnegative(right - 1) else None


# Ops on integer scalars, as arithmetic on the extents that the scalars stand for.
_EXTENT_ARITHMETIC: dict[str, Callable[..., Extent | None]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "maximum": maximum,
    "minimum": minimum,
    "floor_divide": _floor_divide,
    "remainder": lambda left, right: left % right if is_nonnegative(right - 1) else None,
    "set": lambda operand: operand,
    "cast": lambda operand: operand,
}


def _less_than(left: Extent, right: Extent) -> Extent:
    """Returns 1 where left < right, else 0."""
    return minimum(1, maximum(0, right - left))


# Comparisons of extents, as extents that are 1 or 0.
_EXTENT_COMPARISONS: dict[str, Callable[[Extent, Extent], Extent]] = {
    "lt": _less_than,
    "gt": lambda left, right: _less_than(right, left),
    "ge": lambda left, right: 1 - _less_than(left, right),
    "le": lambda left, right: 1 - _less_than(right, left),
    "eq": lambda left, right: 1 - _less_than(left, right) - _less_than(right, left),
    "ne": lambda left, right: _less_than(left, right) + _less_than(right, left),
}


def compute_extent(recording: Recording, op: Pointwise, operands: Sequence[Operand], result: DType) -> Extent | None:
    """Returns the integer expression that a scalar result is; None where it is not one."""
    if op.name == "where" and result.is_integer and result.itemsize >= 4:
        return _select_extent(recording, *operands)
    arithmetic = _EXTENT_ARITHMETIC.get(op.name)
    if arithmetic is None or not result.is_integer or result.itemsize < 4:
        return None
    extents = [recording.extent_of(o) for o in operands]
    return None if any(e is None for e in extents) else arithmetic(*extents)


def _select_extent(recording: Recording, condition: Operand, if_true: Operand, if_false: Operand) -> Extent | None:
    """Returns the extent of `where` on a comparison of integers."""
    truth = recording.comparisons.get(condition) if isinstance(condition, int) else None
    first, second = (recording.extent_of(o) for o in (if_true, if_false))
    if truth is None or first is None or second is None:
        return None
    return second + truth * (first - second)


def compare_extents(recording: Recording, op: Pointwise, operands: Sequence[Operand]) -> Extent | None:
    """Returns the extent that is 1 where a comparison of integer scalars holds, else 0; None for any other op."""
    if op.name not in _EXTENT_COMPARISONS:
        return None
    left, right = (recording.extent_of(operand) for operand in operands)
    return None if left is None or right is None else _EXTENT_COMPARISONS[op.name](left, right)
