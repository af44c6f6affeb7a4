"""Python's operators on numbers that a traced function computes from its arrays.

Floats are float64 and integers int64. Where Python's result is another one, as for an integer beyond 64 bits or for a
division by zero, the numbers themselves are asked for and Python computes or raises.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import dtypes, source
from tracefuse.frontend.python_numbers.number_questions import assume, real
from tracefuse.frontend.tracer.array_ops import arithmetic
from tracefuse.frontend.tracer.array_ops.number_where import is_mixed, with_numbers
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced

LARGEST_INTEGER = 2.0**62
"""Bounds the integers of which one sum, product or negation fits 64 bits, whatever the rounding of the bound."""

LARGEST_EXACT = 2.0**53
"""Integers up to this one are floats exactly."""

_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "pow": operator.pow, "eq": operator.eq,
    "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "left_shift": operator.lshift, "right_shift": operator.rshift,
}  # fmt: skip
_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_BITWISE = frozenset({"bitwise_and", "bitwise_or", "bitwise_xor"})


def kind_of(value: Any) -> str | None:
    """Returns the kind of a number of Python, traced or not: bool, int, float or complex; None for anything else.

    A number that a loop carries is an array, with the promotion of a number.
    """
    if isinstance(value, Traced):
        return value.weak if value.is_python else None
    if isinstance(value, SymbolicSize):
        return "int"
    if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
        return dtypes.python_kind(value)
    return None


def number(value: Any, kind: str) -> Any:
    """Returns a traced value without axes as a number of Python; other values as they are."""
    if not isinstance(value, Traced) or (value.weak == kind and value.is_python):
        return value
    recorder = value.recorder
    result = recorder.python_number(value, kind)
    return real(result) if kind == "bool" and recorder.compares_truth and recorder.body is None else result


def converted(value: Any, kind: str) -> Any:
    """Returns a number as one of a wider kind. Raises OverflowError for an integer that is too large for a float."""
    if not isinstance(value, (Traced, SymbolicSize)):
        return {"int": int, "float": float, "complex": complex}[kind](value)
    if kind_of(value) == kind or isinstance(value, SymbolicSize):
        return value
    dtype = {"int": dtypes.int64, "float": dtypes.float64, "complex": dtypes.complex128}[kind]
    return number(apply("cast", value, dtype=dtype), kind)


def complex_of(real_part: Any, imaginary_part: Any) -> Any:
    """Returns complex(a, b) of two real numbers of which one is traced; NotImplemented for other arguments."""
    if isinstance(real_part, Traced) and real_part.weak is not None:  # a counter is an array with a number's promotion
        real_part = number(real_part, real_part.weak)
    if isinstance(imaginary_part, Traced) and imaginary_part.weak is not None:
        imaginary_part = number(imaginary_part, imaginary_part.weak)
    if not {kind_of(real_part), kind_of(imaginary_part)} <= {"float", "int", "bool"}:
        return NotImplemented
    parts = [converted(_plain(part), "float") for part in (real_part, imaginary_part)]
    if not all(_is_exact(part) for part in (real_part, imaginary_part) if kind_of(part) == "int"):
        return NotImplemented
    return number(apply("complex", *parts), "complex")


@source.forwards
def binary(name: str, a: Any, b: Any) -> Any:
    """Applies an operator of Python, named as an op, to two numbers of which one is traced."""
    kinds = {kind_of(a), kind_of(b)}
    kind = next(candidate for candidate in ("complex", "float", "int", "bool") if candidate in kinds)
    if name in _COMPARISONS:
        result = _compared(name, a, b, kind, kinds)
    elif name in _BITWISE:
        result = number(apply(name, a, b), kind) if kind in ("bool", "int") and _fit_words(a, b) else None
    elif kind == "complex":
        result = _of_complex(name, a, b)
    elif kind == "float" or name == "div":
        result = _of_floats(name, a, b)
    else:
        result = _of_integers(name, a, b)
    return _PYTHON[name](real(a), real(b)) if result is None else result


def _compared(name: str, a: Any, b: Any, kind: str, kinds: set[str | None]) -> Any:
    """The outcome of a comparison; None if Python's differs."""
    if kind == "complex" and name not in ("eq", "ne"):
        return None
    if kind in ("int", "bool"):
        return number(apply(name, a, b), "bool") if _fit_words(a, b) else None
    if len(kinds) > 1 and not all(_is_exact(operand) for operand in (a, b) if kind_of(operand) == "int"):
        return None
    return number(apply(name, converted(a, kind), converted(b, kind)), "bool")


def _is_exact(integer: Any) -> bool:
    """Whether an integer is a float exactly."""
    if not isinstance(integer, Traced):
        return isinstance(integer, SymbolicSize) or abs(integer) <= LARGEST_EXACT
    return assume(apply("le", apply("abs", converted(integer, "float")), LARGEST_EXACT))


def _fit_words(*values: Any) -> bool:
    """Whether integers that are not traced fit 64 bits."""
    return all(isinstance(value, (Traced, SymbolicSize)) or -(2**63) <= value < 2**63 for value in values)


def _of_complex(name: str, a: Any, b: Any) -> Any:
    if name not in ("add", "sub", "mul", "div"):
        return None
    if name == "div" and not is_nonzero(b):
        return None
    return number(apply(name, converted(a, "complex"), converted(b, "complex")), "complex")


