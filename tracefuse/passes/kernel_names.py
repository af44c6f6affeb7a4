"""The names in a kernel: names that it reads, names that its statements introduce, and undefined names.

Must not know: ops, targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from tracefuse.kernel import kernel_ir as ir

_OF_A_VALUE = frozenset((ir.Let, ir.Declare, ir.Assign, ir.Accumulate))
"""The statements whose only expression is their value."""


def names_of_parameters(kernel: ir.Kernel) -> set[str]:
    """Returns the names that are defined before a kernel's body: parameters, grid indices, the thread index."""
    names = {parameter.name for parameter in kernel.parameters} | {axis.variable.name for axis in kernel.grid}
    return names if kernel.thread is None else names | {kernel.thread.name}


def undefined_names(kernel: ir.Kernel) -> list[str]:
    """Returns the names that the body reads and nothing defines."""
    defined = names_of_parameters(kernel) | set(names_introduced(kernel.body))
    return [name for name in dict.fromkeys(names_read(kernel.body)) if name not in defined]


def names_read(body: tuple[ir.Statement, ...]) -> Iterator[str]:
    """Yields the name of each variable and buffer, once per read. Combining a value over threads counts as a read."""
    for statement in ir.walk_statements(body):
        kind = type(statement)
        if kind in _OF_A_VALUE:
            yield from _names(statement.value)  # type: ignore[union-attr]
            continue
        match statement:
            case ir.Copy() | ir.StartCopy() | ir.Transpose() | ir.LoadMatrices() | ir.LoadPairs():
                yield statement.source.name
            case ir.MultiplyMatrices() | ir.MultiplyTiles():
                yield from (statement.left.name, statement.right.name)
            case ir.AddProducts(sums, left, right, scales=scales, replaces=replaces):
                yield from (left.buffer.name, right.buffer.name)
                yield from [] if scales is None else [scales.name]
                yield from [] if replaces else [sums.buffer.name]
            case ir.GroupReduce(variables, _, _, before):
                yield from (variable.name for variable in (*variables, *before))
        for expression in expressions_of(statement):
            yield from _names(expression)


def expressions_of(statement: ir.Statement) -> Iterator[ir.Expression]:
    """Yields the expressions of a statement itself, without the expressions of nested statements."""
    match statement:
        case ir.Let(_, value) | ir.Declare(_, value) | ir.Assign(_, value) | ir.Accumulate(_, _, value):
            yield value
        case ir.Prefetch(_, index):
            yield index
        case ir.Store(_, index, value, _, block):
            yield from (index, value) if block is None else (index, value, block)
        case (
            ir.Copy(_, index, _, source_index)
            | ir.StartCopy(_, index, _, source_index)
            | ir.LoadMatrices(_, index, _, source_index)
            | ir.LoadPairs(_, index, _, source_index)
        ):
            yield from (index, source_index)
            if isinstance(statement, ir.StartCopy) and statement.valid is not None:
                yield statement.valid
        case ir.MultiplyMatrices(_, index, _, left_index, _, right_index) | ir.MultiplyTiles(
            _, index, _, left_index, _, right_index
        ):
            yield from (index, left_index, right_index)
        case ir.AddProducts(_, _, _, rows, terms):
            yield from (*(matrix.start for matrix in statement.matrices), rows, terms)
        case ir.StorePair(_, index, low, high):
            yield from (index, low, high)
        case ir.Transpose(_, _, _, pitch, rows, columns, _, start):
            yield from (e for e in (pitch, rows, columns, start) if not isinstance(e, int | None))
        case ir.For(_, start, stop, step):
            yield from (start, stop, step)
        case ir.If(condition):
            yield condition
        case ir.Allocate(buffer):
            if not isinstance(buffer.size, int | None):
                yield buffer.size
        case ir.GroupReduce(_, combiner):
            yield from combiner.results
        case ir.EndBatch() | ir.AwaitCopies() | ir.AwaitProducts() | ir.Barrier() | ir.Comment():
            pass
        case _:
            assert_never(statement)


def _names(expression: ir.Expression) -> list[str]:
    """Returns the names in an expression, in order. Kernels have thousands of expressions."""
    names: list[str] = []
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ir.Variable):
            names.append(part.name)
        elif isinstance(part, ir.Call):
            waiting += part.arguments[::-1]
        elif isinstance(part, ir.Load):
            names.append(part.buffer.name)
            waiting.append(part.index)
        elif isinstance(part, ir.Cast):
            waiting.append(part.argument)
    return names


def names_introduced(body: tuple[ir.Statement, ...]) -> Iterator[str]:
    """Yields the names that the statements introduce, in order."""
    for statement in ir.walk_statements(body):
        match statement:
            case ir.Let(variable) | ir.Declare(variable) | ir.For(variable):
                yield variable.name
            case ir.Allocate(buffer):
                yield buffer.name
            case ir.GroupReduce(_, combiner):
                yield from (variable.name for variable in (*combiner.left, *combiner.right))
