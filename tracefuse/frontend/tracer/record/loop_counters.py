"""The counters of `for` loops whose bodies are being recorded once, and what holds in every iteration.

A counter is a symbol with a first and a last value, which are extents of the function and of the loops around it. A
relation that is linear in the counters holds in every iteration if it holds at the ends of their ranges.

Must not know: ops, fusions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import (
    Binary,
    Expression,
    Extent,
    Symbol,
    floordiv,
    is_nonnegative,
    is_positive_divisor,
    maximum,
    minimum,
    substitute,
    symbols,
    terms_of,
)

MOST_ATOMS = 4
"""The most quotients, remainders, minima and maxima whose ends are combined."""


class NotInEveryIteration(BaseException):
    """One recording of the body of a loop does not express all iterations. (User code must not catch it.)

    symbol: the counter on which that depends, if it is known.
    """

    def __init__(self, reason: str, symbol: Symbol | None = None) -> None:
        super().__init__(reason)
        self.symbol = symbol


@dataclass(frozen=True, slots=True)
class CounterRange:
    """A counter with its smallest and its largest value, in the iterations that reach the current line."""

    symbol: Symbol
    low: Extent
    high: Extent


class LoopCounters:
    """The counters of the loops around the current line, outermost first, and those of loops that have ended."""

    def __init__(self) -> None:
        self._open: list[tuple[CounterRange, ...]] = []
        self._limits: list[tuple[Extent, ...]] = []
        self._all: set[Symbol] = set()

    @property
    def ranges(self) -> tuple[CounterRange, ...]:
        """The ranges of the counters, outermost first."""
        return self._open[-1] if self._open else ()

    def follows(self, least: Extent) -> bool:
        """Whether an extent is at least 0 because a condition says so in the iterations that reach the current line."""
        return any(is_nonnegative(least - limit) for limits in self._limits for limit in limits)

    def open(self, symbol: Symbol, low: Extent, high: Extent, limits: Sequence[Extent] = ()) -> None:
        """Adds the counter of a loop, in whose body low <= symbol <= high. limits: what is at least 0 there."""
        self._all.add(symbol)
        ranges = (*self.ranges, CounterRange(symbol, low, high))
        for least in (high - low, *limits):
            ranges = _narrowed(ranges, least)
        self._open.append(ranges)
        self._limits.append(tuple(limits))

    def close(self) -> None:
        """Removes the counter that was added last."""
        self._open.pop()
        self._limits.pop()

    def occur_in(self, *extents: Extent) -> bool:
        """Whether extents depend on a counter. Raises NotInEveryIteration for one whose loop has ended."""
        if not self._all:
            return False
        counters = {counter for extent in extents for counter in symbols(extent) if counter in self._all}
        ended = counters - {counter.symbol for counter in self.ranges}
        if ended:
            raise NotInEveryIteration("a size that depends on the counter is read after the loop", ended.pop())
        return bool(counters)

    def innermost(self, *extents: Extent) -> Symbol | None:
        """Returns the counter of the innermost loop on which extents depend."""
        used = {counter for extent in extents for counter in symbols(extent)}
        return next((counter.symbol for counter in reversed(self.ranges) if counter.symbol in used), None)

    def are_linear(self, *extents: Extent) -> bool:
        """Whether `ends` gives the ends of extents themselves, not of a larger range."""
        return not any(_atoms_of(extent, one.symbol) for extent in extents for one in self.ranges)

    def ends(self, extents: Sequence[Extent], sides: bool = False) -> list[tuple[Extent, ...]]:
        """Returns extents at the ends of the ranges of all counters.

        A quotient, a remainder, a minimum or a maximum takes the ends of its own range, whatever the counters are.
        sides: whether minima and maxima are one of their two sides instead, in every iteration.
        Raises NotInEveryIteration if an extent is not linear in a counter and in these.
        """
        corners = {tuple(extents): None}
        for counter_range in reversed(self.ranges):
            following: dict[tuple[Extent, ...], None] = {}
            for entry in [each for corner in corners for each in _at_ends_of_atoms(corner, counter_range, sides)]:
                if not any(counter_range.symbol in symbols(extent) for extent in entry):
                    following[entry] = None
                    continue
                if not all(_is_linear(extent, counter_range.symbol) for extent in entry):
                    raise NotInEveryIteration(
                        "an expression is not linear in the counter of a loop", counter_range.symbol
                    )
                for end in (counter_range.low, counter_range.high):
                    following[tuple(substitute(extent, {counter_range.symbol: end}) for extent in entry)] = None
            corners = following
        return list(corners)


def _at_ends_of_atoms(extents: tuple[Extent, ...], one: CounterRange, sides: bool) -> list[tuple[Extent, ...]]:
    """Returns extents at the ends of the ranges of the atoms that depend on a counter otherwise than linearly."""
    entries = [extents]
    for _ in range(MOST_ATOMS):
        atom = next((atom for extent in entries[0] for atom in _atoms_of(extent, one.symbol)), None)
        ends = None if atom is None else _ends_of(atom, one)
        if atom is not None and sides and atom.operation in ("min", "max"):
            ends = (atom.left, atom.right)
        if atom is None or ends is None:
            break
        entries = [tuple(substitute(extent, {atom: end}) for extent in entry) for entry in entries for end in ends]
    return entries


def _atoms_of(extent: Extent, symbol: Symbol) -> list[Binary]:
    """Returns the factors of an extent, apart from symbols, that depend on a symbol."""
    atoms = (atom for monomial, _ in terms_of(extent) for atom in monomial if isinstance(atom, Binary))
    return [atom for atom in atoms if symbol in symbols(Expression((((atom,), 1),)))]


def _ends_of(atom: Binary, one: CounterRange) -> tuple[Extent, Extent] | None:
    """Returns the ends of the range of an atom over the values of a counter; None if they are not known."""
    if one.symbol in symbols(atom.right) or not _is_linear(atom.left, one.symbol):
        flipped = atom.operation in ("min", "max") and one.symbol not in symbols(atom.left)
        return _ends_of(Binary(atom.operation, atom.right, atom.left), one) if flipped else None
    if atom.operation == "%":
        return (0, atom.right - 1) if is_positive_divisor(atom.right) else None
    if atom.operation == "//" and not is_positive_divisor(atom.right):
        return None
    combine = {"//": floordiv, "min": minimum, "max": maximum}[atom.operation]
    low, high = (combine(substitute(atom.left, {one.symbol: end}), atom.right) for end in (one.low, one.high))
    return low, high


def _narrowed(ranges: tuple[CounterRange, ...], least: Extent) -> tuple[CounterRange, ...]:
    """Returns the ranges in the iterations in which `least` is at least 0."""
    for position in reversed(range(len(ranges) - 1)):
        counter_range = ranges[position]
        if counter_range.symbol not in symbols(least):
            continue
        coefficient = _coefficient(least, counter_range.symbol)
        if coefficient not in (1, -1):
            break
        limit = substitute(least, {counter_range.symbol: 0})
        low, high = counter_range.low, counter_range.high
        if coefficient == 1:
            low = maximum(low, -limit)
        else:
            high = minimum(high, limit)
        ranges = (*ranges[:position], CounterRange(counter_range.symbol, low, high), *ranges[position + 1 :])
        least = high - low
    return ranges


def _coefficient(extent: Extent, symbol: Symbol) -> int | None:
    """Returns the constant factor of a symbol; None if it has none, or occurs inside of a quotient or a minimum."""
    if not _is_linear(extent, symbol):
        return None
    coefficients = [factor for monomial, factor in terms_of(extent) if symbol in monomial]
    monomials = [monomial for monomial, _ in terms_of(extent) if symbol in monomial]
    return coefficients[0] if len(monomials) == 1 and len(monomials[0]) == 1 else None


def _is_linear(extent: Extent, symbol: Symbol) -> bool:
    """Whether a symbol occurs as a factor of degree 1 alone."""
    for monomial, _ in terms_of(extent):
        inner: Iterable[Symbol] = (
            operand
            for atom in monomial
            if not isinstance(atom, Symbol)
            for operand in symbols(Expression((((atom,), 1),)))
        )
        if monomial.count(symbol) > 1 or symbol in inner:
            return False
    return True
