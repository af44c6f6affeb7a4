"""Symbolic integers: the extents of axes, and the index expressions made from them.

An extent is a Python int or an `Expression`: a polynomial with integer coefficients over atoms, kept in a normal form,
so that two expressions that are equal as polynomials are equal as objects (`n * 4 == 2 * n + 2 * n`). Atoms are symbols
(an extent of an input, a host scalar, a loop index), and quotients, remainders, minima and maxima of expressions.
A symbol knows its range: an extent is at least `minimum`, a loop index lies in [0, extent). From that follow the proofs
that let `(i * m + j) // m` become `i`.

Knows: integers. Must not know: tensors, operations, kernels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast


@dataclass(frozen=True, slots=True)
class Symbol:
    """A named integer. Two are equal where their names and their ranges are: proofs depend on both.

    id: the extent's (negative: -1 is the first axis of the first input) or the scalar value's number; None for a loop.
    extent: for a loop index, the number that it stays below. minimum: the smallest value.
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
    """An atom of two expressions: "//", "%" (both round to minus infinity), "min" or "max"."""

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
    """A polynomial over atoms that is not a constant. Immutable; the operators return ints where they can."""

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
        return _from_terms(_added(dict(self.terms), _terms(other)))

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
            for b, d in _terms(other):
                monomial = a if not b else b if not a else tuple(sorted(a + b, key=_atom_key))
                result[monomial] = result.get(monomial, 0) + c * d
        return _from_terms(result)

    __rmul__ = __mul__

    def __floordiv__(self, other: Extent) -> Extent:
        return floordiv(self, other)

    def __rfloordiv__(self, other: Extent) -> Extent:
        return floordiv(other, self)

    def __mod__(self, other: Extent) -> Extent:
        return mod(self, other)

    def __rmod__(self, other: Extent) -> Extent:
        return mod(other, self)

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


def _inner_atom(atom: Atom) -> str:
    text = str(atom)
    return f"({text})" if isinstance(atom, Binary) and atom.operation in ("//", "%") else text


def _atom_key(atom: Atom) -> tuple[str, str]:
    return atom.key


def _monomial_key(term: tuple[Monomial, int]) -> tuple[int, list[tuple[str, str]]]:
    # Higher degree first, constants last: the order that people write.
    return (-len(term[0]), [a.key for a in term[0]])


def _terms(extent: Extent) -> tuple[tuple[Monomial, int], ...]:
    return extent.terms if isinstance(extent, Expression) else (((), extent),) if extent else ()


def _added(result: dict[Monomial, int], terms: Iterable[tuple[Monomial, int]]) -> dict[Monomial, int]:
    for monomial, coefficient in terms:
        result[monomial] = result.get(monomial, 0) + coefficient
    return result


def _from_terms(terms: Mapping[Monomial, int], *, recombine: bool = True) -> Extent:
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
    """k * (x % d) + k * d * (x // d) is k * x: found where every term of the second summand is present."""
    atom = cast("Binary", monomial[position])
    rest = _from_terms({monomial[:position] + monomial[position + 1 :]: coefficient}, recombine=False)
    quotient = rest * atom.right * floordiv(atom.left, atom.right)
    for other, factor in _terms(quotient):
        have = terms.get(other, 0)
        if have == 0 or abs(have) < abs(factor) or (have > 0) != (factor > 0):
            return None
    remaining = _added(terms, ((m, -c) for m, c in _terms(quotient)))
    remaining[monomial] -= coefficient
    return _from_terms(_added(remaining, _terms(rest * atom.left)))


def symbol(name: str, id: int | None = None, *, extent: Extent | None = None, minimum: int = 0) -> Expression:
    """The expression that is one symbol."""
    return Expression((((Symbol(name, id, extent, minimum),), 1),))


def input_extent(position: int) -> Expression:
    """The extent with id -(position + 1): input axes are counted in the order of tensor and axis, from i0."""
    return symbol(f"i{position}", -(position + 1))


def scalar_extent(number: int) -> Expression:
    """The integer that the host scalar with this value number holds."""
    return symbol(f"s{number}", number, minimum=-(2**63))


