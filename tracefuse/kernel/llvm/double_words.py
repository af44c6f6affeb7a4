"""Numbers as unevaluated sums of two doubles, for the float64 functions that need more than 53 bits on the way.

The error of a sum or a product of doubles is itself a double. `fma` is the exact fused operation: on a processor
without the instruction, LLVM calls the C library.
"""

from __future__ import annotations

from typing import NamedTuple

from tracefuse.kernel.llvm.text_builder import LlvmValue


class Words(NamedTuple):
    """The number high + low, with |low| at most half a unit in the last place of `high`."""

    high: LlvmValue
    low: LlvmValue


def fma(a: LlvmValue, b: LlvmValue | float, c: LlvmValue | float) -> LlvmValue:
    """Return a * b + c, rounded once."""
    return a.builder.intrinsic("fma", a, a.like(b), a.like(c))


def two_sum(a: LlvmValue, b: LlvmValue) -> Words:
    """Return a + b exactly."""
    total = a + b
    rounded = total - a
    return Words(total, (a - (total - rounded)) + (b - rounded))


def fast_two_sum(large: LlvmValue, small: LlvmValue) -> Words:
    """Return large + small exactly; |large| >= |small|, or large is 0."""
    total = large + small
    return Words(total, (large - total) + small)


def two_product(a: LlvmValue, b: LlvmValue | float) -> Words:
    """Return a * b exactly."""
    product = a * b
    return Words(product, fma(a, b, -product))


def quotient(a: LlvmValue, b: Words, lower: LlvmValue | None = None) -> Words:
    """Return a / b, or (a + lower) / b, to about 100 bits, with one division."""
    inverse = 1.0 / b.high
    high = a * inverse
    rest = fma(-high, b.low, fma(-high, b.high, a))
    return Words(high, (rest if lower is None else rest + lower) * inverse)
