"""Translation of op definitions' scalar code to kernel expressions.

Scalar code is a Python expression such as `1 / (1 + exp(-a))`, or lines `name = expression` followed by an expression.
It is parsed once and applied to operands that are kernel expressions; a constant takes the dtype of the other operand.
One translation serves both targets.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import TypeAlias

from tracefuse.caches import memoized
from tracefuse.dtypes import DType, bool_, float32, float64, int32, int64
from tracefuse.errors import InternalError
from tracefuse.kernel.kernel_ir import COMPLEX_PRIMITIVES, PRIMITIVES, Call, Cast, Constant, Expression, call

Number: TypeAlias = bool | int | float | complex
Term: TypeAlias = Expression | Number

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.LShift: "shl",
    ast.RShift: "shr",
}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}
_BITCASTS = {f"bitcast_{dtype.short}": dtype for dtype in (float32, float64, int32, int64)}
_UNARY: dict[type[ast.unaryop], str] = {ast.USub: "neg", ast.Invert: "not", ast.Not: "not"}


@memoized("syntax trees of scalar code", key="code of an op definition", most=512, clears=False)
def _parse(code: str) -> tuple[tuple[tuple[str, ast.expr], ...], ast.expr]:
    """Return the assignments of the code, in order, and its final expression."""
    *lines, last = ast.parse(code).body
    steps = []
    for line in lines:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                steps.append((name, value))
            case _:
                raise InternalError(f"scalar code: {ast.unparse(line)} is not an assignment `name = expression`")
    if not isinstance(last, ast.Expr):
        raise InternalError(f"scalar code: the last line must be an expression, not {ast.unparse(last)}")
    return tuple(steps), last.value


def constant(value: Number, dtype: DType) -> Constant:
    """Return `value` as a literal of `dtype`; integers wrap."""
    if dtype.kind == "bool":
        return Constant(bool(value), dtype)
    if dtype.is_integer:
        bits = 8 * dtype.itemsize
        integer = int(value.real) if isinstance(value, complex) else int(value)
        wrapped = integer % (1 << bits)
        return Constant(wrapped - (1 << bits) if dtype.kind == "int" and wrapped >> (bits - 1) else wrapped, dtype)
    if dtype.is_floating:
        return Constant(float(value.real if isinstance(value, complex) else value), dtype)
    return Constant(complex(value), dtype)


def convert(expression: Expression, dtype: DType) -> Expression:
    """Return `expression` as `dtype`: unchanged, as a converted literal, or as a cast."""
    if expression.dtype is dtype:
        return expression
    if (
        isinstance(expression, Constant)
        and not (dtype.is_integer and expression.dtype.is_floating)
        and not dtype.is_half
    ):
        return constant(expression.value, dtype)
    return Cast(expression, dtype)


def apply(
    code: str, names: Mapping[str, Term], dtype: DType, keep: Callable[[str, Expression], Expression] | None = None
) -> Expression:
    """Return the code's result with `names` substituted. A plain number becomes a literal of `dtype`.

    keep: binds the value of an assignment, given its name, to a variable so that later uses do not recompute it.
    """
    steps, last = _parse(code)
    known = dict(names)
    for name, step in steps:
        value = _translate(step, known, dtype)
        known[name] = value if keep is None or isinstance(value, bool | int | float | complex) else keep(name, value)
    result = _translate(last, known, dtype)
    return constant(result, dtype) if isinstance(result, bool | int | float | complex) else result


def _translate(node: ast.expr, names: Mapping[str, Term], dtype: DType) -> Term:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp(op=operator, operand=operand):
            return _primitive(_UNARY[type(operator)], [_translate(operand, names, dtype)], dtype)
        case ast.BinOp(left=left, op=binary, right=right):
            terms = [_translate(left, names, dtype), _translate(right, names, dtype)]
            return _primitive(_BINARY[type(binary)], terms, dtype)
        case ast.Compare(left=left, ops=[comparison], comparators=[right]):
            terms = [_translate(left, names, dtype), _translate(right, names, dtype)]
            return _primitive(_COMPARE[type(comparison)], terms, dtype)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            terms = [_translate(part, names, dtype) for part in (test, body, orelse)]
            return _primitive("select", terms, dtype)
        case ast.Call(func=ast.Name(id=("real" | "imag") as part), args=[argument]):
            term = _translate(argument, names, dtype)
            if isinstance(term, bool | int | float | complex) or not term.dtype.is_complex:
                return term if part == "real" else 0
            return call(part, term)
        case ast.Call(func=ast.Name(id=function), args=[argument]) if function in _BITCASTS:
            bits = _translate(argument, names, dtype)
            typed = constant(bits, dtype) if isinstance(bits, bool | int | float | complex) else bits
            return call("bitcast", typed, dtype=_BITCASTS[function])
        case ast.Call(func=ast.Name(id=function), args=arguments) if function in PRIMITIVES | COMPLEX_PRIMITIVES:
            return _primitive(function, [_translate(a, names, dtype) for a in arguments], dtype)
    raise InternalError(f"scalar code: {ast.unparse(node)} is not part of the language")


def _primitive(name: str, terms: list[Term], dtype: DType) -> Expression:
    operands = terms[1:] if name == "select" else terms
    typed_operands = [t for t in operands if not isinstance(t, bool | int | float | complex)]
    common = typed_operands[0].dtype if typed_operands else dtype
    name = "mul" if name == "rounded_product" and not common.is_floating else name
    typed = []
    for position, term in enumerate(terms):
        target = bool_ if name == "select" and position == 0 else common
        typed.append(
            constant(term, target) if isinstance(term, bool | int | float | complex) else convert(term, target)
        )
    return call(name, *typed)


def is_trivial(expression: Expression) -> bool:
    """Return whether the expression is a literal or a variable, which binding to a name would only duplicate."""
    return not isinstance(expression, Call | Cast) and not hasattr(expression, "buffer")
