"""Prints integer expressions of extents as Python in a definition: `fd.extent(-1) * 2`."""

from __future__ import annotations

from collections.abc import Callable

from tracefuse.ir.extents import Binary, Extent, Symbol


def extent_as_python(extent: Extent, name_of: Callable[[Symbol], str]) -> str:
    """Returns an integer expression as Python. Minima and maxima use the definition: fd.extent has no order."""
    if isinstance(extent, int):
        return str(extent)
    parts = []
    for monomial, coefficient in extent.terms:
        factors = [_atom_text(atom, name_of) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.append(str(coefficient) if coefficient >= 0 else f"({coefficient})")
        parts.append(" * ".join(factors))
    return " + ".join(parts)


def _atom_text(atom: Symbol | Binary, name_of: Callable[[Symbol], str]) -> str:
    if isinstance(atom, Symbol):
        return name_of(atom)
    left, right = (extent_as_python(side, name_of) for side in (atom.left, atom.right))
    if atom.operation in ("min", "max"):
        return f"fd.extent_{atom.operation}({left}, {right})"
    return f"(({left}) {atom.operation} ({right}))"