def _of_floats(name: str, a: Any, b: Any) -> Any:
    if kind_of(a) != "float" and kind_of(b) != "float" and not (_is_exact(_plain(a)) and _is_exact(_plain(b))):
        return None  # Python divides integers exactly
    if name == "pow":
        return power(a, b)
    if name in ("div", "floor_divide", "remainder") and not is_nonzero(b):
        return None
    if name not in ("add", "sub", "mul", "div", "floor_divide", "remainder"):
        return None
    return number(apply(name, converted(a, "float"), converted(b, "float")), "float")


def _plain(value: Any) -> Any:
    """A truth value as an integer; any other number as it is."""
    return converted(value, "int") if kind_of(value) == "bool" else value


def is_nonzero(value: Any) -> bool:
    """Whether a number is not zero, now and in later calls."""
    if isinstance(value, SymbolicSize):
        return bool(value != 0)
    return assume(apply("ne", value, 0)) if isinstance(value, Traced) else value != 0


def is_finite(value: Any) -> bool:
    """Whether a float is finite, now and in later calls."""
    return assume(apply("isfinite", value)) if isinstance(value, Traced) else math.isfinite(value)


def power(a: Any, b: Any) -> Any:
    """Returns a power of floats; None if Python raises or its result is complex, infinite or no number."""
    result = arithmetic.power(converted(a, "float"), converted(b, "float") if isinstance(b, Traced) else b)
    return number(result, "float") if is_finite(result) else None


def _of_integers(name: str, a: Any, b: Any) -> Any:
    """The result for integers and truth values, at least one of them traced; None if it may not fit 64 bits."""
    a, b = _plain(a), _plain(b)
    if name == "pow":
        return _integer_power(a, b)
    if name in ("left_shift", "right_shift"):
        return _shifted(name, a, b)
    if not _fit_words(a, b) or name not in ("add", "sub", "mul", "floor_divide", "remainder"):
        return None
    if name in ("floor_divide", "remainder"):
        fits = is_nonzero(b) and _is_within(converted(a, "float"))
    else:
        fits = _is_within(apply(name, converted(a, "float"), converted(b, "float")))
    return number(apply(name, a, b), "int") if fits else None


def _shifted(name: str, a: Any, b: Any) -> Any:
    """An integer shifted by a number of bits that is known; None for any other."""
    if type(b) is not int or not 0 <= b < 63:
        return None
    if name == "left_shift" and not _is_within(apply("mul", converted(a, "float"), 2.0**b)):
        return None
    return number(apply(name, a, b), "int")


def _is_within(approximate: Any) -> bool:
    """Whether an integer, given as a float, is far from the ends of 64 bits."""
    if not isinstance(approximate, Traced):
        return bool(abs(approximate) <= LARGEST_INTEGER)
    return assume(apply("le", apply("abs", approximate), LARGEST_INTEGER))


_MOST_FACTORS = 64


def _integer_power(a: Any, b: Any) -> Any:
    """A power whose exponent is a small constant; None for any other, whose type may depend on it."""
    if type(b) is not int or not -_MOST_FACTORS <= b <= _MOST_FACTORS:
        return None
    if b < 0:
        return power(a, float(b)) if _is_exact(a) else None
    result: Any = 1
    for _ in range(b):
        result = a if type(result) is int else _of_integers("mul", result, a)
        if result is None:
            return None
    return result


def negated(a: Traced) -> Any:
    """Returns -a."""
    return binary("mul", a, -1) if a.weak in ("int", "bool") else number(apply("neg", a), a.weak or "float")


def absolute(a: Traced) -> Any:
    """Returns abs(a)."""
    if a.weak == "complex":
        result = apply("abs", a)
        return number(result, "float") if is_finite(result) else abs(real(a))
    plain = _plain(a)
    if plain.weak == "int" and not _is_within(converted(plain, "float")):
        return abs(real(a))
    return number(apply("abs", plain), plain.weak)


def inverted(a: Traced) -> Any:
    """Returns ~a."""
    if a.weak not in ("int", "bool"):
        return ~real(a)
    return number(apply("bitwise_not", _plain(a)), "int")


def to_float(value: Any) -> Any:
    """Returns a real traced value without axes as a float."""
    return of_kind(value, "float", dtypes.float64)


def of_kind(value: Traced, kind: str, dtype: dtypes.DType) -> Any:
    """Returns a traced value without axes as a number of a kind that has all its numbers, in every iteration."""
    if value.weak == kind:
        return with_numbers(value, False, None) if is_mixed(value) else value
    return number(apply("cast", value, dtype=dtype), kind)


def size_to_float(size: SymbolicSize) -> Any:
    """Returns a size, or an integer that the call passes, as a float."""
    return number(size * 1.0, "float")


def to_integer(value: Any, rounding: str = "trunc") -> Any:
    """Returns a real traced value without axes as an integer, rounded by an op; None if it may not fit 64 bits."""
    dtype = value.value.dtype
    if dtype.kind == "float":
        rounded = apply(rounding, apply("cast", value, dtype=dtypes.float64))
        return number(apply("cast", rounded, dtype=dtypes.int64), "int") if _is_within(rounded) else None
    if dtype is dtypes.uint64 and not _is_within(apply("cast", value, dtype=dtypes.float64)):
        return None
    return number(apply("cast", value, dtype=dtypes.int64), "int")
