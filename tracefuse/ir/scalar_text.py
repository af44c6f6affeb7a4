"""Python text that computes host scalars, bit for bit as the reference implementation does.

An op has a text if its scalar code is plain arithmetic of floats, which Python does as NumPy. Where Python raises, as
in a division by zero, the caller computes by the reference implementation, which gives NumPy's infinity or NaN.
Integers have the text of their extent.
"""

from __future__ import annotations

import ast
import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

from tracefuse import dtypes
from tracefuse.caches import memoized
from tracefuse.dtypes import DType
from tracefuse.generated_code import compile_function
from tracefuse.ir.extents import Symbol, python_text
from tracefuse.ir.fusion import Fusion, Literal, Node
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.ir.reference import number_function

RAISED = (ArithmeticError, ValueError)
"""What the text raises where Python has no float for what NumPy computes."""


def rounded_to_single(value: float) -> float:
    """Returns a float rounded to float32."""
    return ctypes.c_float(value).value


def quotient_to_single(value: float) -> float:
    """Returns a quotient of two float32 numbers, computed in float64, rounded to float32.

    Raises ArithmeticError for a subnormal result, which two roundings may miss.
    """
    result = ctypes.c_float(value).value
    if 0 < abs(value) < _LEAST_NORMAL:
        raise ArithmeticError
    return result


_LEAST_NORMAL = 2.0**-126


def in_range(value: int) -> int:
    """Returns an integer of 64 bits. Raises OverflowError for any other."""
    if -(2**63) <= value < 2**63:
        return value
    raise OverflowError


def rounded(rounding: Callable[[float], int], value: float) -> float:
    """Returns a float rounded to an integer, with its sign. Raises an error of RAISED for infinity and NaN."""
    return math.copysign(float(rounding(value)), value)


NAMES: dict[str, Any] = {
    "sqrt": math.sqrt, "copysign": math.copysign, "isinf": math.isinf, "isfinite": math.isfinite, "isnan": math.isnan,
    "abs": abs, "float": float, "bool": bool, "single": rounded_to_single, "in_range": in_range, "RAISED": RAISED,
    "quotient": quotient_to_single,
    "min": min, "max": max, "int": int, "rounded": rounded, "trunc": math.trunc, "floor": math.floor,
    "ceil": math.ceil, "nearest": round,
}  # fmt: skip
"""What the texts refer to."""

_CALLS = {"sqrt": "sqrt({0})", "abs": "abs({0})", "copysign": "copysign({0}, {1})", "isinf": "isinf({0})",
          "isfinite": "isfinite({0})", "isnan": "isnan({0})", "trunc": "rounded(trunc, {0})",
          "rounded_product": "({0} * {1})",
          "floor": "rounded(floor, {0})", "ceil": "rounded(ceil, {0})", "round": "rounded(nearest, {0})",
          "maximum": "({0} if {0} > {1} or {0} != {0} else {1})",
          "minimum": "({0} if {0} < {1} or {0} != {0} else {1})"}  # fmt: skip
_ATOMS = (ast.Name, ast.Constant)


_LARGEST = 2.0**1000
"""Bounds the literals in texts."""


class _NoText(Exception):
    """Code that Python does not compute as the reference implementation does."""


class _Translator:
    """Rewrites scalar code as Python, with the operands in place of a, b and c. is_bool: of truth values."""

    def __init__(self, operands: Sequence[str], is_bool: bool) -> None:
        self.operands, self.is_bool = operands, is_bool

    def text(self, node: ast.expr) -> str:
        match node:
            case ast.Name(id=name) if name in "abc":
                return self.operands["abc".index(name)]
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return repr(float(value))
            case ast.BinOp(left, ast.BitAnd() | ast.BitOr() as op, right) if self.is_bool:
                return f"({self.text(left)} {'and' if isinstance(op, ast.BitAnd) else 'or'} {self.text(right)})"
            case ast.UnaryOp(ast.Invert(), value) if self.is_bool:
                return f"(not {self.text(value)})"
            case ast.UnaryOp(ast.USub(), value) if not self.is_bool:
                return f"(-{self.text(value)})"
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as op, right) if not self.is_bool:
                sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}[type(op)]
                return f"({self.text(left)} {sign} {self.text(right)})"
            case ast.Compare(left, [op], [right]):
                signs = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
                return f"({self.text(left)} {signs[type(op)]} {self.text(right)})"
            case ast.IfExp(test, body, orelse) if not self.is_bool:
                return f"({self.text(body)} if {self.text(test)} else {self.text(orelse)})"
            case ast.Call(ast.Name(id=name), arguments) if name in _CALLS and not self.is_bool:
                if all(isinstance(argument, _ATOMS) for argument in arguments):
                    return _CALLS[name].format(*map(self.text, arguments))
        raise _NoText


