"""Divisions of positions and extents before the loops that do not change them.

A division takes as long as twenty other instructions. LLVM's passes that move them out of loops take longer than all
others that a kernel in vectors needs, so the emitter moves them: before each loop it emits the divisions inside whose
operands the loop leaves alone. Divisions are defined for all operands, so they may run where the loop has no iteration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.text_builder import LlvmValue

if TYPE_CHECKING:
    from tracefuse.kernel.llvm.statements import Emitter

DIVISIONS = frozenset(("floordiv", "mod", "truncdiv", "truncmod"))


class HoistedDivisions:
    """The divisions that were emitted before the loops around a statement."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self._divides = any(_is_division(e) for e in _expressions(kernel.body))
        self._values: dict[ir.Expression, LlvmValue] = {}

    def value(self, e: ir.Call) -> LlvmValue | None:
        """Return what a division was emitted as before, if it was."""
        return self._values.get(e) if self._values and e.name in DIVISIONS else None

    def begin_loop(
        self, emitter: Emitter, variable: ir.Variable, body: tuple[ir.Statement, ...]
    ) -> dict[ir.Expression, LlvmValue]:
        """Emit the divisions in a loop that is about to begin; return what `end_loop` takes."""
        outer = self._values
        if not self._divides:
            return outer
        self._values = dict(outer)
        changing = {variable.name, *_changed(body)}
        for e in _expressions(body):
            if _is_division(e) and e not in self._values and _is_known(e, emitter, changing):
                self._values[e] = emitter.expression(e, index=emitter.is_plain_index(e))
        return outer

    def end_loop(self, outer: dict[ir.Expression, LlvmValue]) -> None:
        self._values = outer


def _is_division(e: ir.Expression) -> bool:
    """Return whether an expression divides integers by others than constants."""
    return (
        isinstance(e, ir.Call)
        and e.name in DIVISIONS
        and e.dtype.is_integer
        and not isinstance(e.arguments[1], ir.Constant)
    )


def _is_known(e: ir.Expression, emitter: Emitter, changing: set[str]) -> bool:
    """Return whether an expression is known before a loop. changing: the names of what is not."""
    return all(
        isinstance(part, ir.Call | ir.Cast | ir.Constant)
        or (
            isinstance(part, ir.Variable)
            and part.name not in changing
            and isinstance(emitter.variables.get(part.name), LlvmValue)
        )
        for part in _parts(e)
    )


def _changed(body: tuple[ir.Statement, ...]) -> Iterator[str]:
    """Yield the names of the variables that statements define."""
    for s in ir.walk_statements(body):
        if isinstance(s, ir.Let | ir.Declare | ir.Assign | ir.Accumulate | ir.For):
            yield s.variable.name


def _expressions(body: tuple[ir.Statement, ...]) -> Iterator[ir.Expression]:
    """Yield the expressions in statements, indices included, those inside of others first."""
    for s in ir.walk_statements(body):
        match s:
            case ir.Let() | ir.Declare() | ir.Assign() | ir.Accumulate():
                yield from _parts(s.value)
            case ir.Store():
                yield from _parts(s.index)
                yield from _parts(s.value)
            case ir.For():
                for bound in (s.start, s.stop, s.step):
                    yield from _parts(bound)
            case ir.If():
                yield from _parts(s.condition)


def _parts(e: ir.Expression) -> Iterator[ir.Expression]:
    """Yield the parts of an expression, those inside of others first, with the indices of loads."""
    waiting, parts = [e], list[ir.Expression]()
    while waiting:
        part = waiting.pop()
        parts.append(part)
        match part:
            case ir.Call():
                waiting += part.arguments
            case ir.Cast():
                waiting.append(part.argument)
            case ir.Load():
                waiting.append(part.index)
    return reversed(parts)
