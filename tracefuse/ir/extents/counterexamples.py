"""Values of symbols at which a symbolic integer is negative: no proof that it is not needs to be tried.

Most proofs that are asked for fail, after several times the work of one that succeeds. A few values in the ranges of
the symbols show that for nearly all of them.

Must not know: fusions, ops, kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from tracefuse.ir.extents.polynomial import OPERATIONS, Binary, Extent, Symbol

_Choice = Callable[[int, int, int], int]
"""What a symbol is, for its smallest value, its largest one (-1 if it has none) and the number of symbols before it."""

_CHOICES: tuple[_Choice, ...] = (
    lambda least, most, before: least + 5000 * (before + 1) if most < 0 else most,
    lambda least, most, before: least + 90_000 // (before + 1) if most < 0 else least,
    lambda least, most, before: max(least, 1) if most < 0 else most,
)
"""Growing extents with loops at their ends, shrinking ones with loops at their starts, and the smallest."""


class _OutOfRangeError(Exception):
    """A loop would have no iteration, or a divisor would not be positive."""


def has_counterexample(extent: Extent) -> bool:
    """Returns whether `extent` is found to be negative for some values of its symbols. False means "not found"."""
    return any(_is_negative(extent, choice) for choice in _CHOICES)


def _is_negative(extent: Extent, choice: _Choice) -> bool:
    try:
        return _value(extent, choice, {}) < 0
    except _OutOfRangeError:
        return False


def _value(extent: Extent, choice: _Choice, known: dict[Symbol | Binary, int]) -> int:
    """Returns the value of an extent. known: those of atoms."""
    if isinstance(extent, int):
        return extent
    total = 0
    for monomial, coefficient in extent.terms:
        term = coefficient
        for atom in monomial:
            value = known.get(atom)
            if value is None:
                value = known[atom] = _value_of_atom(atom, choice, known)
            term *= value
        total += term
    return total


def _value_of_atom(atom: Symbol | Binary, choice: _Choice, known: dict[Symbol | Binary, int]) -> int:
    if isinstance(atom, Symbol):
        most = -1 if atom.extent is None else _value(atom.extent, choice, known) - 1
        if atom.extent is not None and most < atom.minimum:
            raise _OutOfRangeError
        return choice(atom.minimum, most, len(known))
    left, right = _value(atom.left, choice, known), _value(atom.right, choice, known)
    if atom.operation in ("//", "%") and right < 1:
        raise _OutOfRangeError
    return cast("int", OPERATIONS[atom.operation](left, right))
