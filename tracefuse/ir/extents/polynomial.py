"""Polynomials with integer coefficients over atoms, in a normal form.

Two expressions that are equal as polynomials are equal as objects (`n * 4 == 2 * n + 2 * n`). Atoms are symbols (an
extent of an input, a host scalar, a loop index), and quotients, remainders, minima and maxima of expressions. A
symbol knows its range: an extent is at least `minimum`, a loop index lies in [0, extent).

Must not know: fusions, ops, kernels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, TypeAlias, cast

from segments.lazy_dataclasses import dataclass

Key: TypeAlias = tuple[str, int, str]
"""Orders atoms: symbols by name, then others by operation and text, or by a digest if the text is long."""

LONGEST_TEXT = 24
"""Atoms of more symbols, numbers and operations are ordered by a digest: a text repeats what parts of an expression
share, so it may be exponentially longer."""


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A named integer. Two symbols are equal if their names and their ranges are: proofs depend on both.

    id: the negative id of an extent (-1 is the first axis of the first input) or the number of a scalar value; None
    for a loop index. extent: the exclusive upper bound of a loop index. minimum: the smallest value.
    """

    name: str
    id: int | None = None
    extent: Extent | None = None
    minimum: int = 0
    key: Key = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", ("", 0, self.name))
        object.__setattr__(self, "_hash", hash((self.name, self.id, self.extent, self.minimum)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Symbol) or self._hash != other._hash or self.name != other.name:
            return False
        return self.id == other.id and self.extent == other.extent and self.minimum == other.minimum

    def __reduce__(self) -> tuple[Any, ...]:
        return Symbol, (self.name, self.id, self.extent, self.minimum)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    """An atom of two expressions: "//", "%" (both round toward minus infinity), "min" or "max"; `size`: see `_size`."""

    operation: str
    left: Extent
    right: Extent
    size: int = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)
    _key: Key | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", 1 + _size(self.left) + _size(self.right))
        object.__setattr__(self, "_hash", hash((self.operation, self.left, self.right)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Binary) or self._hash != other._hash or self.operation != other.operation:
            return False
        return self.left == other.left and self.right == other.right

    def __reduce__(self) -> tuple[Any, ...]:
        return Binary, (self.operation, self.left, self.right)

    @property
    def key(self) -> Key:
        key = self._key
        if key is None:
            short = self.size <= LONGEST_TEXT
            text = str(self) if short else _digest(f"{_order(self.left)} {_order(self.right)}")
            key = (self.operation, int(not short), text)
            object.__setattr__(self, "_key", key)
        return key

    def __str__(self) -> str:
        if self.operation in ("min", "max"):
            return f"{self.operation}({self.left}, {self.right})"
        return f"{_inner(self.left)} {self.operation} {_inner(self.right)}"


Atom: TypeAlias = Symbol | Binary
Monomial: TypeAlias = tuple[Atom, ...]


def _size(extent: Extent) -> int:
    """Returns the number of symbols, numbers and operations in the text of an extent, up to a large number."""
    if isinstance(extent, int):
        return 1
    return min(sum(1 if isinstance(a, Symbol) else a.size for m, _ in extent.terms for a in m), 2**30)


def _order(extent: Extent) -> str:
    if isinstance(extent, int):
        return str(extent)
    return repr([(coefficient, [atom.key for atom in monomial]) for monomial, coefficient in extent.terms])


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


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
        if self is other:
            return True
        return isinstance(other, Expression) and self._hash == other._hash and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Expression, (self.terms,)

    def __add__(self, other: Extent) -> Extent:
        if isinstance(other, int):
            if not other:
                return self
            if self._has_remainders():
                return from_terms(_added(dict(self.terms), terms_of(other)))
            *monomials, (monomial, constant) = self.terms
            if monomial:
                return Expression((*self.terms, ((), other)))
            return Expression((*monomials, ((), constant + other)) if constant + other else tuple(monomials))
        return from_terms(_added(dict(self.terms), terms_of(other)))

    __radd__ = __add__

    def __neg__(self) -> Extent:
        return Expression(tuple([(m, -c) for m, c in self.terms]))

    def __sub__(self, other: Extent) -> Extent:
        return self + (-other)

    def __rsub__(self, other: Extent) -> Extent:
        return (-self) + other

    def __mul__(self, other: Extent) -> Extent:
        if isinstance(other, int):
            if other == 1:
                return self
            return Expression(tuple([(m, c * other) for m, c in self.terms])) if other else 0
        if len(self.terms) == 1 == len(other.terms):
            ((a, c),), ((b, d),) = self.terms, other.terms
            return Expression(((tuple(sorted(a + b, key=_atom_key)), c * d),))
        result: dict[Monomial, int] = {}
        for a, c in self.terms:
            for b, d in other.terms:
                monomial = a if not b else b if not a else tuple(sorted(a + b, key=_atom_key))
                result[monomial] = result.get(monomial, 0) + c * d
        return from_terms(result)

    __rmul__ = __mul__

    def _has_remainders(self) -> bool:
        return any(isinstance(a, Binary) and a.operation == "%" for m, _ in self.terms for a in m)

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
"""Functions that simplify a quotient, remainder, minimum or maximum of two extents. They need proofs, which are in a
later layer, so `division` enters the four functions when the package is imported."""


def _inner_atom(atom: Atom) -> str:
    text = str(atom)
    return f"({text})" if isinstance(atom, Binary) and atom.operation in ("//", "%") else text


def _atom_key(atom: Atom) -> Key:
    return atom.key


def _monomial_key(term: tuple[Monomial, int]) -> tuple[int, list[Key]]:
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
    nonzero = [(m, c) for m, c in terms.items() if c]
    if not nonzero:
        return 0
    if len(nonzero) == 1:
        return Expression((nonzero[0],)) if nonzero[0][0] else nonzero[0][1]
    if recombine:
        for monomial, coefficient in nonzero:
            for position, atom in enumerate(monomial):
                if isinstance(atom, Binary) and atom.operation == "%":
                    joined = _recombined(dict(nonzero), monomial, coefficient, position)
                    if joined is not None:
                        return joined
    return Expression(tuple(sorted(nonzero, key=_monomial_key)))


def _recombined(terms: dict[Monomial, int], monomial: Monomial, coefficient: int, position: int) -> Extent | None:
    """Rewrites k * (x % d) + k * d * (x // d) to k * x if every term of the second summand is present."""
    atom = cast("Binary", monomial[position])
    rest = from_terms({monomial[:position] + monomial[position + 1 :]: coefficient}, recombine=False)
    quotient = rest * atom.right * OPERATIONS["//"](atom.left, atom.right)
    for other, factor in terms_of(quotient):
        have = terms.get(other, 0)
        if have == 0 or abs(have) < abs(factor) or (have > 0) != (factor > 0):
            return _recombined_with_remainder(terms, monomial, coefficient, atom, rest)
    remaining = _added(terms, ((m, -c) for m, c in terms_of(quotient)))
    remaining[monomial] -= coefficient
    return from_terms(_added(remaining, terms_of(rest * atom.left)))


def _recombined_with_remainder(
    terms: dict[Monomial, int], monomial: Monomial, coefficient: int, atom: Binary, rest: Extent
) -> Extent | None:
    """Rewrites k * (x % d) + k * d * y to k * z for a term y of one atom.

    y is (x // d) % e, and z is x % (d * e); or y is z // d for a remainder z with z % d == x % d.
    """
    high, quotient = rest * atom.right, OPERATIONS["//"](atom.left, atom.right)
    for other, factor in terms.items():
        for place, partner in enumerate(other):
            if not isinstance(partner, Binary) or partner is atom:
                continue
            joined: Extent | None = None
            if partner.operation == "%" and partner.left == quotient:
                joined = OPERATIONS["%"](atom.left, atom.right * partner.right)
            elif partner.operation == "//" and partner.right == atom.right:
                inner = as_atom(partner.left)
                is_same = isinstance(inner, Binary) and inner.operation == "%" and inner.left == atom.left
                joined = partner.left if is_same and _is_remainder(partner.left, atom) else None
            if joined is not None and from_terms({other[:place] + other[place + 1 :]: factor}, recombine=False) == high:
                remaining = {m: c for m, c in terms.items() if m not in (monomial, other)}
                return from_terms(_added(remaining, terms_of(rest * joined)))
    return None


def _is_remainder(dividend: Extent, atom: Binary) -> bool:
    """Whether `dividend % atom.right` is the atom."""
    return bool(OPERATIONS["%"](dividend, atom.right) == Expression((((atom,), 1),)))


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
    name = as_symbol(extent)
    assert name is not None
    return name


def as_atom(extent: Extent) -> Atom | None:
    """Returns the atom if `extent` is a single atom, else None."""
    if isinstance(extent, Expression) and len(extent.terms) == 1 and extent.terms[0][1] == 1:
        monomial = extent.terms[0][0]
        return monomial[0] if len(monomial) == 1 else None
    return None


def atom_of(operation: str, left: Extent, right: Extent) -> Extent:
    """Returns the expression of one quotient, remainder, minimum or maximum, without simplification."""
    return Expression((((Binary(operation, left, right),), 1),))


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
