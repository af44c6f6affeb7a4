"""Evaluates symbolic integers: to integers, for values of their symbols, or to Python text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from tracefuse.ir.extents.polynomial import OPERATIONS, Atom, Extent, Symbol, as_atom


def evaluate(extent: Extent, value_of: Mapping[int, int]) -> int:
    """Evaluates `extent` for values of its symbols, by id. Raises KeyError for a missing symbol."""
    if isinstance(extent, int):
        return extent
    total = 0
    for monomial, coefficient in extent.terms:
        term = coefficient
        for atom in monomial:
            if isinstance(atom, Symbol):
                term *= value_of[cast("int", atom.id)]
            else:
                left, right = evaluate(atom.left, value_of), evaluate(atom.right, value_of)
                term *= cast("int", OPERATIONS[atom.operation](left, right))
        total += term
    return total


def python_text(extent: Extent, name_of: Callable[[Symbol], str]) -> str:
    """Returns a Python expression for `extent`, with each symbol named by `name_of`."""
    if isinstance(extent, int):
        return f"({extent})" if extent < 0 else str(extent)
    parts = []
    for monomial, coefficient in extent.terms:
        factors = [_python_atom(atom, name_of) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, f"({coefficient})")
        parts.append("*".join(factors))
    return parts[0] if len(parts) == 1 and as_atom(extent) is not None else f"({' + '.join(parts)})"


def _python_atom(atom: Atom, name_of: Callable[[Symbol], str]) -> str:
    if isinstance(atom, Symbol):
        return name_of(atom)
    left, right = python_text(atom.left, name_of), python_text(atom.right, name_of)
    return (
        f"{atom.operation}({left}, {right})"
        if atom.operation in ("min", "max")
        else f"({left} {atom.operation} {right})"
    )
