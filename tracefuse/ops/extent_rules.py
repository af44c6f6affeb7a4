"""What ops compute on extents: rules by which integer host scalars stay symbolic, so that shapes can be made from them.

A rule takes an extent for each operand and returns the extent of the result, or None where none describes it. A
comparison returns 1 or 0. Op definitions declare theirs as `on_extents`.

Must not know: ops.
"""

from __future__ import annotations

from tracefuse.ir.extents import Extent, floordiv, is_nonnegative, maximum, minimum


def same(operand: Extent) -> Extent:
    """The operand itself."""
    return operand


def whole_quotient(left: Extent, right: Extent) -> Extent | None:
    """left // right, for a divisor that is known to be positive."""
    return floordiv(left, right) if is_nonnegative(right - 1) else None


def truncated_quotient(left: Extent, right: Extent) -> Extent | None:
    """left / right rounded towards zero, for a divisor that is known not to be negative; 0 for a divisor of 0."""
    if not is_nonnegative(right):
        return None
    is_positive = is_nonnegative(right - 1)
    divisor = right if is_positive else maximum(1, right)
    quotient = floordiv(maximum(left, 0), divisor)
    if not is_nonnegative(left):
        quotient = quotient - floordiv(maximum(-left, 0), divisor)
    return quotient if is_positive else minimum(1, right) * quotient


def whole_remainder(left: Extent, right: Extent) -> Extent | None:
    """left % right, for a divisor that is known to be positive."""
    return left % right if is_nonnegative(right - 1) else None


def less(left: Extent, right: Extent) -> Extent:
    """1 where left < right, else 0."""
    return minimum(1, maximum(0, right - left))


def greater(left: Extent, right: Extent) -> Extent:
    """1 where left > right, else 0."""
    return less(right, left)


def greater_equal(left: Extent, right: Extent) -> Extent:
    """1 where left >= right, else 0."""
    return 1 - less(left, right)


def less_equal(left: Extent, right: Extent) -> Extent:
    """1 where left <= right, else 0."""
    return 1 - less(right, left)


def equal(left: Extent, right: Extent) -> Extent:
    """1 where left == right, else 0."""
    return 1 - not_equal(left, right)


def not_equal(left: Extent, right: Extent) -> Extent:
    """1 where left != right, else 0."""
    return less(left, right) + less(right, left)
