"""Dead code elimination and short names, which make a finished kernel easier to read.

Templates emit everything that they may need, under names that a counter makes unique. The pass removes lets, loops
and local arrays that nothing reads. It then shortens each name to its stem if the stem is unique (`acc1`), and
numbers names that share a stem from 1 (`v0_1`, `v0_2`). Parameters keep their names. The kernel's results stay the
same, bit for bit.

Must not know: ops, targets.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TypeAlias

from segments.lazy_dataclasses import replace
from tracefuse.kernel import kernel_ir as ir
from tracefuse.passes.kernel_names import names_introduced, names_of_parameters, names_read

Body: TypeAlias = tuple[ir.Statement, ...]

_COUNTED = re.compile(r"_\d+(?=$|_re$|_im$)")
"""What the counter put behind a stem; the parts of complex numbers are named after it."""


def tidy(kernel: ir.Kernel) -> ir.Kernel:
    """Removes what nothing reads, and shortens names."""
    return _with_short_names(replace(kernel, body=_needed(kernel.body)))


# ---------------------------------------------------------------------------------------------------------------------
# what is read


def _needed(body: Body) -> Body:
    """Returns the statements whose effects or values are needed; iterates once per chain of unused values."""
    while True:
        read = Counter(names_read(body))
        needed = _kept(body, read)
        if needed == body:
            return body
        body = needed


def _kept(body: Body, read: Counter[str]) -> Body:
    statements: list[ir.Statement] = []
    for statement in body:
        match statement:
            case ir.Let(variable) | ir.Declare(variable) if not read[variable.name]:
                continue
            case ir.Allocate(buffer) if not read[buffer.name]:
                continue
            case (
                ir.Store(buffer) | ir.Copy(buffer) | ir.StartCopy(buffer) | ir.Transpose(buffer)
                | ir.LoadMatrices(buffer) | ir.LoadPairs(buffer) | ir.StorePair(buffer)
            ) if buffer.space != "global" and not read[buffer.name]:  # fmt: skip
                continue
            case ir.Assign(variable) | ir.Accumulate(variable) if not read[variable.name]:
                continue
            case ir.For():
                inside = _kept(statement.body, read)
                if _does_nothing(inside):
                    continue
                statement = statement if inside == statement.body else replace(statement, body=inside)
            case ir.If():
                inside, otherwise = _kept(statement.body, read), _kept(statement.orelse, read)
                if _does_nothing((*inside, *otherwise)):
                    continue
                if (inside, otherwise) != (statement.body, statement.orelse):
                    statement = replace(statement, body=inside, orelse=otherwise)
        statements.append(statement)
    return tuple(statements)


def _does_nothing(body: Body) -> bool:
    return all(isinstance(statement, ir.Comment) for statement in body)


# ---------------------------------------------------------------------------------------------------------------------
# names


def _with_short_names(kernel: ir.Kernel) -> ir.Kernel:
    fixed = names_of_parameters(kernel)
    introduced = [name for name in dict.fromkeys(names_introduced(kernel.body)) if name not in fixed]
    return replace(kernel, body=_Renaming(_short(introduced, fixed)).body(kernel.body))


def _short(introduced: list[str], fixed: set[str]) -> dict[str, str]:
    """Returns a unique new name for each name that the body introduces."""
    count = Counter(_COUNTED.sub("", name) for name in introduced)
    used, next_of = set(fixed), Counter[str]()
    names: dict[str, str] = {}
    for name in introduced:
        stem = _COUNTED.sub("", name)
        short = stem
        while short in used or (count[stem] > 1 and short == stem):
            next_of[stem] += 1
            short = _numbered(stem, next_of[stem])
        names[name] = short
        used.add(short)
    return names


def _numbered(stem: str, number: int) -> str:
    part = stem[-3:] if stem.endswith(("_re", "_im")) else ""
    return f"{stem.removesuffix(part)}_{number}{part}"


class _Renaming:
    """Renames variables and buffers in statements and expressions."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def variable(self, variable: ir.Variable) -> ir.Variable:
        short = self.names.get(variable.name, variable.name)
        return variable if short == variable.name else ir.Variable(short, variable.dtype)

    def variables(self, variables: tuple[ir.Variable, ...]) -> tuple[ir.Variable, ...]:
        return tuple(map(self.variable, variables))

    def buffer(self, buffer: ir.Buffer) -> ir.Buffer:
        short = self.names.get(buffer.name, buffer.name)
        return buffer if short == buffer.name else replace(buffer, name=short)

    def element(self, buffer: ir.Buffer, index: ir.Expression) -> tuple[ir.Buffer, ir.Expression]:
        return self.buffer(buffer), self.code(index)

    def matrix(self, matrix: ir.Matrix) -> ir.Matrix:
        return replace(matrix, buffer=self.buffer(matrix.buffer), start=self.code(matrix.start))

    def code(self, expression: ir.Expression) -> ir.Expression:
        if isinstance(expression, ir.Variable):
            return self.variable(expression)
        if isinstance(expression, ir.Call):
            return ir.Call(expression.name, tuple(map(self.code, expression.arguments)), expression.dtype)
        if isinstance(expression, ir.Load):
            return ir.Load(self.buffer(expression.buffer), self.code(expression.index), expression.cache)
        if isinstance(expression, ir.Cast):
            return ir.Cast(self.code(expression.argument), expression.dtype)
        return expression

    def body(self, body: Body) -> Body:
        return tuple(map(self.statement, body))

    def statement(self, statement: ir.Statement) -> ir.Statement:
        match statement:
            case ir.Let(variable, value) | ir.Declare(variable, value) | ir.Assign(variable, value):
                return type(statement)(self.variable(variable), self.code(value))
            case ir.Accumulate(variable, operation, value):
                return ir.Accumulate(self.variable(variable), operation, self.code(value))
            case ir.Store(buffer, index, value, cache, block):
                block_code = None if block is None else self.code(block)
                return ir.Store(self.buffer(buffer), self.code(index), self.code(value), cache, block_code)
            case ir.Prefetch(buffer, index, writes, elements):
                return ir.Prefetch(*self.element(buffer, index), writes, elements)
            case ir.Copy(to, to_index, source, source_index, width, cache):
                return ir.Copy(*self.element(to, to_index), *self.element(source, source_index), width, cache)
            case ir.StartCopy(to, to_index, source, source_index, width, count, steps, valid):
                places = (*self.element(to, to_index), *self.element(source, source_index))
                return ir.StartCopy(*places, width, count, steps, None if valid is None else self.code(valid))
            case ir.Transpose(to, to_pitch, source, from_pitch, rows, columns, width, start):
                pitch = from_pitch if isinstance(from_pitch, int) else self.code(from_pitch)
                sides = (self.code(rows), self.code(columns), width, None if start is None else self.code(start))
                return ir.Transpose(self.buffer(to), to_pitch, self.buffer(source), pitch, *sides)
            case ir.LoadPairs(to, to_index, source, source_index, step, aligned):
                return ir.LoadPairs(*self.element(to, to_index), *self.element(source, source_index), step, aligned)
            case ir.LoadMatrices(to, to_index, source, source_index, transposed):
                return ir.LoadMatrices(*self.element(to, to_index), *self.element(source, source_index), transposed)
            case ir.MultiplyMatrices(sums, at, left, left_at, right, right_at, dtype):
                factors = (*self.element(left, left_at), *self.element(right, right_at))
                return ir.MultiplyMatrices(*self.element(sums, at), *factors, dtype)
            case ir.MultiplyTiles(sums, at, left, left_at, right, right_at, _, _, transposed, replaces, awaited):
                factors = (*self.element(left, left_at), *self.element(right, right_at))
                product = ir.MultiplyTiles(*self.element(sums, at), *factors, statement.columns, statement.terms)
                return replace(product, transposed=transposed, replaces=replaces, awaited=awaited)
            case ir.AwaitProducts(completed, later):
                return ir.AwaitProducts(tuple(map(self.buffer, completed)), later)
            case ir.AddProducts(sums, left, right, rows, terms, _, _, _, scales):
                renamed_sums, renamed_left, renamed_right = map(self.matrix, (sums, left, right))
                return replace(
                    statement, sums=renamed_sums, left=renamed_left, right=renamed_right, rows=self.code(rows),
                    terms=self.code(terms), scales=None if scales is None else self.buffer(scales),
                )  # fmt: skip
            case ir.StorePair(buffer, index, low, high, dtype):
                return ir.StorePair(*self.element(buffer, index), self.code(low), self.code(high), dtype)
            case ir.For(variable, start, stop, step, kind, inside):
                bounds = (self.code(start), self.code(stop), self.code(step))
                return ir.For(self.variable(variable), *bounds, kind, self.body(inside))
            case ir.If(condition, inside, otherwise):
                return ir.If(self.code(condition), self.body(inside), self.body(otherwise))
            case ir.Allocate(buffer):
                return ir.Allocate(self.buffer(buffer))
            case ir.GroupReduce(variables, combiner, group, before):
                results = tuple(map(self.code, combiner.results))
                renamed = ir.Combiner(self.variables(combiner.left), self.variables(combiner.right), results)
                return ir.GroupReduce(self.variables(variables), renamed, group, self.variables(before))
            case ir.Barrier() | ir.EndBatch() | ir.AwaitCopies() | ir.Comment():
                return statement
