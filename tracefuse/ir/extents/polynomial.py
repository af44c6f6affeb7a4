"""Polynomials with integer coefficients over atoms, in a normal form.

Two expressions that are equal as polynomials are equal as objects (`n * 4 == 2 * n + 2 * n`). Atoms are symbols (an
extent of an input, a host scalar, a loop index), and quotients, remainders, minima and maxima of expressions. A
symbol knows its range: an extent is at least `minimum`, a loop index lies in [0, extent).

Must not know: fusions, ops, kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named integer. Two symbols are equal if their names and their ranges are: proofs depend on both.

    id: the negative id of an extent (-1 is the first axis of the first input) or the number of a scalar value; None
    for a loop index. extent: the exclusive upper bound of a loop index. minimum: the smallest value.
    """

    name: str
    id: int | None = None
    extent: Extent | None = None
    minimum: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return ("", self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Binary:
    """An atom of two expressions: "//", "%" (both round toward minus infinity), "min" or "max"."""

    operation: str
    left: Extent
    right: Extent

    @property
    def key(self) -> tuple[str, str]:
        return (self.operation, str(self))

    def __str__(self) -> str:
        if self.operation in ("min", "max"):
            return f"{self.operation}({self.left}, {self.right})"
        return f"{_inner(self.left)} {self.operation} {_inner(self.right)}"


Atom: TypeAlias = Symbol | Binary
Monomial: TypeAlias = tuple[Atom, ...]


def _inner(extent: Extent) -> str:
    text = str(extent)
    return f"({text})" if " " in text else text


class Expression:
    """A polynomial over atoms that is not a constant. Immutable; operators return an int for a constant result."""

    __slots__ = ("_hash", "terms")
    terms: tuple[tuple[Monomial, int], ...]

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self._hash == other._hash and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Extent) -> Extent:
        return from_terms(_added(dict(self.terms), terms_of(other)))

    __radd__ = __add__

    def __neg__(self) -> Extent:
        return Expression(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Extent) -> Extent:
        return self + (-other)

    def __rsub__(self, other: Extent) -> Extent:
        return (-self) + other

    def __mul__(self, other: Extent) -> Extent:
        result: dict[Monomial, int] = {}
        for a, c in self.terms:
            for b, d in terms_of(other):
                monomial = a if not b else b if not a else tuple(sorted(a + b, key=_atom_key))
                result[monomial] = result.get(monomial, 0) + c * d
        return from_terms(result)

    __rmul__ = __mul__

    def __floordiv__(self, other: Extent) -> Extent:
        return OPERATIONS["//"](self, other)

    def __rfloordiv__(self, other: Extent) -> Extent:
        return OPERATIONS["//"](other, self)

    def __mod__(self, other: Extent) -> Extent:
        return OPERATIONS["%"](self, other)

    def __rmod__(self, other: Extent) -> Extent:
        return OPERATIONS["%"](other, self)

    def __str__(self) -> str:
        parts: list[str] = []
        for monomial, coefficient in self.terms:
            # "-a // b" would read as (-a) // b at the start of a sum.
            alone = len(monomial) == 1 and (coefficient == 1 or (coefficient == -1 and bool(parts)))
            factors = [str(a) if alone else _inner_atom(a) for a in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            parts.append(f"{sign} {' * '.join(factors)}")
        text = " ".join(parts)
        return text[2:] if text.startswith("+ ") else "-" + text[2:]

    __repr__ = __str__


Extent: TypeAlias = int | Expression

OPERATIONS: dict[str, Callable[[Extent, Extent], Extent]] = {}
"""How a quotient, remainder, minimum or maximum of two extents is made, simplified by what is proved of them. Proofs
need polynomials and so stand above this module; `division` enters the four as the package is imported."""


def _inner_atom(atom: Atom) -> str:
    text = str(atom)
    return f"({text})" if isinstance(atom, Binary) and atom.operation in ("//", "%") else text


def _atom_key(atom: Atom) -> tuple[str, str]:
    return atom.key


def _monomial_key(term: tuple[Monomial, int]) -> tuple[int, list[tuple[str, str]]]:
    # Higher degree first, constants last: the conventional order.
    return (-len(term[0]), [a.key for a in term[0]])


def terms_of(extent: Extent) -> tuple[tuple[Monomial, int], ...]:
    """Returns the nonzero terms of an extent: monomials with their coefficients."""
    return extent.terms if isinstance(extent, Expression) else (((), extent),) if extent else ()


def _added(result: dict[Monomial, int], terms: Iterable[tuple[Monomial, int]]) -> dict[Monomial, int]:
    for monomial, coefficient in terms:
        result[monomial] = result.get(monomial, 0) + coefficient
    return result


def from_terms(terms: Mapping[Monomial, int], *, recombine: bool = True) -> Extent:
    """Returns the extent with these terms. recombine: merge matching quotients and remainders into their dividend."""
    kept = [(m, c) for m, c in terms.items() if c]
    if not kept:
        return 0
    if len(kept) == 1 and not kept[0][0]:
        return kept[0][1]
    if recombine and len(kept) > 1:
        for monomial, coefficient in kept:
            for position, atom in enumerate(monomial):
                if isinstance(atom, Binary) and atom.operation == "%":
                    joined = _recombined(dict(kept), monomial, coefficient, position)
                    if joined is not None:
                        return joined
    return Expression(tuple(sorted(kept, key=_monomial_key)))


def _recombined(terms: dict[Monomial, int], monomial: Monomial, coefficient: int, position: int) -> Extent | None:
    """Rewrites k * (x % d) + k * d * (x // d) to k * x if every term of the second summand is present."""
    atom = cast("Binary", monomial[position])
    rest = from_terms({monomial[:position] + monomial[position + 1 :]: coefficient}, recombine=False)
    quotient = rest * atom.right * OPERATIONS["//"](atom.left, atom.right)
    for other, factor in terms_of(quotient):
        have = terms.get(other, 0)
        if have == 0 or abs(have) < abs(factor) or (have > 0) != (factor > 0):
            return None
    remaining = _added(terms, ((m, -c) for m, c in terms_of(quotient)))
    remaining[monomial] -= coefficient
    return from_terms(_added(remaining, terms_of(rest * atom.left)))


def symbol(name: str, id: int | None = None, *, extent: Extent | None = None, minimum: int = 0) -> Expression:
    """Returns the expression of a single new symbol."""
    return Expression((((Symbol(name, id, extent, minimum),), 1),))


def input_extent(position: int) -> Expression:
    """Returns the extent with id -(position + 1): input axes are counted in the order of tensor and axis, from i0."""
    return symbol(f"i{position}", -(position + 1))


def scalar_extent(number: int) -> Expression:
    """Returns the integer that the host scalar with this value number holds."""
    return symbol(f"s{number}", number, minimum=-(2**63))


def as_symbol(extent: Extent) -> Symbol | None:
    """Returns the symbol if `extent` is a single symbol, else None."""
    if isinstance(extent, Expression) and len(extent.terms) == 1:
        (monomial, coefficient) = extent.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0]
    return None