def op_text(op: Any, compute: DType, result: DType, operands: Sequence[tuple[str, DType | None]]) -> str | None:
    """Returns the Python expression of a pointwise op on numbers of Python; None if it has none.

    operands: an expression without operators and the dtype of each, None for a literal.
    """
    if not isinstance(op, Pointwise) or not (op.exact or op.scalar == "a") or op.varies or op.extra_shape:
        return None
    # A number for a float32 input may have more digits.
    operands = [(f"single({text})" if dtype is dtypes.float32 else text, dtype) for text, dtype in operands]
    kinds = [None if dtype is None else dtype.kind for _, dtype in operands]
    if op.result == "dtype":
        return _converted(operands[0][0], kinds[0], result)
    if compute not in (dtypes.float64, dtypes.float32, dtypes.bool_) or any(kind == "complex" for kind in kinds):
        return None
    is_bool = compute is dtypes.bool_
    if is_bool and any(kind not in ("bool", None) for kind in kinds):
        return None
    texts = [_operand(op, position, *operand, compute) for position, operand in enumerate(operands)]
    try:
        code = ast.parse(op.code(compute), mode="eval").body
        text = _Translator(texts, is_bool).text(code)
    except (_NoText, SyntaxError):
        return None
    if result is dtypes.bool_ or compute is dtypes.float64:
        return text
    # The float64 result of one operation rounds to the float32 result.
    is_single = not isinstance(code, (ast.Call, ast.BinOp)) or all(
        isinstance(operand, ast.Name) for operand in _inner(code)
    )
    rounding = "quotient" if isinstance(getattr(code, "op", None), ast.Div) else "single"
    return f"{rounding}({text})" if is_single else None


def _inner(code: ast.Call | ast.BinOp) -> list[ast.expr]:
    return list(code.args) if isinstance(code, ast.Call) else [code.left, code.right]


def _operand(op: Pointwise, position: int, text: str, dtype: DType | None, compute: DType) -> str:
    if op.promotion == "where" and position == 0:
        return f"bool({text})"
    if compute is dtypes.bool_ or dtype is compute or (dtype is dtypes.float32 and compute is dtypes.float64):
        return text
    return f"single({text})" if compute is dtypes.float32 else f"float({text})"


def _converted(text: str, kind: str | None, result: DType) -> str | None:
    """A number in another type."""
    if kind == "complex":
        return None
    if result in (dtypes.float64, dtypes.float32):
        return f"single({text})" if result is dtypes.float32 else f"float({text})"
    if result is dtypes.int64 and kind in ("float", "bool"):
        return f"in_range(int({text}))"  # an integer out of range saturates
    return f"bool({text})" if result is dtypes.bool_ else None


def scalar_texts(
    fusion: Fusion, nodes: Sequence[Node], name_of: Callable[[int], str], symbol_text: Callable[[Symbol], str],
    names: dict[str, Any],
) -> list[str] | None:  # fmt: skip
    """Returns the Python statements that compute host scalars, in order; None if one has no text.

    name_of: the variable of a value, a number of Python. symbol_text: the text of a size. names: what the statements
    refer to beside `NAMES`, to which this adds. The statements may raise one of `RAISED`.
    """
    statements = []
    for node in nodes:
        (number,) = node.outputs
        value = fusion.values[number]
        if value.extent is not None:
            text: str | None = f"in_range({python_text(value.extent, symbol_text)})"
        else:
            operands = [_of_operand(fusion, operand, name_of) for operand in node.operands]
            known = [one for one in operands if one is not None]
            complete = len(known) == len(operands)
            text = op_text(node.op, node.compute, value.dtype, known) if complete else None
        if text is None:
            text = _call_text(fusion, node, name_of, names)
        if text is None:
            return None
        statements.append(f"{name_of(number)} = {text}")
    return statements


def _call_text(fusion: Fusion, node: Node, name_of: Callable[[int], str], names: dict[str, Any]) -> str | None:
    """The call of the reference implementation of one op; None if it needs more than numbers."""
    function = number_function(fusion, node)
    if function is None:
        return None
    name = f"{node.op.name}{node.outputs[0]}"
    names[name] = function
    return f"{name}({', '.join(name_of(operand) for operand in node.operands if not isinstance(operand, Literal))})"


def _of_operand(fusion: Fusion, operand: Any, name_of: Callable[[int], str]) -> tuple[str, DType | None] | None:
    if not isinstance(operand, Literal):
        return name_of(operand), fusion.values[operand].dtype
    value = operand.value
    if isinstance(value, bool):
        return repr(value), dtypes.bool_
    if isinstance(value, complex) or not abs(value) < _LARGEST:
        return None
    return f"({float(value)!r})", dtypes.float64


@memoized("functions of one op on numbers of Python", key="op, types", most=1024)
def scalar_function(
    op: Any, compute: DType, result: DType, operands: tuple[DType | None, ...]
) -> Callable[..., Any] | None:  # fmt: skip
    """Returns a function that computes a pointwise op on numbers of Python; None if it has no text.

    operands: the dtype of each, None for a literal of Python. It may raise one of `RAISED`.
    """
    names = [f"v{position}" for position in range(len(operands))]
    text = op_text(op, compute, result, list(zip(names, operands, strict=True)))
    if text is None:
        return None
    body = f"def compute({', '.join(names)}):\n    return {text}\n"
    return compile_function(body, "compute", dict(NAMES), "scalar")  # type: ignore[no-any-return]
