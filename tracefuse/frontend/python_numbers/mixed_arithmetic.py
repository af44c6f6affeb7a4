"""Operators on values that are numbers of Python in some iterations of a recorded loop, and NumPy's in others.

With an array or a scalar of NumPy the result is NumPy's. With numbers of Python it is a number wherever all operands
are. What Python and NumPy compute differently is not recorded.
"""

from __future__ import annotations

import functools
from typing import Any

from segments.lazy_dataclasses import replace
from tracefuse.dtypes import NUMPY_TYPES, complex128, float64, int64
from tracefuse.frontend.python_numbers.number_arithmetic import (
    LARGEST_EXACT,
    LARGEST_INTEGER,
    absolute,
    binary,
    is_nonzero,
    kind_of,
    negated,
    number,
)
from tracefuse.frontend.python_numbers.number_questions import assume
from tracefuse.frontend.tracer.array_ops import arithmetic
from tracefuse.frontend.tracer.array_ops.number_where import (
    both,
    is_mixed,
    kind_of_number,
    number_where,
    with_numbers,
)
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.traced import Traced

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_SAME = frozenset({"add", "sub", "mul", "div", "neg", "abs"})
"""Operators with the same results for Python's floats and NumPy's, if no divisor is 0."""
_SAME_OF_TRUTHS = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor"})
_KINDS = ("bool", "int", "float", "complex")
_UNARY = {"neg": negated, "abs": absolute}


def applies(*operands: Any) -> bool:
    """Whether an operator has to respect that operands are numbers of Python in some iterations."""
    return any(map(is_mixed, operands)) and all(is_mixed(one) or kind_of_number(one) is not None for one in operands)


def operator_result(name: str, *operands: Any) -> Any:
    """Returns the result of an operator for operands to which `applies` applies. name: of its op."""
    plain = [with_numbers(one, False, None) if is_mixed(one) else one for one in operands]
    wheres = [where for one in operands if (where := number_where(one)) is not None]
    condition: Any = functools.reduce(both, (where.condition for where in wheres))
    kind = max((where.kind for where in wheres), key=_KINDS.index)
    if name in _COMPARISONS or (name in _SAME_OF_TRUTHS and kind == "bool"):
        return with_numbers(_applied(name, *plain), condition, "bool")
    divisor_may_be_0 = name == "div" and (is_mixed(operands[1]) or not is_nonzero(operands[1]))
    if name not in _SAME or divisor_may_be_0 or kind == "bool":
        raise NotInEveryIteration(f"{name} of a variable that is a number of Python in some iterations only")
    kind = "float" if name == "div" else kind
    result = _applied(name, *plain)
    fits = [*(one for where in wheres for one in where.fits), *_exactness(result, kind, condition)]
    mixed = with_numbers(result, condition, kind)
    if mixed.number_where is not None:
        mixed.number_where = replace(mixed.number_where, fits=tuple(fits))
    return mixed


def _applied(name: str, *operands: Any) -> Any:
    """Applies an operator to Python's numbers, or to arrays among them."""
    if all(kind_of(one) is not None for one in operands):
        return _UNARY[name](*operands) if len(operands) == 1 else binary(name, *operands)
    return apply(name, *operands) if len(operands) == 1 else arithmetic.binary(name, *operands)


def unary(name: str, operand: Any) -> Any:
    """Returns the result of an operator of one operand, a traced value."""
    return operator_result(name, operand) if is_mixed(operand) else _applied(name, operand)


def _exactness(result: Traced, kind: str, condition: Any) -> list[Traced]:
    """Returns what must hold so that a result is exact where it is a number of Python."""
    if result.value.dtype not in (float64, complex128, int64):
        raise NotInEveryIteration("a variable has a type of less than 64 bits, and is a number of Python elsewhere")
    if kind != "int":
        return []
    largest = LARGEST_INTEGER if result.value.dtype is int64 else LARGEST_EXACT
    fits = apply("le", apply("abs", _real(result)), largest)
    return [apply("logical_or", fits, apply("logical_not", condition))]


def _real(value: Traced) -> Traced:
    plain = with_numbers(value, False, None)
    real = apply("real", plain) if value.value.dtype.is_complex else plain
    result: Traced = apply("cast", real, dtype=float64)
    return result


def settled(value: Traced) -> Any:
    """Returns a value as NumPy's, or as a number of Python, whichever it is in the current call."""
    where = value.number_where
    if where is None:
        return value
    if assume(apply("logical_not", where.condition)):
        return with_numbers(value, False, None)
    plain = with_numbers(value, False, None)
    if value.value.dtype.is_complex and where.kind != "complex":
        plain = _real(value)
    return number(apply("cast", plain, dtype=NUMPY_TYPES[where.kind]), where.kind)