def symbol_of(extent: Extent) -> Symbol:
    """Returns the symbol of an extent that must be a single symbol, such as a loop index."""
    found = as_symbol(extent)
    assert found is not None
    return found


def as_atom(extent: Extent) -> Atom | None:
    """Returns the atom if `extent` is a single atom, else None."""
    if isinstance(extent, Expression) and len(extent.terms) == 1 and extent.terms[0][1] == 1:
        monomial = extent.terms[0][0]
        return monomial[0] if len(monomial) == 1 else None
    return None


def atom_of(operation: str, left: Extent, right: Extent) -> Extent:
    """Returns the expression of one quotient, remainder, minimum or maximum, without simplification."""
    return Expression((((Binary(operation, left, right),), 1),))


def symbols(extent: Extent) -> Iterator[Symbol]:
    """Yields every symbol in `extent`, in order, with repetitions; not the symbols of a loop symbol's own extent."""
    for monomial, _ in terms_of(extent):
        for atom in monomial:
            if isinstance(atom, Symbol):
                yield atom
            else:
                yield from symbols(atom.left)
                yield from symbols(atom.right)


def product(extents: Iterable[Extent]) -> Extent:
    """Returns the product; 1 if there are no factors."""
    result: Extent = 1
    for extent in extents:
        result = result * extent
    return result


def divide_exactly(dividend: Extent, divisor: Extent) -> Extent | None:
    """Returns dividend / divisor if it is a polynomial with integer coefficients, else None."""
    divisor_terms = terms_of(divisor)
    if not divisor_terms:
        return None
    lead, lead_coefficient = divisor_terms[0]
    result: Extent = 0
    rest = dividend
    for _ in range(64):
        rest_terms = terms_of(rest)
        if not rest_terms:
            return result
        monomial, coefficient = rest_terms[0]
        quotient = _monomial_quotient(monomial, lead)
        if quotient is None or coefficient % lead_coefficient:
            return None
        step = from_terms({quotient: coefficient // lead_coefficient}, recombine=False)
        result = result + step
        rest = rest - step * divisor
    return None


def _monomial_quotient(dividend: Monomial, divisor: Monomial) -> Monomial | None:
    left = list(dividend)
    for atom in divisor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def substitute(extent: Extent, values: Mapping[Any, Extent]) -> Extent:
    """Replaces atoms of `extent` and simplifies the result."""
    if isinstance(extent, int):
        return extent
    table = cast("Mapping[Atom, Extent]", values)
    own = as_symbol(extent)
    if own is not None:
        return table.get(own, extent)
    result: Extent = 0
    for monomial, coefficient in extent.terms:
        term: Extent = coefficient
        for atom in monomial:
            term = term * _substitute_atom(atom, table)
        result = result + term
    return result


def _substitute_atom(atom: Atom, values: Mapping[Atom, Extent]) -> Extent:
    found = values.get(atom)
    if found is not None:
        return found
    if isinstance(atom, Symbol):
        return Expression((((atom,), 1),))
    return OPERATIONS[atom.operation](substitute(atom.left, values), substitute(atom.right, values))
