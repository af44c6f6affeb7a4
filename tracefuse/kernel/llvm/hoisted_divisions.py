"""Divisions of positions and extents before the loops that do not change them.

A division takes as long as twenty other instructions. LLVM's passes that move them out of loops take longer than all
others that a kernel in vectors needs, so the emitter moves them: before each loop it emits the divisions inside whose
operands the loop leaves alone. Divisions are defined for all operands, so they may run where the loop has no iteration.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.text_builder import LlvmValue

if TYPE_CHECKING:
    from tracefuse.kernel.llvm.statements import Emitter

DIVISIONS = frozenset(("floordiv", "mod", "truncdiv", "truncmod"))
_DEFINING = (ir.Let, ir.Declare, ir.Assign, ir.Accumulate, ir.For)


class HoistedDivisions:
    """The divisions that were emitted before the loops around a statement."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self._kernel = kernel
        # By identity of the bodies, which the kernel keeps. Loops in each other have the same divisions.
        self._found: dict[int, tuple[tuple[ir.Statement, ...], list[ir.Call]]] = {}
        self._values: dict[ir.Expression, LlvmValue] = {}

    @functools.cached_property
    def _divides(self) -> bool:
        return bool(self._divisions(self._kernel.body))

    def _divisions(self, body: tuple[ir.Statement, ...]) -> list[ir.Call]:
        """Return the divisions in statements, indices included, those inside of others first."""
        known = self._found.get(id(body))
        if known is None:
            found: list[ir.Call] = []
            for s in body:
                match s:
                    case ir.Let() | ir.Declare() | ir.Assign() | ir.Accumulate():
                        found += _divisions_of(s.value)
                    case ir.Store():
                        found += (*_divisions_of(s.index), *_divisions_of(s.value))
                    case ir.For():
                        found += (*_divisions_of(s.start), *_divisions_of(s.stop), *_divisions_of(s.step))
                        found += self._divisions(s.body)
                    case ir.If():
                        found += _divisions_of(s.condition)
                        found += (*self._divisions(s.body), *self._divisions(s.orelse))
            known = self._found[id(body)] = body, found
        return known[1]

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
        divisions = [e for e in self._divisions(body) if e not in outer]
        if not divisions:
            return outer
        self._values = dict(outer)
        changing = {variable.name, *_changed(body)}
        for e in divisions:
            if e not in self._values and _is_known(e, emitter, changing):
                self._values[e] = emitter.expression(e, index=emitter.is_plain_index(e))
        return outer

    def end_loop(self, outer: dict[ir.Expression, LlvmValue]) -> None:
        self._values = outer


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
        if isinstance(s, _DEFINING):
            yield s.variable.name


def _divisions_of(e: ir.Expression) -> list[ir.Call]:
    """Return the divisions of integers by others than constants in an expression."""
    return [
        part
        for part in _parts(e)
        if isinstance(part, ir.Call)
        and part.name in DIVISIONS
        and part.dtype.is_integer
        and not isinstance(part.arguments[1], ir.Constant)
    ]


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
