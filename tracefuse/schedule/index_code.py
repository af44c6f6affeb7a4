"""Translates symbolic integers to index expressions over loop variables and kernel parameters.

A symbol that no loop binds becomes an integer parameter of the kernel; the host computes it for each call.
"""

from __future__ import annotations

from tracefuse.dtypes import DType
from tracefuse.ir.extents import Atom, Extent, Symbol, is_nonnegative, substitute
from tracefuse.kernel.kernel_ir import Constant, Expression, Variable, call

_OPERATIONS = {"//": "floordiv", "%": "mod", "min": "minimum", "max": "maximum"}
_OF_POSITIVE = {"//": "truncdiv", "%": "truncmod"}
"""Faster equivalents for a dividend that is proved nonnegative."""


class IndexCode:
    """Translates extents to expressions of one index type; collects the symbols that must be parameters.

    known: the values of symbols that a guard fixes; they become constants.
    """

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.parameters: dict[Symbol, Variable] = {}
        self.known: dict[Symbol, Extent] = {}
        self._bound: dict[Symbol, Variable] = {}

    def bind(self, index: Symbol, name: str) -> Variable:
        """Binds an index that the kernel defines to a new variable, and returns it."""
        variable = self._bound[index] = Variable(name, self.dtype)
        return variable

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
        positive = atom.operation in _OF_POSITIVE and is_nonnegative(atom.left)
        name = _OF_POSITIVE[atom.operation] if positive else _OPERATIONS[atom.operation]
        return call(name, self.code(atom.left), self.code(atom.right))
