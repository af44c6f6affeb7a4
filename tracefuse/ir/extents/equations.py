"""Equal extents: the replacement of each symbol that equations of extents determine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from tracefuse.ir.extents.polynomial import Binary, Expression, Extent, Symbol, as_symbol
from tracefuse.ir.extents.substitution import substitute, symbols


def solve_equations(equations: Sequence[tuple[Extent, Extent]]) -> dict[Symbol, Extent]:
    """Returns the replacement of each symbol that an equation determines, in terms of older symbols."""
    table: dict[Symbol, Extent] = {}
    users: dict[Symbol, set[Symbol]] = {}  # for each symbol, the symbols whose entry in the table contains it
    for equation in equations:
        left, right = (substitute(extent, table) for extent in equation)
        if left == right:
            continue
        solved = _solve(left, right)
        if solved is None:
            continue
        old, new = solved
        changed = users.pop(old, set())
        table.update((s, substitute(table[s], {old: new})) for s in changed)
        table[old] = new
        for symbol in symbols(new):
            users.setdefault(symbol, set()).update(changed, (old,))
    return table


def _solve(left: Extent, right: Extent) -> tuple[Symbol, Extent] | None:
    """Returns a symbol of an equation and what it equals, or None: a number before a size, then the younger one.

    Solves equations of one or two symbols, such as i0 - 2 == i1 - 2 and i0 - 2 == i1: replacements stay short.
    """
    difference = left - right
    if not isinstance(difference, Expression):
        return None
    multiple = _solve_multiple(difference)
    if multiple is not None:
        return multiple
    factors: dict[Symbol, int] = {}
    for monomial, factor in difference.terms:
        if not monomial:
            continue
        if len(monomial) > 1 or len(factors) == 2 or not isinstance(monomial[0], Symbol):
            return None
        factors[monomial[0]] = factor
    for symbol in sorted(factors, key=lambda candidate: (candidate.minimum < 0, _age(candidate)), reverse=True):
        if abs(factors[symbol]) == 1:
            return symbol, Expression((((symbol,), 1),)) - difference * factors[symbol]
    return None


def _solve_multiple(difference: Expression) -> tuple[Symbol, Extent] | None:
    """Solves i0 == 8 * (i0 // 8): the symbol is the product of its factors from then on."""
    if len(difference.terms) != 2:
        return None
    for (first, sign), (second, factor) in itertools.permutations(difference.terms):
        if len(first) != 1 or len(second) != 1 or abs(sign) != 1:
            continue
        name, quotient = first[0], second[0]
        if not isinstance(name, Symbol) or not isinstance(quotient, Binary) or quotient.operation != "//":
            continue
        if as_symbol(quotient.left) == name and quotient.right == -factor * sign:
            return name, Expression((((quotient,), -factor * sign),))
    return None


def _age(symbol: Symbol) -> tuple[bool, int]:
    number = symbol.id or 0
    return (number >= 0, abs(number))
