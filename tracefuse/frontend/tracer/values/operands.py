"""Operands of an op and NumPy's promotion of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse import dtypes, source
from tracefuse.dtypes import DType
from tracefuse.errors import IntegerRangeError, TracefuseError
from tracefuse.frontend.tracer.values.host_numbers import ConstantNumber, HostNumber
from tracefuse.frontend.tracer.values.symbolic_size import Decisions
from tracefuse.frontend.tracer.values.ufunc_loops import loop_types
from tracefuse.ir.extents import Extent, as_symbol, evaluate, symbols
from tracefuse.ir.fusion import Literal, Operand, Shape
from tracefuse.ops import REGISTRY, Pointwise
from tracefuse.rounding import round_to_half


@dataclass(frozen=True, slots=True)
class Resolved:
    """A resolved operand.

    traced: the traced value, if the operand is one. read: a host scalar as a function of a call's facts. sized:
    computed from sizes alone.
    """

    operand: Operand
    dtype: DType | None
    weak: str | None
    shape: Shape
    traced: Any
    read: HostNumber | None
    sized: bool


_OF_BOOLS = {
    "add": "logical_or", "mul": "logical_and", "maximum": "logical_or", "minimum": "logical_and", "abs": "ordered_set",
}  # fmt: skip


def numpy_types(op: Pointwise, operands: Sequence[Resolved]) -> tuple[Pointwise, DType, DType]:
    """Returns the op with NumPy's compute and result types for the ufunc.

    Some arithmetic on bools becomes logic. Raises DtypeError if NumPy, or the op, does not accept the types.
    """
    typed = [(r.dtype, r.weak) for r in operands]
    if op.loops is not None and op.promotion != "bool" and any(r.weak is None for r in operands):
        loop = loop_types(op.loops, typed)[0]
        if loop is dtypes.bool_ and op.name in _OF_BOOLS:
            op = REGISTRY[_OF_BOOLS[op.name]]  # type: ignore[assignment]
        if loop in op.domain:
            return op, loop, op.result_type(loop)
    strong = [dtype for dtype, weak in typed if weak is None and dtype is not None]
    weak = [kind for _, kind in typed if kind is not None]
    return op, *op.types(strong, weak, "numpy")


RANGE = "whether an integer type holds the number"
"""Why the range of a Python integer is guarded."""

# A comparison with an integer above (or below) the range of the other operand's type equals a comparison with the
# range's last (or first) value.
_ABOVE = {"lt": "le", "le": "le", "ne": "le", "gt": "gt", "ge": "gt", "eq": "gt"}
_BELOW = {"lt": "lt", "le": "lt", "eq": "lt", "gt": "ge", "ge": "ge", "ne": "ge"}
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def literal(value: bool | int | float | complex, *, sized: bool = True) -> Resolved:
    """Returns a Python number as an operand. sized: whether it is no number that a call passes."""
    return Resolved(Literal(value), None, dtypes.python_kind(value), (), None, ConstantNumber(value), sized)


def is_size(extent: Extent) -> bool:
    """Whether an extent is a number or depends on a size, not on integers that a call passes alone."""
    return isinstance(extent, int) or any(symbol.id is not None and symbol.id < 0 for symbol in symbols(extent))


def fitted(
    op: Pointwise, resolved: Sequence[Resolved], compute: DType, facts: Decisions
) -> tuple[Pointwise, Sequence[Resolved]]:
    """Adapts the op and operands for Python integers that may not fit the type of the others; guards varying ones.

    As in NumPy, a comparison with such an integer is exact, `where` wraps it, and any other op raises
    IntegerRangeError, operations of logic for integers that int64 does not hold.
    """
    if op.promotion == "bool" and any(r.weak is None for r in resolved):  # NumPy takes the integer as int64
        for operand in resolved:
            check_range(operand, dtypes.int64, facts)
    is_free = op.result == "dtype" or op.promotion == "where" or all(r.weak is not None for r in resolved)
    if is_free or not compute.is_integer:
        return op, resolved
    limits = np.iinfo(compute.name)
    for position, operand in enumerate(resolved):
        number = _integer_of(operand)
        if number is None or (compute is dtypes.int64 and _is_size(number)):
            continue
        is_below = not facts.decide(int(limits.min), "<=", number, RANGE)
        if not is_below and facts.decide(number, "<=", int(limits.max), RANGE):
            continue
        if op.name not in _MIRRORED:
            raise _out_of_bounds(number, compute, facts)
        name = op.name if position else _MIRRORED[op.name]
        bound = literal(int(limits.min if is_below else limits.max))
        other = REGISTRY[(_BELOW if is_below else _ABOVE)[name]]
        assert isinstance(other, Pointwise)
        return other, (resolved[1 - position], bound)
    return op, resolved


def compared(operand: Resolved, compute: DType, cast: Callable[[Any, DType], Resolved]) -> Resolved:
    """Rounds a Python number for a comparison of halves: to float16, or to bfloat16 if it is an integer.

    cast: records the conversion of a traced number. (ml_dtypes compares bfloat16 with Python's floats in float32.)
    """
    if not compute.is_half or operand.weak in (None, "complex"):
        return operand
    if compute is dtypes.bfloat16 and operand.weak == "float":
        return operand
    if isinstance(operand.operand, Literal):
        return literal(float(round_to_half(operand.operand.value, compute)))
    return cast(operand.traced, compute)


def check_range(operand: Resolved, dtype: DType, facts: Decisions) -> None:
    """Raises IntegerRangeError for a Python integer that does not fit an integer type."""
    number = _integer_of(operand) if dtype.is_integer else None
    if number is None or (dtype is dtypes.int64 and _is_size(number)):
        return
    limits = np.iinfo(dtype.name)
    if not (facts.decide(int(limits.min), "<=", number, RANGE) and facts.decide(number, "<=", int(limits.max), RANGE)):
        raise _out_of_bounds(number, dtype, facts)


def type_of_integer(operand: Resolved, facts: Decisions) -> DType | None:
    """Returns uint64 for a Python integer above int64, of which NumPy makes such an element; None for any other."""
    number = _integer_of(operand)
    if number is None or _is_size(number) or facts.decide(number, "<=", int(np.iinfo(np.int64).max), RANGE):
        return None
    return dtypes.uint64


def _is_size(number: Extent) -> bool:
    """Whether a number is an integer of a call, which fits 64 bits, or its negative."""
    return not isinstance(number, int) and (as_symbol(number) is not None or as_symbol(-number) is not None)


def _out_of_bounds(number: Extent, dtype: DType, facts: Decisions) -> IntegerRangeError:
    return IntegerRangeError(
        f"Python integer {evaluate(number, facts.hints)} out of bounds for {dtype}",
        hint="cast the array with astype first", where=source.user_line(),
    )  # fmt: skip


def _integer_of(operand: Resolved) -> Extent | None:
    """Returns the integer of a Python integer or a size; None for any other operand."""
    if isinstance(operand.operand, Literal):
        return operand.operand.value if type(operand.operand.value) is int and operand.dtype is None else None
    return operand.traced.value.extent if operand.weak == "int" and operand.traced is not None else None


def located_error(
    error: TracefuseError, describe: Callable[[int, Any], str], resolved: Sequence[Resolved], where: str | None
) -> Exception:
    """Returns the error with its operands and the user's line. describe: names a value."""
    kinds = []
    for operand in resolved:
        if isinstance(operand.operand, int):
            type_name = operand.weak if operand.weak is not None else str(operand.dtype)
            kinds.append(f"{type_name} ({describe(operand.operand, operand.traced)})")
        else:
            kinds.append(repr(operand.operand.value))
    return type(error)(f"{error.message}: operands {', '.join(kinds)}", hint=error.hint, where=where)
