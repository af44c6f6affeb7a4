"""Lowers kernels of complex numbers to kernels of real numbers: every complex value becomes a pair of variables.

Templates treat complex64 and complex128 like other types. `split_complex` then splits each variable in two (`v3_re`,
`v3_im`), turns each buffer into one of twice as many reals and each access into two adjacent ones, and expands each
function to its program in `complex_functions`. The emitters and the interpreter therefore handle real numbers only.

Must not know: ops, targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import replace
from tracefuse.errors import InternalError
from tracefuse.ir.fusion import Fusion
from tracefuse.kernel.kernel_ir import (
    Accumulate,
    Allocate,
    Assign,
    Buffer,
    Call,
    Cast,
    Combiner,
    Constant,
    Copy,
    Declare,
    Expression,
    For,
    GroupReduce,
    If,
    Kernel,
    Let,
    Load,
    Statement,
    Store,
    Transpose,
    Variable,
    call,
    walk_statements,
)
from tracefuse.kernel.scalar_code import Term, apply, constant, convert, is_trivial
from tracefuse.passes.complex_functions import FUNCTIONS, numbers
from tracefuse.passes.kernel_names import expressions_of

Pair: TypeAlias = tuple[Expression, Expression]


def has_complex(fusion: Fusion) -> bool:
    """Whether a kernel of the fusion uses complex numbers."""
    return any(value.dtype.is_complex for value in fusion.values.values()) or any(
        node.compute.is_complex for node in fusion.nodes
    )


def split_complex(kernel: Kernel) -> Kernel:
    """Computes with the real and imaginary parts of complex numbers.

    A complex scalar parameter becomes two, real part first.
    """
    if not _has_complex_numbers(kernel):
        return kernel
    parameters: list[Buffer | Variable] = []
    for parameter in kernel.parameters:
        parameters += [_parts_buffer(parameter)] if isinstance(parameter, Buffer) else _variables(parameter)
    return replace(kernel, parameters=tuple(parameters), body=_Splitter().body(kernel.body))


def _has_complex_numbers(kernel: Kernel) -> bool:
    """Whether a parameter or an expression is complex. Every complex local variable or array implies one of them."""
    if any(parameter.dtype.is_complex for parameter in kernel.parameters):
        return True
    statements = walk_statements(kernel.body)
    return any(_is_complex_inside(e) for statement in statements for e in expressions_of(statement))


def _is_complex_inside(expression: Expression) -> bool:
    """Whether an expression or one of its subexpressions is complex."""
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if part.dtype.is_complex:
            return True
        if isinstance(part, Call):
            waiting += part.arguments
        elif isinstance(part, Load):
            waiting.append(part.index)
        elif isinstance(part, Cast):
            waiting.append(part.argument)
    return False


def _variables(variable: Variable) -> tuple[Variable, ...]:
    """Returns a real variable itself, or the variables of a complex variable's parts."""
    if not variable.dtype.is_complex:
        return (variable,)
    part = variable.dtype.real
    return Variable(f"{variable.name}_re", part), Variable(f"{variable.name}_im", part)


def _parts_buffer(buffer: Buffer) -> Buffer:
    """Returns the buffer as reals. Complex numbers in memory are only known to be aligned like their parts."""
    if not buffer.dtype.is_complex:
        return buffer
    part, size = buffer.dtype.real, buffer.size
    if isinstance(size, int):
        size *= 2
    elif size is not None:
        size = _doubled(size)
    alignment = buffer.alignment if buffer.alignment > buffer.dtype.itemsize else min(buffer.alignment, part.itemsize)
    return replace(buffer, dtype=part, size=size, alignment=alignment)


def _doubled(index: Expression) -> Expression:
    if isinstance(index, Constant):
        return Constant(2 * int(index.value.real), index.dtype)
    return call("mul", index, Constant(2, index.dtype))


def _without_names(statements: Sequence[Statement], results: Sequence[Expression]) -> tuple[Expression, ...]:
    """Returns the results with the value of each variable that the statements name in its place."""
    values: dict[Variable, Expression] = {}

    def substituted(expression: Expression) -> Expression:
        match expression:
            case Variable():
                return values.get(expression, expression)
            case Call(name, arguments, dtype):
                return Call(name, tuple(map(substituted, arguments)), dtype)
            case Cast(argument, dtype):
                return Cast(substituted(argument), dtype)
        return expression

    for statement in statements:
        if not isinstance(statement, Let):
            raise InternalError("a combiner of complex numbers needs statements other than names of values")
        values[statement.variable] = substituted(statement.value)
    return tuple(map(substituted, results))


