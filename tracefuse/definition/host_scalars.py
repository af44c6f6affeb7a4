"""The integers that host scalars of a definition are, so that shapes made from them stay symbolic.

Integer arithmetic on scalars gives integer expressions; a comparison gives 1 or 0, which `where` chooses by.

Knows: rows by name, symbolic integers. Must not know: how operations are recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from tracefuse.definition.recording import Recording
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, floordiv, is_nonnegative, maximum, minimum
from tracefuse.ir.fusion import Operand
from tracefuse.ops import Pointwise


def _whole_quotient(left: Extent, right: Extent) -> Extent | None:
    return floordiv(left, right) if is_nonnegative(right - 1) else None


# What integer arithmetic on scalars means for the sizes that they are.
_ON_EXTENTS: dict[str, Callable[..., Extent | None]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "maximum": maximum,
    "minimum": minimum,
    "floor_divide": _whole_quotient,
    "remainder": lambda left, right: left % right if is_nonnegative(right - 1) else None,
    "set": lambda operand: operand,
    "cast": lambda operand: operand,
}


def _below(left: Extent, right: Extent) -> Extent:
    """1 where left < right, else 0."""
    return minimum(1, maximum(0, right - left))


# Comparisons of integers as 1 or 0, for what a host scalar chooses between.
_TRUTHS: dict[str, Callable[[Extent, Extent], Extent]] = {
    "lt": _below,
    "gt": lambda left, right: _below(right, left),
    "ge": lambda left, right: 1 - _below(left, right),
    "le": lambda left, right: 1 - _below(right, left),
    "eq": lambda left, right: 1 - _below(left, right) - _below(right, left),
    "ne": lambda left, right: _below(left, right) + _below(right, left),
}


def scalar_meaning(fd: Recording, row: Pointwise, given: Sequence[Operand], result: DType) -> Extent | None:
    """The integer expression that a scalar result is, where it is one."""
    if row.name == "where" and result.is_integer and result.itemsize >= 4:
        return _chosen(fd, *given)
    meaning = _ON_EXTENTS.get(row.name)
    if meaning is None or not result.is_integer or result.itemsize < 4:
        return None
    extents = [fd._extent_or_none(o) for o in given]
    return None if any(e is None for e in extents) else meaning(*extents)


def _chosen(fd: Recording, condition: Operand, chosen: Operand, other: Operand) -> Extent | None:
    """What a comparison of integers chooses between two others."""
    truth = fd._truths.get(condition) if isinstance(condition, int) else None
    first, second = (fd._extent_or_none(o) for o in (chosen, other))
    if truth is None or first is None or second is None:
        return None
    return second + truth * (first - second)


def truth_of(fd: Recording, row: Pointwise, given: Sequence[Operand]) -> Extent | None:
    """1 where a comparison of host scalars holds, else 0; None for what compares no integers."""
    if row.name not in _TRUTHS:
        return None
    left, right = (fd._extent_or_none(operand) for operand in given)
    return None if left is None or right is None else _TRUTHS[row.name](left, right)
