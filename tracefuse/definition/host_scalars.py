"""The integers that host scalars of a definition are, so that shapes made from them stay symbolic.

Integer arithmetic on scalars gives integer expressions; a comparison gives 1 or 0, which `where` chooses by.

Knows: what ops compute on extents. Must not know: any single op, how operations are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracefuse.definition.recording import Recording
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Operand
from tracefuse.ops import Pointwise


def scalar_extent(fd: Recording, op: Pointwise, operands: Sequence[Operand], result: DType) -> Extent | None:
    """The extent that a scalar result of type `result` is, or None where no expression describes it."""
    if not result.is_integer or result.itemsize < 4:
        return None
    return _chosen(fd, *operands) if op.promotion == "where" else _on_extents(fd, op, operands)


def _on_extents(fd: Recording, op: Pointwise, operands: Sequence[Operand]) -> Extent | None:
    if op.on_extents is None:
        return None
    extents = [fd._extent_or_none(operand) for operand in operands]
    return None if any(e is None for e in extents) else op.on_extents(*extents)


def _chosen(fd: Recording, condition: Operand, chosen: Operand, other: Operand) -> Extent | None:
    """What a comparison of integers chooses between two others."""
    truth = fd._truths.get(condition) if isinstance(condition, int) else None
    first, second = (fd._extent_or_none(o) for o in (chosen, other))
    if truth is None or first is None or second is None:
        return None
    return second + truth * (first - second)


def truth_of(fd: Recording, op: Pointwise, operands: Sequence[Operand]) -> Extent | None:
    """1 where a comparison of host scalars holds, else 0; None for other ops, and where no extents are compared."""
    return _on_extents(fd, op, operands) if op.result == "bool" else None
