"""The symbols of an extent, and other extents in their place.

Parts of an expression that occur several times are visited once, since the text of an expression may be exponentially
longer than the expression.

Must not know: fusions, ops, kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from tracefuse.ir.extents.polynomial import (
    OPERATIONS,
    Atom,
    Expression,
    Extent,
    Monomial,
    Symbol,
    as_symbol,
    from_terms,
    terms_of,
)


def symbols(extent: Extent) -> Iterator[Symbol]:
    """Yields every symbol in `extent`, in order, possibly several times; not the symbols of a loop symbol's extent."""
    seen: set[Atom] = set()
    waiting = [atom for monomial, _ in reversed(terms_of(extent)) for atom in reversed(monomial)]
    while waiting:
        atom = waiting.pop()
        if isinstance(atom, Symbol):
            yield atom
        elif atom not in seen:
            seen.add(atom)
            for side in (atom.right, atom.left):
                waiting += [a for monomial, _ in reversed(terms_of(side)) for a in reversed(monomial)]


def substitute(extent: Extent, values: Mapping[Any, Extent]) -> Extent:
    """Replaces atoms of `extent` and simplifies the result."""
    return _substituted(extent, cast("Mapping[Atom, Extent]", values), {})


def _substituted(extent: Extent, values: Mapping[Atom, Extent], known: dict[Atom, Extent]) -> Extent:
    """Substitutes; `known` holds the results for quotients and other atoms of two expressions."""
    if isinstance(extent, int):
        return extent
    single = as_symbol(extent)
    if single is not None:
        return values.get(single, extent)
    result: Extent = 0
    kept: list[tuple[Monomial, int]] = []
    for monomial, coefficient in extent.terms:
        if _is_kept(monomial, values):
            kept.append((monomial, coefficient))
            continue
        term: Extent = coefficient
        for atom in monomial:
            term = term * _substitute_atom(atom, values, known)
        result = result + term
    if len(kept) == len(extent.terms):
        return extent
    return result + from_terms(dict(kept)) if kept else result


def _is_kept(monomial: Monomial, values: Mapping[Atom, Extent]) -> bool:
    """Whether a substitution leaves a product of symbols as it is."""
    return all(isinstance(atom, Symbol) and atom not in values for atom in monomial)


def _substitute_atom(atom: Atom, values: Mapping[Atom, Extent], known: dict[Atom, Extent]) -> Extent:
    replacement = values.get(atom)
    if replacement is not None:
        return replacement
    if isinstance(atom, Symbol):
        return Expression((((atom,), 1),))
    replacement = known.get(atom)
    if replacement is None:
        left, right = (_substituted(side, values, known) for side in (atom.left, atom.right))
        replacement = known[atom] = OPERATIONS[atom.operation](left, right)
    return replacement
