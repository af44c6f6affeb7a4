"""Proofs about symbolic integers from the ranges of their symbols.

A loop index satisfies `0 <= i < m`. This fact simplifies `(k * m + i) // m` to `k`, and removes comparisons from
kernels.

Must not know: fusions, ops, kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import cast

from tracefuse.caches import memoized
from tracefuse.ir.extents.counterexamples import has_counterexample
from tracefuse.ir.extents.polynomial import (
    Atom,
    Binary,
    Expression,
    Extent,
    Monomial,
    Symbol,
    as_symbol,
    from_terms,
    terms_of,
)
from tracefuse.ir.extents.substitution import substitute, symbols


def is_nonnegative(extent: Extent) -> bool:
    """Returns whether `extent` is proved to be >= 0 for all values of its symbols. False means "not proved"."""
    if isinstance(extent, int):
        return extent >= 0
    return _is_nonnegative(extent)


@memoized("whether an extent is proved not negative", key="extent", most=16384)
def _is_nonnegative(extent: Expression) -> bool:
    if _is_sum_of_products(extent):
        return True
    if has_counterexample(extent):
        return False
    if _holds_at_the_ends(extent, {}):
        return True
    bounded = _bounded_by_loops(extent)
    return bool(bounded) and _holds_at_the_ends(substitute(extent, bounded), bounded)


def _is_sum_of_products(extent: Expression) -> bool:
    """Whether `extent` adds products of symbols that are never negative."""
    return all(
        coefficient > 0 and all(isinstance(atom, Symbol) and atom.minimum >= 0 for atom in monomial)
        for monomial, coefficient in extent.terms
    )


def _bounded_by_loops(extent: Extent) -> dict[Atom, Extent]:
    """Returns symbols with a minimum for atoms of extents of loops: an index below n // 2 - 1 implies n // 2 >= 2."""
    least: dict[Atom, int] = {}
    for loop in symbols_outside(extent):
        terms = dict(terms_of(loop.extent)) if loop.extent is not None else {}
        constant = terms.pop((), 0)
        if len(terms) != 1:
            continue
        ((monomial, coefficient),) = terms.items()
        if len(monomial) == 1 and coefficient > 0:
            least[monomial[0]] = max(least.get(monomial[0], 0), -((constant - 1) // coefficient))
    return {
        atom: Expression((((Symbol(f"({atom})", minimum=bound),), 1),))
        for atom, bound in least.items()
        if bound > (_lower_bound(atom) or 0) and not (isinstance(atom, Symbol) and atom.extent is not None)
    }


def _holds_at_the_ends(extent: Extent, bounded: Mapping[Atom, Extent]) -> bool:
    """Whether `extent` is proved to be >= 0 at the ends of the ranges of its loop indices.

    bounded: what replaces atoms in the extents of loops.
    """
    lowered: Extent = extent
    ranges: list[Symbol] = []
    # Loop indices first (their extents may be symbols): each is linear in practice, so its worst case is an end of
    # its range.
    for _ in range(16):
        loop = next((s for s in symbols_outside(lowered) if s.extent is not None), None)
        if loop is None:
            break
        coefficient, rest = _linear(lowered, loop)
        if coefficient is None:
            return False
        count = substitute(cast("Extent", loop.extent), bounded)
        bound_symbol = as_symbol(count)
        ranges += [bound_symbol] if bound_symbol is not None and bound_symbol.minimum == 0 else []
        if is_nonnegative(coefficient):
            lowered = rest
        elif is_nonnegative(-coefficient):
            lowered = rest + coefficient * (count - 1)
        else:
            return False
    # An index implies that its loop has an iteration, so its extent is at least 1.
    positive = frozenset(ranges) if all(s.extent is None for s in symbols(lowered)) else frozenset[Symbol]()
    if _expanded_terms(lowered, positive) > MOST_EXPANDED:
        return _is_dominated(lowered, positive)
    if positive:
        lowered = substitute(lowered, {s: Expression((((s,), 1),)) + 1 for s in positive})
    return _all_terms_nonnegative(lowered)


MOST_EXPANDED = 128
"""Terms of an expression whose atoms are replaced by their bounds plus new atoms, at most. A product of n extents gives
2 ** n terms; for more terms than these, each negative term is compared with the positive ones."""


def _expanded_terms(extent: Extent, positive: frozenset[Symbol]) -> int:
    shifted = (sum(a in positive or bool(_lower_bound(a)) for a in monomial) for monomial, _ in terms_of(extent))
    return sum(1 << min(count, 64) for count in shifted)


def _is_dominated(extent: Extent, positive: frozenset[Symbol]) -> bool:
    """Proves that the positive terms exceed the negative ones, each of which is a factor of a positive one.

    positive: symbols that are at least 1. Takes time quadratic in the terms.
    """
    least: dict[Atom, int] = {}
    for monomial, _ in terms_of(extent):
        for atom in monomial:
            bound = 1 if atom in positive else _lower_bound(atom)
            if bound is None or bound < 0:
                return False
            least[atom] = bound
    left = {monomial: coefficient for monomial, coefficient in terms_of(extent) if coefficient > 0}
    for monomial, coefficient in terms_of(extent):
        missing = -coefficient
        for other in sorted(left, key=len) if missing > 0 else ():
            unmatched = list(other)
            if any(atom not in unmatched or unmatched.remove(atom) for atom in monomial):  # type: ignore[func-returns-value]
                continue
            factor = math.prod(least[atom] for atom in unmatched)
            if factor > 0:
                used = min(left[other], -(-missing // factor))
                left[other] -= used
                missing -= used * factor
        if missing > 0:
            return False
    return True


def symbols_outside(extent: Extent) -> Iterator[Symbol]:
    """Yields the symbols that are factors of a term, not inside a quotient, remainder, minimum or maximum."""
    for monomial, _ in terms_of(extent):
        for atom in monomial:
            if isinstance(atom, Symbol):
                yield atom


def is_positive_divisor(extent: Extent) -> bool:
    """Returns whether a divisor is positive: a symbolic one is, since a quotient by it exists."""
    return extent > 0 if isinstance(extent, int) else is_nonnegative(extent)


def _linear(extent: Extent, loop: Symbol) -> tuple[Extent | None, Extent]:
    coefficient: Extent = 0
    rest: Extent = 0
    for monomial, factor in terms_of(extent):
        count = monomial.count(loop)
        if count > 1:
            return None, 0
        term = from_terms({tuple(a for a in monomial if a != loop): factor}, recombine=False)
        if count:
            coefficient = coefficient + term
        else:
            rest = rest + term
    return coefficient, rest


def _lower_bound(atom: Atom) -> int | None:
    """Returns a constant lower bound of the atom, or None."""
    if isinstance(atom, Symbol):
        return atom.minimum
    if atom.operation == "%":
        return 0 if is_positive_divisor(atom.right) else None
    if atom.operation == "//":
        return 0 if is_nonnegative(atom.left) and is_positive_divisor(atom.right) else None
    left, right = (is_nonnegative(side) for side in (atom.left, atom.right))
    return 0 if (left and right) or (atom.operation == "max" and (left or right)) else None


def _all_terms_nonnegative(extent: Extent) -> bool:
    """Replaces each atom by its bound plus a nonnegative term, and checks that all coefficients are >= 0."""
    shifted: Extent = 0
    for monomial, coefficient in terms_of(extent):
        term: Extent = coefficient
        for atom in monomial:
            bound = _lower_bound(atom)
            if bound is None or bound < 0:
                return _without_an_atom(extent)
            term = term * (Expression((((atom,), 1),)) + bound)
        shifted = shifted + term
    return all(c >= 0 for _, c in terms_of(shifted)) or _without_an_atom(extent)


MOST_ATOMS = 8
"""An expression with more quotients, remainders, minima and maxima than these is not proved one by one: each may double
the work. The limit is on the expression alone, so that what is proved never depends on what was asked before."""


MOST_FACTORS = 6
"""An expression with a longer product is not proved so: an atom in several terms, or inside of another, comes back with
a factor more each time that it is replaced."""


def _without_an_atom(extent: Extent) -> bool:
    """Retries the proof with a quotient, remainder, minimum or maximum replaced by its bounds."""
    if sum(isinstance(a, Binary) for m, _ in terms_of(extent) for a in m) > MOST_ATOMS:
        return False
    if len(terms_of(extent)) > MOST_EXPANDED or any(len(m) > MOST_FACTORS for m, _ in terms_of(extent)):
        return False
    for monomial, coefficient in terms_of(extent):
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Binary):
                continue
            if atom.operation in ("min", "max"):
                return _both_sides(extent, atom)
            ends = _ends(atom, coefficient > 0)
            if ends and others_nonnegative(monomial, position):
                rest = extent - from_terms({monomial: coefficient}, recombine=False)
                cofactor = from_terms({monomial[:position] + monomial[position + 1 :]: coefficient}, recombine=False)
                return any(is_nonnegative(rest * scale + cofactor * end) for scale, end in ends)
    return False


def _both_sides(extent: Extent, atom: Binary) -> bool:
    """Proves both cases of a minimum or maximum, or only the worse side."""
    sides = [is_nonnegative(substitute(extent, {atom: side})) for side in (atom.left, atom.right)]
    if all(sides) or not any(sides):
        return all(sides)
    # With a minus sign, -min(a, b) is at least both -a and -b; with a plus sign, max(a, b) is at least both a and
    # b. Inside another atom the sign implies nothing, so a proof for one side does not cover the worst case.
    wanted = -1 if atom.operation == "min" else 1
    for monomial, coefficient in terms_of(extent):
        if any(isinstance(a, Binary) and a != atom and _contains(a, atom) for a in monomial):
            return False
        if atom in monomial:
            others_are_fine = monomial.count(atom) == 1 and others_nonnegative(monomial, monomial.index(atom))
            if coefficient * wanted < 0 or not others_are_fine:
                return False
    return True


def _contains(outer: Atom, inner: Atom) -> bool:
    """Whether `inner` equals `outer` or occurs inside it."""
    if outer == inner or isinstance(outer, Symbol):
        return outer == inner
    return any(_contains(a, inner) for side in (outer.left, outer.right) for m, _ in terms_of(side) for a in m)


def others_nonnegative(monomial: Monomial, position: int) -> bool:
    """Whether every other atom of a monomial than `position` is proved to be >= 0."""
    bounds = [_lower_bound(atom) for k, atom in enumerate(monomial) if k != position]
    return all(bound is not None and bound >= 0 for bound in bounds)


def _ends(atom: Binary, lowest: bool) -> list[tuple[Extent, Extent]]:
    """Returns (scale, end) pairs: scale > 0, free of the atom, with scale * atom at least (or at most) end."""
    if not is_nonnegative(atom.right - 1):
        return []
    natural = is_nonnegative(atom.left)
    if atom.operation == "%":
        return [(1, 0)] if lowest else [(1, atom.right - 1), *([(1, atom.left)] if natural else [])]
    ends = [(1, 0)] if lowest and natural else []
    if any(isinstance(a, Binary) for m, _ in terms_of(atom.right) for a in m):
        return cast("list[tuple[Extent, Extent]]", ends if lowest else [(1, atom.left)] if natural else [])
    return [*ends, (atom.right, atom.left - atom.right + 1)] if lowest else [(atom.right, atom.left)]
