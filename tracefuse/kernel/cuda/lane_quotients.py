"""Consecutive float divisions in CUDA C++: one range check for all of them instead of a branch in each.

A float `/` refines a reciprocal in three multiply-add steps and branches to a slow path near the ends of the range. For
consecutive divisions, the fast path computes all of them, and the slow path recomputes all if any operand or quotient
is zero, infinite, NaN, or very small or large. Both paths round to nearest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracefuse.dtypes import float32
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.group_reductions import Writer


def quotients(body: Sequence[ir.Statement]) -> list[ir.Let]:
    """Return the independent float divisions at the start of a body, or none if there are fewer than two."""
    divisions: list[ir.Let] = []
    for statement in body:
        if not isinstance(statement, ir.Let) or not _is_quotient(statement.value):
            break
        if not {s.variable.name for s in divisions}.isdisjoint(_names(statement.value)):
            break
        divisions.append(statement)
    return divisions if len(divisions) > 1 else []


def write_quotients(writer: Writer, together: Sequence[ir.Let]) -> None:
    """Write the divisions that `quotients` returned."""
    printer = writer.printer
    operands = [[_operand(writer, s, part) for part in _arguments(s)] for s in together]
    names = [writer.name(s.variable) for s in together]
    shared = len({divisor for _, divisor in operands}) == 1
    tests = [f"{printer.use('is_plain')}({name})" for name in names]
    if shared:
        tests.insert(0, f"{printer.use('is_plain_divisor')}({operands[0][1]})")
    else:
        tests += [f"is_plain({numerator})" for numerator, _ in operands]
    for name, (numerator, divisor) in zip(names, operands, strict=True):
        writer.line(f"float {name} = {printer.use('quotient')}({numerator}, {divisor});")
    with writer.block(f"if (!({' && '.join(tests)}))"):
        for name, (numerator, divisor) in zip(names, operands, strict=True):
            writer.line(f"{name} = {printer.use('divide')}({numerator}, {divisor});")


def _is_quotient(value: ir.Expression) -> bool:
    return isinstance(value, ir.Call) and value.name == "div" and value.dtype is float32


def _arguments(statement: ir.Let) -> tuple[ir.Expression, ...]:
    assert isinstance(statement.value, ir.Call)
    return statement.value.arguments


def _operand(writer: Writer, statement: ir.Let, operand: ir.Expression) -> str:
    """Return the text of an operand, bound to a name if repeating it would recompute it."""
    text = writer.printer.value(operand)
    if isinstance(operand, ir.Variable | ir.Constant):
        return str(text)
    name = writer.fresh(f"{writer.name(statement.variable)}_part")
    writer.line(f"const float {name} = {text};")
    return name


def _names(expression: ir.Expression) -> Iterator[str]:
    """Yield every variable that an expression reads, including those in indices."""
    match expression:
        case ir.Variable(name):
            yield name
        case ir.Call(_, arguments):
            for argument in arguments:
                yield from _names(argument)
        case ir.Cast(argument) | ir.Load(_, argument):
            yield from _names(argument)
