"""Vector loops from zero on, whose invariant index arithmetic is emitted before the loop and hidden from LLVM.

LLVM reassociates the addresses of a loop with everything that it can see through: positions of tiles and rows, clipped
bounds, extents. Choosing among these forms (loop strength reduction) takes most of its time in kernels of several
loops, and gains nothing over one base and one index register. So a loop counts from zero, the invariant terms of an
address are added up before it, with its start, and an empty asm statement hides how each sum was computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator
from typing import TypeAlias

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.text_builder import Builder, LlvmValue

Terms: TypeAlias = tuple[tuple[ir.Expression, int], ...]
"""Summands of an index and how often each counts."""

_Parts: TypeAlias = tuple[ir.Expression, int, int, Terms, Terms]
"""An index, how often the loop's variable counts in it, its constant, and its invariant and changing terms."""


def hide(builder: Builder, value: LlvmValue, hint: str) -> LlvmValue:
    """Emit an integer that LLVM knows nothing about; a literal stays as it is.

    The attributes say that what follows is reached: else LLVM moves no division out of a loop around the statement.
    """
    if not value.text.startswith("%"):
        return value
    call = f'call {value.type} asm "", "=r,0"({value}) nounwind willreturn memory(none)'
    return builder.emit(call, value.type, hint)


def is_invariant(e: ir.Expression, names: Container[str]) -> bool:
    """Return whether an expression depends on constants and on the variables `names` alone."""
    if isinstance(e, ir.Call):
        return all(is_invariant(argument, names) for argument in e.arguments)
    if isinstance(e, ir.Cast):
        return is_invariant(e.argument, names)
    return isinstance(e, ir.Constant) or (isinstance(e, ir.Variable) and e.name in names)


class HiddenInvariants:
    """The invariant sums of one vector loop of step 1 from zero on. lines: the instructions that belong before it.

    is_index: whether an expression is index arithmetic that cannot overflow. emit: emits such an expression. hides:
    whether LLVM's passes over loops see the loop.
    """

    def __init__(
        self, loop: ir.For, builder: Builder, is_index: Callable[[ir.Expression], bool],
        emit: Callable[[ir.Expression], LlvmValue], *, hides: bool = True,
    ) -> None:  # fmt: skip
        self.lines: list[str] = []
        self.counter: LlvmValue | None = None
        self._hides = hides
        self._loop, self._builder, self._is_index, self._emit = loop, builder, is_index, emit
        inner = (s.variable.name for s in ir.walk_statements(loop.body) if isinstance(s, (ir.Let, ir.For)))
        self._changing = {loop.variable.name, *inner}
        self._sums: dict[Terms, LlvmValue] = {}
        self._known: dict[int, _Parts] = {}

    def position(self, index: ir.Expression) -> LlvmValue:
        """Emit `index` in the loop: the hidden sum of its invariant terms, the changing ones, then its constant."""
        _, steps, constant, invariant, changing = self._parted(index)
        total = self.counter if steps == 1 else None
        if total is None and not changing:
            return self._emit(index)
        if invariant:
            base = self._sum_before(invariant)
            total = base if total is None else base.binary("add", total, "nsw ")
        total = self._sum(changing, total)
        return total.binary("add", constant, "nsw ") if constant else total

    def step(self, index: ir.Expression) -> int | None:
        """Return by how many positions an index grows with each iteration; None if that is not known."""
        _, steps, _, _, changing = self._parted(index)
        return None if any(term != self._loop.variable for term, _ in changing) else steps

    def is_data(self, name: str) -> bool:
        """Return whether the loop defines a variable that is not its own."""
        return name in self._changing and name != self._loop.variable.name

    def terms(self, index: ir.Expression) -> tuple[Terms, int]:
        """Return the summands of an index but for its constant, and that."""
        _, steps, constant, invariant, changing = self._parted(index)
        return (*invariant, *changing, (self._loop.variable, steps)), constant

    def _parted(self, index: ir.Expression) -> _Parts:
        """Return the parts of an index, which is asked for them many times."""
        if id(index) not in self._known:
            counts: Counter[ir.Expression] = Counter()
            constant = self._count_terms(index, 1, counts)
            steps = counts.pop(self._loop.variable, 0)
            if steps == 1:
                constant += self._count_terms(self._loop.start, 1, counts)
            elif steps:
                counts[self._loop.variable] = steps
            terms = [(term, count) for term, count in counts.items() if count]
            invariant = tuple(t for t in terms if self._is_invariant(t[0]))
            changing = tuple(t for t in terms if t not in invariant)
            self._known[id(index)] = index, steps, constant, invariant, changing
        return self._known[id(index)]

    def _count_terms(self, index: ir.Expression, sign: int, counts: Counter[ir.Expression]) -> int:
        """Add the terms of a sum to `counts`; return its constant."""
        constant, waiting = 0, [(index, sign)]
        while waiting:
            term, sign = waiting.pop()
            if isinstance(term, ir.Call) and term.name in ("add", "sub") and self._is_index(term):
                left, right = term.arguments
                waiting += [(right, sign if term.name == "add" else -sign), (left, sign)]
            elif isinstance(term, ir.Constant):
                constant += sign * int(term.value.real)
            else:
                counts[term] += sign
        return constant

    def _is_invariant(self, term: ir.Expression) -> bool:
        """Return whether a term can be computed before the loop: index arithmetic on what is known there."""
        names = (e.name for e in parts(term) if isinstance(e, ir.Variable))
        return self._is_index(term) and self._changing.isdisjoint(names)

    def _sum_before(self, terms: Terms) -> LlvmValue:
        if terms not in self._sums:
            self._builder.lines, self.lines = self.lines, self._builder.lines
            total = self._sum(terms, None)
            self._sums[terms] = hide(self._builder, total, "base") if self._hides else total
            self._builder.lines, self.lines = self.lines, self._builder.lines
        return self._sums[terms]

    def _sum(self, terms: Terms, total: LlvmValue | None) -> LlvmValue:
        for term, count in terms:
            value = self._emit(term)
            for _ in range(abs(count)):
                if total is None and count > 0:
                    total = value
                else:
                    total = total if total is not None else self._builder.literal(0, value.type)
                    total = total.binary("add" if count > 0 else "sub", value, "nsw ")
        assert total is not None
        return total


def parts(expression: ir.Expression) -> Iterator[ir.Expression]:
    """Yield the parts of an expression, itself included, without the indices of loads."""
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        yield part
        match part:
            case ir.Call():
                waiting += part.arguments
            case ir.Cast():
                waiting.append(part.argument)
