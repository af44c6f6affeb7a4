"""Branches that read one array at different places become one read, at a selected place.

A padded, rolled or reflected array is a choice between reads of one array. A thread that branches issues the loads of
its branches one after another, and no load before the condition of an earlier one is known; a load at a selected place
needs no branch, so that the loads of several elements are on their way together. The elements read stay the same.

An `If` is replaced if its two bodies do the same except for the indices of loads of global buffers. The pass goes from
the innermost statement outwards, so that nested choices become one load. It concerns kernels with threads.

Must not know: ops, targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import replace
from tracefuse.kernel import kernel_ir as ir
from tracefuse.passes.kernel_names import names_introduced

Body: TypeAlias = tuple[ir.Statement, ...]


class _Different(Exception):
    """The branches do different work."""


def join_branches(kernel: ir.Kernel) -> ir.Kernel:
    """Replaces choices between loads of one array by one load."""
    if kernel.thread is None:
        return kernel
    return replace(kernel, body=_joined(kernel.body))


def _joined(body: Body) -> Body:
    """Returns the body with its choices joined, innermost first."""
    statements: list[ir.Statement] = []
    for statement in body:
        match statement:
            case ir.For():
                inside = _joined(statement.body)
                statements.append(statement if inside == statement.body else replace(statement, body=inside))
            case ir.If(condition, first, second):
                first, second = _joined(first), _joined(second)
                together = _together(condition, first, second)
                if together is None:
                    same = (first, second) == (statement.body, statement.orelse)
                    statements.append(statement if same else ir.If(condition, first, second))
                else:
                    statements.extend(together)
            case _:
                statements.append(statement)
    return tuple(statements)


def _together(condition: ir.Expression, first: Body, second: Body) -> Body | None:
    """Returns the statements that do the work of both branches, or None if there are none."""
    ones, others = (tuple(s for s in body if not isinstance(s, ir.Comment)) for body in (first, second))
    if not ones or len(ones) != len(others) or not any(_reads(s) for s in ones):
        return None
    join = _Join(condition, ones, others)
    try:
        result = tuple(join.statement(a, b) for a, b in zip(ones, others, strict=True))
    except _Different:
        return None
    comments = tuple(dict.fromkeys(s for s in (*first, *second) if isinstance(s, ir.Comment)))
    return (*comments, *result)


def _reads(statement: ir.Statement) -> bool:
    match statement:
        case ir.Let(_, value):
            return any(isinstance(e, ir.Load) and e.buffer.space == "global" for e in _parts(value))
        case ir.Copy(source=source):
            return source.space == "global"
    return False


def _parts(expression: ir.Expression) -> Iterator[ir.Expression]:
    yield expression
    match expression:
        case ir.Call(_, arguments):
            for argument in arguments:
                yield from _parts(argument)
        case ir.Cast(argument) | ir.Load(_, argument):
            yield from _parts(argument)


class _Join:
    """Joins the statements of two branches, in terms of the names of the first one."""

    def __init__(self, condition: ir.Expression, first: Sequence[ir.Statement], second: Sequence[ir.Statement]) -> None:
        self._condition = condition
        # Names that a branch introduces are not defined where the condition selects indices before it.
        self._inside = {*names_introduced(tuple(first)), *names_introduced(tuple(second))}
        self._names: dict[str, str] = {}

    def statement(self, first: ir.Statement, second: ir.Statement) -> ir.Statement:
        match first, second:
            case ir.Let(one, value), ir.Let(other, other_value) if one.dtype is other.dtype:
                joined = self._value(value, other_value)
                self._names[other.name] = one.name
                return ir.Let(one, joined)
            case ir.Declare(one, value), ir.Declare(other, other_value) if one.dtype is other.dtype:
                joined = self._value(value, other_value)
                self._names[other.name] = one.name
                return ir.Declare(one, joined)
            case ir.Assign(one, value), ir.Assign(other, other_value) if self._renamed(other.name) == one.name:
                return ir.Assign(one, self._value(value, other_value))
            case ir.Allocate(one), ir.Allocate(other) if one.space == "local" and one == replace(other, name=one.name):
                self._names[other.name] = one.name
                return first
            case ir.Copy(to, to_index, source, index, width, cache), ir.Copy(other) if (
                source.space == "global" and self._renamed(other.name) == to.name
                and replace(second, destination=to, source_index=index) == first
            ):  # fmt: skip
                return ir.Copy(to, to_index, source, self._selected(index, second.source_index), width, cache)
        raise _Different

    def _renamed(self, name: str) -> str:
        return self._names.get(name, name)

    def _value(self, first: ir.Expression, second: ir.Expression) -> ir.Expression:
        """Returns the expression that both branches compute; indices of loads may differ."""
        match first, second:
            case ir.Constant(), ir.Constant() if first == second and repr(first.value) == repr(second.value):
                return first
            case ir.Variable(name, dtype), ir.Variable(other, other_dtype) if (
                self._renamed(other) == name and dtype is other_dtype
            ):
                return first
            case ir.Load(buffer, index, cache), ir.Load(other_buffer, other_index, other_cache) if (
                cache == other_cache and replace(other_buffer, name=self._renamed(other_buffer.name)) == buffer
            ):
                if buffer.space == "global":
                    return ir.Load(buffer, self._selected(index, other_index), cache)
                return ir.Load(buffer, self._value(index, other_index), cache)
            case ir.Call(name, arguments, dtype), ir.Call(other, other_arguments, other_dtype) if (
                name == other and dtype is other_dtype and len(arguments) == len(other_arguments)
            ):
                pairs = zip(arguments, other_arguments, strict=True)
                return ir.Call(name, tuple(self._value(a, b) for a, b in pairs), dtype)
            case ir.Cast(argument, dtype), ir.Cast(other_argument, other_dtype) if dtype is other_dtype:
                return ir.Cast(self._value(argument, other_argument), dtype)
        raise _Different

    def _selected(self, first: ir.Expression, second: ir.Expression) -> ir.Expression:
        """Returns the index that the condition selects. It may not depend on what the branches compute."""
        if first == second:
            return first
        names = {e.name for side in (first, second) for e in _parts(side) if isinstance(e, ir.Variable)}
        loads = any(isinstance(e, ir.Load) for side in (first, second, self._condition) for e in _parts(side))
        if loads or not names.isdisjoint(self._inside) or first.dtype is not second.dtype:
            raise _Different
        return ir.call("select", self._condition, first, second)