def as_symbol(extent: Extent) -> Symbol | None:
    """The symbol that `extent` is, or None."""
    if isinstance(extent, Expression) and len(extent.terms) == 1:
        (monomial, coefficient) = extent.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0]
    return None


def _atom(operation: str, left: Extent, right: Extent) -> Extent:
    return Expression((((Binary(operation, left, right),), 1),))


def symbols(extent: Extent) -> Iterator[Symbol]:
    """Every symbol in `extent`, in order, with repetitions; not those of a loop symbol's own extent."""
    for monomial, _ in _terms(extent):
        for atom in monomial:
            if isinstance(atom, Symbol):
                yield atom
            else:
                yield from symbols(atom.left)
                yield from symbols(atom.right)


def divide_exactly(dividend: Extent, divisor: Extent) -> Extent | None:
    """dividend / divisor where that is a polynomial with integer coefficients, else None."""
    divisor_terms = _terms(divisor)
    if not divisor_terms:
        return None
    lead, lead_coefficient = divisor_terms[0]
    result: Extent = 0
    rest = dividend
    for _ in range(64):
        rest_terms = _terms(rest)
        if not rest_terms:
            return result
        monomial, coefficient = rest_terms[0]
        quotient = _monomial_quotient(monomial, lead)
        if quotient is None or coefficient % lead_coefficient:
            return None
        step = _from_terms({quotient: coefficient // lead_coefficient}, recombine=False)
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


@functools.lru_cache(maxsize=4096)
def _split(dividend: Extent, divisor: Extent) -> tuple[Extent, Extent]:
    """(q, r) with dividend = q * divisor + r, q taking every term that divides exactly."""
    whole = divide_exactly(dividend, divisor)
    if whole is not None:
        return whole, 0
    quotient: Extent = 0
    rest: Extent = 0
    for monomial, coefficient in _terms(dividend):
        term = _from_terms({monomial: coefficient}, recombine=False)
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


def floordiv(dividend: Extent, divisor: Extent) -> Extent:
    """dividend // divisor, rounding to minus infinity; the divisor must be positive where it is symbolic."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend // divisor
    return _divided(dividend, divisor)[0]


def mod(dividend: Extent, divisor: Extent) -> Extent:
    """dividend % divisor with the sign of the divisor, which must be positive where it is symbolic."""
    if isinstance(dividend, int) and isinstance(divisor, int):
        return dividend % divisor
    return _divided(dividend, divisor)[1]


@functools.lru_cache(maxsize=4096)
def _divided(dividend: Extent, divisor: Extent) -> tuple[Extent, Extent]:
    """(dividend // divisor, dividend % divisor)."""
    if divisor == 1:
        return dividend, 0
    if isinstance(divisor, int) and divisor < 1:
        if divisor == 0:  # the index of a loop with no iteration, divided by its extent
            return _atom("//", dividend, 0), _atom("%", dividend, 0)
        quotient, rest = _divided(-dividend, -divisor)
        return quotient, -rest
    quotient, rest = _split(dividend, divisor)
    if rest == 0 or (is_nonnegative(rest) and is_nonnegative(divisor - 1 - rest)):
        return quotient, rest
    if is_nonnegative(-rest - 1) and is_nonnegative(rest + divisor):
        return quotient - 1, rest + divisor
    reduced = _reduced(rest, divisor)
    if reduced is not None:
        return quotient + reduced[0], reduced[1]
    return quotient + _quotient_atom(rest, divisor), _remainder_atom(rest, divisor)


def _reduced(rest: Extent, divisor: Extent) -> tuple[Extent, Extent] | None:
    """Quotient and remainder with a common factor taken out: (f * x + r) // (f * d) is x // d for 0 <= r < f."""
    terms = _terms(divisor)
    if len(terms) != 1:
        return None
    for factor in _common_factors(rest, *terms[0]):
        high: Extent = 0
        low: Extent = 0
        for monomial, coefficient in _terms(rest):
            term = _from_terms({monomial: coefficient}, recombine=False)
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


def _of(dividend: int, divisor: Extent) -> tuple[Extent, Extent]:
    return floordiv(dividend, divisor), mod(dividend, divisor)


def _common_factors(rest: Extent, monomial: Monomial, coefficient: int) -> list[Extent]:
    """What a term of `rest` and the divisor's only term have in common, larger ones first; never 1 or negative."""
    found: dict[Extent, int] = {}
    for other, factor in _terms(rest):
        shared = list(other)
        common = [atom for atom in monomial if atom in shared and not shared.remove(atom)]  # type: ignore[func-returns-value]
        if not _others_nonnegative(tuple(common), -1):
            continue
        number = math.gcd(factor, coefficient)
        for size in {number, 1} if common else {number}:
            candidate = _from_terms({tuple(common): size}, recombine=False)
            if candidate != 1:
                found[candidate] = len(common) * 64 + size.bit_length()
    return sorted(found, key=lambda f: -found[f])


def _quotient_atom(rest: Extent, divisor: Extent) -> Extent:
    """rest // divisor as an atom; what is divided by a positive number twice is divided by the product."""
    inner = _single(rest)
    if isinstance(inner, Binary) and inner.operation == "//" and is_nonnegative(inner.right - 1):
        return floordiv(inner.left, inner.right * divisor)
    if isinstance(rest, Expression) and isinstance(divisor, int):
        # (x // a + k) // b is (x + k * a) // (a * b).
        for monomial, coefficient in rest.terms:
            atom = monomial[0] if len(monomial) == 1 and coefficient == 1 else None
            if isinstance(atom, Binary) and atom.operation == "//" and isinstance(atom.right, int) and atom.right > 0:
                others = rest - _from_terms({monomial: 1}, recombine=False)
                if isinstance(others, int):
                    return floordiv(atom.left + others * atom.right, atom.right * divisor)
    return _atom("//", rest, divisor)


def _remainder_atom(rest: Extent, divisor: Extent) -> Extent:
    """rest % divisor as an atom; a factor that is itself a remainder, by a multiple of the divisor, is its dividend."""
    for monomial, coefficient in _terms(rest):
        for position, atom in enumerate(monomial):
            if isinstance(atom, Binary) and atom.operation == "%" and divide_exactly(atom.right, divisor) is not None:
                term = _from_terms({monomial: coefficient}, recombine=False)
                others = _from_terms({monomial[:position] + monomial[position + 1 :]: coefficient}, recombine=False)
                return mod(rest - term + others * atom.left, divisor)
    return _atom("%", rest, divisor)


def _single(extent: Extent) -> Atom | None:
    """The atom that `extent` is, if it is one."""
    if isinstance(extent, Expression) and len(extent.terms) == 1 and extent.terms[0][1] == 1:
        monomial = extent.terms[0][0]
        return monomial[0] if len(monomial) == 1 else None
    return None


def minimum(a: Extent, b: Extent) -> Extent:
    """min(a, b)."""
    return _bound("min", a, b, lambda left, right: is_nonnegative(right - left))


def maximum(a: Extent, b: Extent) -> Extent:
    """max(a, b)."""
    return _bound("max", a, b, lambda left, right: is_nonnegative(left - right))


def _bound(operation: str, a: Extent, b: Extent, wins: Callable[[Extent, Extent], bool]) -> Extent:
    """The minimum or maximum: the one that is proved to win, in chains too."""
    if wins(a, b):
        return a
    if wins(b, a):
        return b
    for chain, other in ((a, b), (b, a)):
        atom = _single(chain)
        if isinstance(atom, Binary) and atom.operation == operation:
            for kept, dropped in ((atom.left, atom.right), (atom.right, atom.left)):
                if wins(other, dropped):
                    return _bound(operation, kept, other, wins)
    return _atom(operation, a, b)


def ceildiv(dividend: Extent, divisor: Extent) -> Extent:
    """dividend / divisor rounded up, for a positive divisor."""
    return floordiv(dividend + divisor - 1, divisor)


def product(extents: Iterable[Extent]) -> Extent:
    """The product; 1 of none."""
    result: Extent = 1
    for extent in extents:
        result = result * extent
    return result


# ---------------------------------------------------------------------------------------------------------------------
# proofs


def is_nonnegative(extent: Extent) -> bool:
    """Whether `extent` is proved to be >= 0 for every value that its symbols can take. False means "not proved"."""
    if isinstance(extent, int):
        return extent >= 0
    return _is_nonnegative(extent)


@functools.lru_cache(maxsize=16384)
def _is_nonnegative(extent: Expression) -> bool:
    lowered: Extent = extent
    ranges: list[Symbol] = []
    # Loop indices first (their extents may be symbols): each is linear in practice, so its worst case is an end.
    for _ in range(16):
        loop = next((s for s in symbols_outside(lowered) if s.extent is not None), None)
        if loop is None:
            break
        coefficient, rest = _linear(lowered, loop)
        if coefficient is None:
            return False
        own = as_symbol(cast("Extent", loop.extent))
        ranges += [own] if own is not None and own.minimum == 0 else []
        if is_nonnegative(coefficient):
            lowered = rest
        elif is_nonnegative(-coefficient):
            lowered = rest + coefficient * (cast("Extent", loop.extent) - 1)
        else:
            return False
    if ranges and all(s.extent is None for s in symbols(lowered)):
        # Where there is an index, its loop has an iteration: read the extent as one more than itself.
        lowered = substitute(lowered, {s: Expression((((s,), 1),)) + 1 for s in ranges})
    return _all_terms_nonnegative(lowered)


def symbols_outside(extent: Extent) -> Iterator[Symbol]:
    """The symbols that are factors of a term, not inside a quotient, remainder, minimum or maximum."""
    for monomial, _ in _terms(extent):
        for atom in monomial:
            if isinstance(atom, Symbol):
                yield atom


def _linear(extent: Extent, loop: Symbol) -> tuple[Extent | None, Extent]:
    coefficient: Extent = 0
    rest: Extent = 0
    for monomial, factor in _terms(extent):
        count = monomial.count(loop)
        if count > 1:
            return None, 0
        term = _from_terms({tuple(a for a in monomial if a != loop): factor}, recombine=False)
        if count:
            coefficient = coefficient + term
        else:
            rest = rest + term
    return coefficient, rest


def _lower_bound(atom: Atom) -> int | None:
    """A constant that the atom never falls below, or None."""
    if isinstance(atom, Symbol):
        return atom.minimum
    if atom.operation == "%":
        return 0 if is_nonnegative(atom.right - 1) else None
    if atom.operation == "//":
        return 0 if is_nonnegative(atom.left) and is_nonnegative(atom.right - 1) else None
    left, right = (is_nonnegative(side) for side in (atom.left, atom.right))
    return 0 if (left and right) or (atom.operation == "max" and (left or right)) else None


def _all_terms_nonnegative(extent: Extent) -> bool:
    """Replaces each atom by its bound plus something >= 0 and looks whether all coefficients are >= 0."""
    shifted: Extent = 0
    for monomial, coefficient in _terms(extent):
        term: Extent = coefficient
        for atom in monomial:
            bound = _lower_bound(atom)
            if bound is None or bound < 0:
                return _without_an_atom(extent)
            term = term * (Expression((((atom,), 1),)) + bound)
        shifted = shifted + term
    return all(c >= 0 for _, c in _terms(shifted)) or _without_an_atom(extent)


MOST_ATOMS = 8
"""An expression with more quotients, remainders, minima and maxima than these is not proved one by one: each may double
the work. The limit is on the expression alone, so that what is proved never depends on what was asked before."""


def _without_an_atom(extent: Extent) -> bool:
    """One more try: a quotient, remainder, minimum or maximum replaced by what it lies between."""
    if sum(isinstance(a, Binary) for m, _ in _terms(extent) for a in m) > MOST_ATOMS:
        return False
    for monomial, coefficient in _terms(extent):
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Binary):
                continue
            if atom.operation in ("min", "max"):
                return _both_sides(extent, atom)
            ends = _ends(atom, coefficient > 0)
            if ends and _others_nonnegative(monomial, position):
                rest = extent - _from_terms({monomial: coefficient}, recombine=False)
                others = _from_terms({monomial[:position] + monomial[position + 1 :]: coefficient}, recombine=False)
                return any(is_nonnegative(rest * scale + others * end) for scale, end in ends)
    return False


def _both_sides(extent: Extent, atom: Binary) -> bool:
    """A minimum or maximum is one of its sides: whichever it is, or the one that is the worse of the two."""
    sides = [is_nonnegative(substitute(extent, {atom: side})) for side in (atom.left, atom.right)]
    if all(sides) or not any(sides):
        return all(sides)
    # min(a, b) with a minus sign is at most either side below zero; max(a, b) with a plus sign at least either side.
    # Inside another atom the sign says nothing, and what was proved of a side is not the worst case.
    wanted = -1 if atom.operation == "min" else 1
    for monomial, coefficient in _terms(extent):
        if any(isinstance(a, Binary) and a != atom and _contains(a, atom) for a in monomial):
            return False
        if atom in monomial:
            others_are_fine = monomial.count(atom) == 1 and _others_nonnegative(monomial, monomial.index(atom))
            if coefficient * wanted < 0 or not others_are_fine:
                return False
    return True


def _contains(outer: Atom, inner: Atom) -> bool:
    """Whether `inner` is `outer` or stands somewhere inside it."""
    if outer == inner or isinstance(outer, Symbol):
        return outer == inner
    return any(_contains(a, inner) for side in (outer.left, outer.right) for m, _ in _terms(side) for a in m)


def _others_nonnegative(monomial: Monomial, position: int) -> bool:
    bounds = [_lower_bound(atom) for k, atom in enumerate(monomial) if k != position]
    return all(bound is not None and bound >= 0 for bound in bounds)


def _ends(atom: Binary, lowest: bool) -> list[tuple[Extent, Extent]]:
    """(scale, end) with scale > 0 such that scale * atom is at least (or at most) end; a scale has no such atom."""
    if not is_nonnegative(atom.right - 1):
        return []
    natural = is_nonnegative(atom.left)
    if atom.operation == "%":
        return [(1, 0)] if lowest else [(1, atom.right - 1), *([(1, atom.left)] if natural else [])]
    ends = [(1, 0)] if lowest and natural else []
    if any(isinstance(a, Binary) for m, _ in _terms(atom.right) for a in m):
        return cast("list[tuple[Extent, Extent]]", ends if lowest else [(1, atom.left)] if natural else [])
    return [*ends, (atom.right, atom.left - atom.right + 1)] if lowest else [(atom.right, atom.left)]


# ---------------------------------------------------------------------------------------------------------------------
# substitution and evaluation


def substitute(extent: Extent, values: Mapping[Any, Extent]) -> Extent:
    """`extent` with atoms replaced; everything is simplified again."""
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


_OPERATIONS: dict[str, Callable[[Extent, Extent], Extent]] = {
    "//": floordiv,
    "%": mod,
    "min": minimum,
    "max": maximum,
}


def _substitute_atom(atom: Atom, values: Mapping[Atom, Extent]) -> Extent:
    found = values.get(atom)
    if found is not None:
        return found
    if isinstance(atom, Symbol):
        return Expression((((atom,), 1),))
    return _OPERATIONS[atom.operation](substitute(atom.left, values), substitute(atom.right, values))


def evaluate(extent: Extent, value_of: Mapping[int, int]) -> int:
    """The integer that `extent` is where its symbols' ids have the given values; KeyError for one that is missing."""
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
                term *= cast("int", _OPERATIONS[atom.operation](left, right))
        total += term
    return total


def python_text(extent: Extent, name_of: Callable[[Symbol], str]) -> str:
    """A Python expression for `extent`, each symbol spelled by `name_of`."""
    if isinstance(extent, int):
        return f"({extent})" if extent < 0 else str(extent)
    parts = []
    for monomial, coefficient in extent.terms:
        factors = [_python_atom(atom, name_of) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, f"({coefficient})")
        parts.append("*".join(factors))
    return parts[0] if len(parts) == 1 and _single(extent) is not None else f"({' + '.join(parts)})"


def _python_atom(atom: Atom, name_of: Callable[[Symbol], str]) -> str:
    if isinstance(atom, Symbol):
        return name_of(atom)
    left, right = python_text(atom.left, name_of), python_text(atom.right, name_of)
    return (
        f"{atom.operation}({left}, {right})"
        if atom.operation in ("min", "max")
        else f"({left} {atom.operation} {right})"
    )
