"""Index arithmetic that a vector loop does not change, emitted before the loop and hidden from LLVM.

LLVM reassociates the addresses of a loop with everything that it can see through: positions of tiles and rows, clipped
bounds, extents. Choosing among these forms (loop strength reduction) takes most of its time in kernels of several
loops, and gains nothing over one base and one index register. So the invariant terms of an address are added up before
the loop, and an empty asm statement hides how the sum was computed, like the bounds of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.text_builder import Builder, LlvmValue

Term: TypeAlias = tuple[ir.Expression, int]
"""A summand of an index and its sign, 1 or -1."""


def hide(builder: Builder, value: LlvmValue, hint: str) -> LlvmValue:
    """Emit an integer that LLVM knows nothing about; a literal stays as it is."""
    if not value.text.startswith("%"):
        return value
    return builder.emit(f'call {value.type} asm "", "=r,0"({value})', value.type, hint)


class HiddenInvariants:
    """The invariant sums of one vector loop. lines: the instructions that belong before the loop.

    is_index: whether an expression is index arithmetic that cannot overflow. emit: emits such an expression.
    """

    def __init__(
        self, loop: ir.For, builder: Builder, is_index: Callable[[ir.Expression], bool],
        emit: Callable[[ir.Expression], LlvmValue],
    ) -> None:  # fmt: skip
        self.lines: list[str] = []
        self._builder, self._is_index, self._emit = builder, is_index, emit
        inner = (s.variable.name for s in ir.walk_statements(loop.body) if isinstance(s, (ir.Let, ir.For)))
        self._changing = {loop.variable.name, *inner}
        self._sums: dict[tuple[Term, ...], LlvmValue] = {}

    def position(self, index: ir.Expression) -> LlvmValue:
        """Emit `index` in the loop: the hidden sum of its invariant terms, the changing ones, then its constant."""
        invariant, changing, constant = self._terms(index)
        if not changing or (not any(isinstance(term, ir.Call) for term, _ in invariant) and len(invariant) < 2):
            return self._emit(index)
        if invariant not in self._sums:
            self._builder.lines, self.lines = self.lines, self._builder.lines
            self._sums[invariant] = hide(self._builder, self._sum(invariant), "base")
            self._builder.lines, self.lines = self.lines, self._builder.lines
        total = self._sum(changing, self._sums[invariant])
        return total.binary("add", constant, "nsw ") if constant else total

    def _terms(self, index: ir.Expression) -> tuple[tuple[Term, ...], tuple[Term, ...], int]:
        """Return the invariant terms of a sum, the changing ones and the constant."""
        invariant: list[Term] = []
        changing: list[Term] = []
        constant, waiting = 0, [(index, 1)]
        while waiting:
            term, sign = waiting.pop()
            if isinstance(term, ir.Call) and term.name in ("add", "sub") and self._is_index(term):
                left, right = term.arguments
                waiting += [(right, sign if term.name == "add" else -sign), (left, sign)]
            elif isinstance(term, ir.Constant):
                constant += sign * int(term.value.real)
            else:
                (invariant if self._is_invariant(term) else changing).append((term, sign))
        return tuple(invariant), tuple(changing), constant

    def _is_invariant(self, term: ir.Expression) -> bool:
        """Return whether a term can be computed before the loop: products and sums of what is known there."""
        waiting = [term]
        while waiting:
            match waiting.pop():
                case ir.Variable(name):
                    if name in self._changing:
                        return False
                case ir.Call("mul" | "add" | "sub", arguments):
                    waiting += arguments
                case ir.Cast(argument):
                    waiting.append(argument)
                case ir.Constant():
                    pass
                case _:
                    return False
        return self._is_index(term)

    def _sum(self, terms: tuple[Term, ...], total: LlvmValue | None = None) -> LlvmValue:
        for term, sign in terms:
            value = self._emit(term)
            if total is None and sign > 0:
                total = value
            else:
                total = total if total is not None else self._builder.literal(0, value.type)
                total = total.binary("add" if sign > 0 else "sub", value, "nsw ")
        assert total is not None
        return total
