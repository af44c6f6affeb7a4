"""Quotients, remainders, minima and maxima of symbolic integers, simplified with proved facts.

Must not know: fusions, ops, kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tracefuse.caches import memoized
from tracefuse.ir.extents.polynomial import (
    OPERATIONS,
    Binary,
    Expression,
    Extent,
    Monomial,
    as_atom,
    atom_of,
    divide_exactly,
    from_terms,
    terms_of,
)
from tracefuse.ir.extents.proofs import is_nonnegative, is_positive_divisor, others_nonnegative


def floordiv(dividend: Extent, divisor: Extent) -> Extent:
    """Returns dividend // divisor, rounded toward minus infinity. A symbolic divisor must be positive."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor
    return _divided(dividend, divisor)[0]


def mod(dividend: Extent, divisor: Extent) -> Extent:
    """Returns dividend % divisor with the sign of the divisor. A symbolic divisor must be positive."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend % divisor
    return _divided(dividend, divisor)[1]


def ceildiv(dividend: Extent, divisor: Extent) -> Extent:
    """Returns dividend / divisor rounded up, for a positive divisor."""
    return floordiv(dividend + divisor - 1, divisor)


def minimum(a: Extent, b: Extent) -> Extent:
    """Returns min(a, b)."""
    return _bound("min", a, b, lambda left, right: is_nonnegative(right - left))


def maximum(a: Extent, b: Extent) -> Extent:
    """Returns max(a, b)."""
    return _bound("max", a, b, lambda left, right: is_nonnegative(left - right))


def _bound(operation: str, a: Extent, b: Extent, wins: Callable[[Extent, Extent], bool]) -> Extent:
    """Returns the minimum or maximum; simplifies it if one side is proved to be the result, also in chains."""
    if wins(a, b):
        return a
    if wins(b, a):
        return b
    for chain, other in ((a, b), (b, a)):
        atom = as_atom(chain)
        if isinstance(atom, Binary) and atom.operation == operation:
            for remaining, dropped in ((atom.left, atom.right), (atom.right, atom.left)):
                if wins(other, dropped):
                    return _bound(operation, remaining, other, wins)
    return atom_of(operation, a, b)


@memoized("quotients and remainders of extents", key="dividend, divisor", most=4096)
def _split(dividend: Extent, divisor: Extent) -> tuple[Extent, Extent]:
    """Returns (q, r) with dividend = q * divisor + r, where q holds every term that divides exactly."""
    exact = divide_exactly(dividend, divisor)
    if exact is not None:
        return exact, 0
    quotient: Extent = 0
    rest: Extent = 0
    for monomial, coefficient in terms_of(dividend):
        term = from_terms({monomial: coefficient}, recombine=False)
        share = divide_exactly(term, divisor)
        if share is None and isinstance(divisor, int) and not monomial:
            share, term = coefficient // divisor, coefficient % divisor
            rest = rest + term
            quotient = quotient + share
        elif share is None:
            rest = rest + term
        else:
            quotient = quotient + share
    return quotient, rest


@memoized("simplified quotients and remainders", key="dividend, divisor", most=4096)
def _divided(dividend: Extent, divisor: Extent) -> tuple[Extent, Extent]:
    """Returns (dividend // divisor, dividend % divisor)."""
    if divisor == 1:
        return dividend, 0
    if isinstance(divisor, int) and divisor < 1:
        if divisor == 0:  # the index of a loop without iterations, divided by its extent
            return atom_of("//", dividend, 0), atom_of("%", dividend, 0)
        quotient, rest = _divided(-dividend, -divisor)
        return quotient, -rest
    quotient, rest = _split(dividend, divisor)
    if rest == 0 or (is_nonnegative(rest) and is_nonnegative(divisor - 1 - rest)):
        return quotient, rest
    if is_nonnegative(-rest - 1) and is_nonnegative(rest + divisor):
        return quotient - 1, rest + divisor
    reduced = _reduced(rest, divisor) or _by_leading_term(rest, divisor)
    if reduced is not None:
        return quotient + reduced[0], reduced[1]
    return quotient + _quotient_atom(rest, divisor), _remainder_atom(rest, divisor)


def _reduced(rest: Extent, divisor: Extent) -> tuple[Extent, Extent] | None:
    """Cancels a common factor of quotient and remainder: (f * x + r) // (f * d) is x // d for 0 <= r < f."""
    terms = terms_of(divisor)
    if len(terms) != 1:
        return None
    for factor in _common_factors(rest, *terms[0]):
        high: Extent = 0
        low: Extent = 0
        for monomial, coefficient in terms_of(rest):
            term = from_terms({monomial: coefficient}, recombine=False)
            share = divide_exactly(term, factor)
            if share is not None:
                high = high + share
            elif monomial or not isinstance(factor, int):
                low = low + term
            else:
                high, low = high + coefficient // factor, low + coefficient % factor
        if low == 0 or (is_nonnegative(low) and is_nonnegative(factor - 1 - low)):
            smaller = divide_exactly(divisor, factor)
            assert smaller is not None
            quotient, remainder = _divided(high, smaller) if isinstance(high, Expression) else _of(high, smaller)
            return quotient, factor * remainder + low
    return None


MOST_STEPS = 8
"""Steps of a division by a divisor of several terms."""


def _by_leading_term(rest: Extent, divisor: Extent) -> tuple[Extent, Extent] | None:
    """Divides by a divisor of several terms: (i * (n - 1) + j) // (n - 1) is i for 0 <= j < n - 1."""
    terms = terms_of(divisor)
    degree = max((len(monomial) for monomial, _ in terms), default=0)
    for monomial, coefficient in terms if len(terms) > 1 else ():
        if len(monomial) < degree:
            continue
        leading = from_terms({monomial: coefficient}, recombine=False)
        quotient: Extent = 0
        remainder = rest
        for _ in range(MOST_STEPS):
            parts = (from_terms({other: number}, recombine=False) for other, number in terms_of(remainder))
            share = next((part for part in (divide_exactly(part, leading) for part in parts) if part is not None), None)
            if share is None:
                break
            quotient, remainder = quotient + share, remainder - share * divisor
        if quotient != 0 and is_nonnegative(remainder) and is_nonnegative(divisor - 1 - remainder):
            return quotient, remainder
    return None


def _of(dividend: int, divisor: Extent) -> tuple[Extent, Extent]:
    return floordiv(dividend, divisor), mod(dividend, divisor)


def _common_factors(rest: Extent, monomial: Monomial, coefficient: int) -> list[Extent]:
    """Returns the common factors of a term of `rest` and the divisor's only term.

    Larger factors come first; no factor is 1 or negative.
    """
    candidates: dict[Extent, int] = {}
    for other, factor in terms_of(rest):
        shared = list(other)
        common = [atom for atom in monomial if atom in shared and not shared.remove(atom)]  # type: ignore[func-returns-value]
        if not others_nonnegative(tuple(common), -1):
            continue
        number = math.gcd(factor, coefficient)
        for size in {number, 1} if common else {number}:
            candidate = from_terms({tuple(common): size}, recombine=False)
            if candidate != 1:
                candidates[candidate] = len(common) * 64 + size.bit_length()
    return sorted(candidates, key=lambda f: -candidates[f])


def _quotient_atom(rest: Extent, divisor: Extent) -> Extent:
    """Returns rest // divisor as an atom; two successive divisions by positive numbers become one by the product."""
    inner = as_atom(rest)
    if isinstance(inner, Binary) and inner.operation == "//" and is_positive_divisor(inner.right):
        return floordiv(inner.left, inner.right * divisor)
    if isinstance(inner, Binary) and inner.operation == "%" and inner.right == divisor:
        return 0
    if isinstance(rest, Expression) and isinstance(divisor, int):
        # (x // a + k) // b is (x + k * a) // (a * b).
        for monomial, coefficient in rest.terms:
            atom = monomial[0] if len(monomial) == 1 and coefficient == 1 else None
            if isinstance(atom, Binary) and atom.operation == "//" and isinstance(atom.right, int) and atom.right > 0:
                other_terms = rest - from_terms({monomial: 1}, recombine=False)
                if isinstance(other_terms, int):
                    return floordiv(atom.left + other_terms * atom.right, atom.right * divisor)
    return atom_of("//", rest, divisor)


def _remainder_atom(rest: Extent, divisor: Extent) -> Extent:
    """Returns rest % divisor as an atom; a factor y % (k * divisor) becomes y, (x // a) % b with x < a * b x // a."""
    inner = as_atom(rest)
    if isinstance(inner, Binary) and inner.operation == "//" and is_positive_divisor(inner.right):
        within = is_nonnegative(inner.right * divisor - 1 - inner.left)
        if within and is_nonnegative(inner.left) and is_positive_divisor(divisor):
            return rest
    for monomial, coefficient in terms_of(rest):
        for position, atom in enumerate(monomial):
            if isinstance(atom, Binary) and atom.operation == "%" and divide_exactly(atom.right, divisor) is not None:
                term = from_terms({monomial: coefficient}, recombine=False)
                cofactor = from_terms({monomial[:position] + monomial[position + 1 :]: coefficient}, recombine=False)
                return mod(rest - term + cofactor * atom.left, divisor)
    return atom_of("%", rest, divisor)


OPERATIONS.update({"//": floordiv, "%": mod, "min": minimum, "max": maximum})
