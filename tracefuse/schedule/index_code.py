"""Translates symbolic integers to index expressions over loop variables and kernel parameters.

A symbol that no loop binds becomes an integer parameter of the kernel; the host computes it for each call. So does the
inverse of a divisor that is a parameter: a GPU divides by it in 4 instructions, by the divisor in about 25.
"""

from __future__ import annotations

from tracefuse.dtypes import DType, int32, int64
from tracefuse.ir.extents import (
    Atom,
    Binary,
    Extent,
    Symbol,
    as_atom,
    is_nonnegative,
    maximum,
    substitute,
    symbol,
    symbol_of,
)  # fmt: skip
from tracefuse.kernel.kernel_ir import Buffer, Cast, Constant, Expression, Load, Variable, call

_OPERATIONS = {"//": "floordiv", "%": "mod", "min": "minimum", "max": "maximum"}
_OF_POSITIVE = {"//": "truncdiv", "%": "truncmod"}
"""Faster equivalents for a dividend that is proved nonnegative."""


class IndexCode:
    """Translates extents to expressions of one index type; collects the symbols that must be parameters.

    known: the values of symbols that a guard fixes; they become constants. inverts: divide positions of 32 bits by
    inverses. inverses: the parameters that are inverses of divisors, with their definitions. tabulated: quotients that
    the kernel has in tables, with their places.
    """

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.parameters: dict[Symbol, Variable] = {}
        self.known: dict[Symbol, Extent] = {}
        self.inverts = False
        self.inverses: dict[Symbol, Extent] = {}
        self.tabulated: dict[Atom, tuple[Buffer, Extent]] = {}
        self._bound: dict[Symbol, Variable] = {}

    def bind(self, index: Symbol, name: str) -> Variable:
        """Binds an index that the kernel defines to a new variable, and returns it."""
        variable = self._bound[index] = Variable(name, self.dtype)
        return variable

    def tabulate(self, quotient: Extent, table: Buffer, place: Extent) -> None:
        """Takes a quotient from a place of a table: LLVM divides by no variable in vectors."""
        atom = as_atom(substitute(quotient, self.known))
        if atom is not None:
            self.tabulated[atom] = (table, place)

    def code(self, extent: Extent) -> Expression:
        """Translates `extent` to an expression."""
        if self.known:
            extent = substitute(extent, self.known)
        if isinstance(extent, int):
            return Constant(extent, self.dtype)
        total: Expression | None = None
        # Positive terms first: this avoids a leading negation.
        for monomial, coefficient in sorted(extent.terms, key=lambda term: term[1] < 0):
            term = self._product(monomial, abs(coefficient))
            if total is None:
                total = call("neg", term) if coefficient < 0 else term
            else:
                total = call("sub" if coefficient < 0 else "add", total, term)
        assert total is not None
        return total

    def compare(self, relation: str, left: Extent, right: Extent) -> Expression:
        return call(relation, self.code(left), self.code(right))

    def _product(self, monomial: tuple[Atom, ...], coefficient: int) -> Expression:
        factors = [self._atom(atom) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.append(Constant(coefficient, self.dtype))
        result = factors[0]
        for factor in factors[1:]:
            result = call("mul", result, factor)
        return result

    def _atom(self, atom: Atom) -> Expression:
        if isinstance(atom, Symbol):
            bound = self._bound.get(atom)
            if bound is None:
                bound = self.parameters.setdefault(atom, Variable(atom.name, self.dtype))
            return bound
        if atom in self.tabulated:
            buffer, place = self.tabulated[atom]
            return Load(buffer, self.code(place))
        positive = atom.operation in _OF_POSITIVE and is_nonnegative(atom.left)
        inverse = self._inverse(atom) if positive else None
        if inverse is not None:
            left = self.code(atom.left)
            quotient = Cast(call("fast_divide", Cast(left, int64), inverse), self.dtype)
            if atom.operation == "//":
                return quotient
            return call("sub", left, call("mul", quotient, self.code(atom.right)))
        name = _OF_POSITIVE[atom.operation] if positive else _OPERATIONS[atom.operation]
        return call(name, self.code(atom.left), self.code(atom.right))

    def _inverse(self, atom: Binary) -> Variable | None:
        """Returns the parameter that is the inverse of a divisor that is a product of parameters, else None."""
        divisor = atom.right
        if not self.inverts or self.dtype is not int32 or isinstance(divisor, int) or len(divisor.terms) != 1:
            return None
        ((monomial, coefficient),) = divisor.terms
        if coefficient < 0 or not all(isinstance(a, Symbol) and a not in self._bound for a in monomial):
            return None
        factors = [*([str(coefficient)] if coefficient > 1 else []), *(str(a) for a in monomial)]
        inverse = symbol_of(symbol("_".join(["inverse", *factors]), minimum=1))
        self.inverses[inverse] = 2**62 // maximum(divisor, 1) + 1
        return self.parameters.setdefault(inverse, Variable(inverse.name, int64))