class _Splitter:
    """Rewrites statements. A value that must be computed only once gets a name before the statement."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []
        self._counter = 0

    def body(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        outer, self.statements = self.statements, []
        for statement in body:
            self._statement(statement)
        inner, self.statements = self.statements, outer
        return tuple(inner)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Let(variable, value) | Declare(variable, value):
                pairs = zip(_variables(variable), self._parts(value), strict=True)
                self.statements += [type(statement)(*pair) for pair in pairs]
            case Assign(variable, value):
                self._assign(variable, self._parts(value))
            case Accumulate():
                self._accumulate(statement)
            case Store(buffer, index, value):
                target, parts, places = _parts_buffer(buffer), self._parts(value), self._places(buffer, index)
                for place, part in zip(places, parts, strict=True):
                    self.statements.append(replace(statement, buffer=target, index=place, value=part))
            case Copy():
                self._copy(statement)
            case Transpose(to, _, source) if source.dtype.is_complex:
                to, source = _parts_buffer(to), _parts_buffer(source)
                self.statements.append(replace(statement, destination=to, source=source, width=2))
            case For():
                start, stop, step = (self.real(e) for e in (statement.start, statement.stop, statement.step))
                body = self.body(statement.body)
                self.statements.append(replace(statement, start=start, stop=stop, step=step, body=body))
            case If(condition, then, orelse):
                test = self.real(condition)
                self.statements.append(If(test, self.body(then), self.body(orelse)))
            case Allocate(buffer):
                self.statements.append(Allocate(_parts_buffer(buffer)))
            case GroupReduce():
                self._group_reduce(statement)
            case _:
                self.statements.append(statement)

    def _accumulate(self, statement: Accumulate) -> None:
        """Splits an accumulation: sums are separate per part, while a product updates both parts at once."""
        variables = _variables(statement.variable)
        if len(variables) == 1 or statement.operation == "add":
            parts = self._parts(statement.value)
            self.statements += [
                Accumulate(v, statement.operation, p) for v, p in zip(variables, parts, strict=True)
            ]  # fmt: skip
            return
        self._assign(statement.variable, self.pair(call(statement.operation, statement.variable, statement.value)))

    def _assign(self, variable: Variable, parts: Sequence[Expression]) -> None:
        """Assigns both parts; computes both before it changes either.

        A choice between the variable and another number is a branch: the next element need not wait for the comparison.
        """
        variables = _variables(variable)
        match parts:
            case (Call("select", (kept, *first)), Call("select", (_, *second))) if (first[0], second[0]) == variables:
                assignments = tuple(Assign(v, pair[1]) for v, pair in zip(variables, (first, second), strict=True))
                self.statements.append(If(call("not", kept), assignments))
                return
        values = [self._let("new", part) for part in parts] if len(parts) > 1 else parts
        self.statements += [Assign(v, value) for v, value in zip(variables, values, strict=True)]

    def _copy(self, statement: Copy) -> None:
        if not statement.source.dtype.is_complex:
            self.statements.append(statement)
            return
        self.statements.append(
            Copy(
                _parts_buffer(statement.destination), _doubled(self.real(statement.destination_index)),
                _parts_buffer(statement.source), _doubled(self.real(statement.source_index)), 2 * statement.width,
                statement.cache,
            )
        )  # fmt: skip

    def _group_reduce(self, statement: GroupReduce) -> None:
        """Splits a group reduction. A combiner has no statements: its results are expressions of the parts."""
        combiner, before = statement.combiner, len(self.statements)
        results = tuple(part for result in combiner.results for part in self._parts(result))
        results = _without_names(self.statements[before:], results)
        del self.statements[before:]
        self.statements.append(
            GroupReduce(
                tuple(part for v in statement.variables for part in _variables(v)),
                Combiner(
                    tuple(part for v in combiner.left for part in _variables(v)),
                    tuple(part for v in combiner.right for part in _variables(v)),
                    results,
                ),
                statement.group,
                tuple(part for v in statement.before for part in _variables(v)),
            )
        )

    # --- expressions ------------------------------------------------------------------------------------------------

    def _named(self, stem: str, expression: Expression) -> Expression:
        return expression if is_trivial(expression) else self._let(stem, expression)

    def _let(self, stem: str, expression: Expression) -> Variable:
        self._counter += 1
        variable = Variable(f"{stem}_c{self._counter}", expression.dtype)
        self.statements.append(Let(variable, expression))
        return variable

    def _parts(self, expression: Expression) -> tuple[Expression, ...]:
        """Returns a real expression itself, or the two parts of a complex one."""
        return self.pair(expression) if expression.dtype.is_complex else (self.real(expression),)

    def _places(self, buffer: Buffer, index: Expression) -> tuple[Expression, ...]:
        """Returns the indices of an element, or of its two parts, in the buffer of reals."""
        place = self.real(index)
        if not buffer.dtype.is_complex:
            return (place,)
        first = self._named("at", _doubled(place))
        if isinstance(first, Constant):
            return first, Constant(int(first.value.real) + 1, first.dtype)
        return first, call("add", first, Constant(1, first.dtype))

    def real(self, expression: Expression) -> Expression:
        """Rewrites a real expression, so that it contains no complex number."""
        match expression:
            case Load(buffer, index, cache):
                return Load(buffer, self.real(index), cache)
            case Cast(argument, dtype) if argument.dtype.is_complex:
                left, right = self.pair(argument)
                if dtype.kind == "bool":
                    return call("or", *(call("ne", part, constant(0, part.dtype)) for part in (left, right)))
                return convert(left, dtype)
            case Cast(argument, dtype):
                return Cast(self.real(argument), dtype)
            case Call("real" | "imag" as name, (argument,)):
                return self.pair(argument)[name == "imag"]
            case Call(name, arguments) if any(a.dtype.is_complex for a in arguments):
                return self.real(self._function(name, arguments))
            case Call(name, arguments, dtype):
                return Call(name, tuple(self.real(a) for a in arguments), dtype)
        return expression

    def pair(self, expression: Expression) -> Pair:
        """Returns the two parts of a complex expression."""
        part = expression.dtype.real
        match expression:
            case Constant(value):
                return constant(value.real, part), constant(value.imag, part)
            case Variable():
                re, im = _variables(expression)
                return re, im
            case Load(buffer, index, cache):
                first, second = self._places(buffer, index)
                parts = _parts_buffer(buffer)
                return Load(parts, first, cache), Load(parts, second, cache)
            case Cast(argument) if argument.dtype.is_complex:
                left, right = self.pair(argument)
                return convert(left, part), convert(right, part)
            case Cast(argument):
                return convert(self.real(argument), part), constant(0, part)
            case Call("complex", (left, right)):
                return self.real(left), self.real(right)
            case Call("add" | "sub" | "neg" as name, arguments):
                pairs = [self.pair(a) for a in arguments]
                return call(name, *(p[0] for p in pairs)), call(name, *(p[1] for p in pairs))
            case Call("select", (condition, one, other)):
                test = self._named("choice", self.real(condition))
                (a, b), (c, d) = self.pair(one), self.pair(other)
                return call("select", test, a, c), call("select", test, b, d)
            case Call(name, arguments):
                return self.pair(self._function(name, arguments))
        raise InternalError(f"{expression} is no complex number")

    def _function(self, name: str, arguments: Sequence[Expression]) -> Expression:
        """Returns the result of a primitive's program, after emitting the statements that it needs."""
        program = FUNCTIONS.get(name)
        if program is None:
            raise InternalError(f"kernel IR: {name} is not defined on {arguments[0].dtype}")
        part = arguments[0].dtype.real
        names: dict[str, Term] = dict(numbers(part))
        for name_of_argument, parts, argument in zip("ab", ("xy", "uv"), arguments, strict=False):
            left, right = (self._named(name, e) for e in self.pair(argument))
            names |= {name_of_argument: call("complex", left, right), parts[0]: left, parts[1]: right}
        return apply(program, names, part, lambda step, value: self._kept(f"{name}_{step}", value))

    def _kept(self, stem: str, value: Expression) -> Expression:
        """Names an intermediate value of a program."""
        parts = [self._named(stem, part) for part in self._parts(value)]
        return call("complex", *parts) if value.dtype.is_complex else parts[0]
