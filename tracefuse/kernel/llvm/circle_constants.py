"""2 / pi to any number of bits, for the reduction of large angles."""

from __future__ import annotations


def two_over_pi_scaled(bits: int) -> int:
    """Returns 2 / pi * 2**bits, rounded down; the last bits may be wrong.

    pi from Machin's formula pi / 4 = 4 atan(1/5) - atan(1/239).
    """
    unit = 1 << bits
    pi = 4 * (4 * _inverse_arctangent(5, unit) - _inverse_arctangent(239, unit))
    return 2 * unit * unit // pi


def _inverse_arctangent(inverse: int, unit: int) -> int:
    """Returns atan(1 / inverse) * unit, by its power series."""
    term, total, n = unit // inverse, 0, 0
    while term:
        total += (-1) ** n * (term // (2 * n + 1))
        term //= inverse * inverse
        n += 1
    return total
