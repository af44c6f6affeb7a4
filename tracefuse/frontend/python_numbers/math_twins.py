"""The functions of `math` on numbers that a traced function computes from its arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import DtypeError
from tracefuse.frontend.python_numbers import number_arithmetic
from tracefuse.frontend.python_numbers.number_arithmetic import is_finite, is_nonzero, kind_of, number
from tracefuse.frontend.python_numbers.number_questions import assume
from tracefuse.frontend.python_numbers.number_twins import FUNCTIONS, replaces
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.libraries.number_calls import is_computed
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced

MODULES = (math,)
"""Modules whose functions have twins."""

_UFUNCS: dict[Any, np.ufunc] = {
    math.sqrt: np.sqrt, math.exp: np.exp, math.expm1: np.expm1, math.log2: np.log2, math.log10: np.log10,
    math.log1p: np.log1p, math.sin: np.sin, math.cos: np.cos, math.tan: np.tan, math.asin: np.arcsin,
    math.acos: np.arccos, math.atan: np.arctan, math.sinh: np.sinh, math.cosh: np.cosh, math.tanh: np.tanh,
    math.asinh: np.arcsinh, math.acosh: np.arccosh, math.atanh: np.arctanh, math.fabs: np.fabs,
    math.hypot: np.hypot, math.atan2: np.arctan2, math.copysign: np.copysign,
}  # fmt: skip
if hasattr(math, "exp2"):
    _UFUNCS[math.exp2] = np.exp2
"""Functions whose result is that of a ufunc wherever it is finite."""

LARGEST_SQUARE = 2**50
"""Up to here the rounded square root of an integer is below the next integer."""

_TESTS = {math.isnan: "isnan", math.isinf: "isinf", math.isfinite: "isfinite"}
_ROUNDING = {math.floor: "floor", math.ceil: "ceil", math.trunc: "trunc"}


def _float_of(value: Any) -> Any:
    """A real number as a float; NotImplemented for anything else."""
    if is_computed(value):
        return NotImplemented if value.value.dtype.is_complex else number_arithmetic.to_float(value)
    kind = kind_of(value)
    if kind is None or kind == "complex":
        return NotImplemented
    if isinstance(value, SymbolicSize):
        return number_arithmetic.size_to_float(value)
    return value if isinstance(value, Traced) else float(value)


def _of_floats(values: tuple[Any, ...]) -> list[Any] | None:
    """The arguments as floats; None if none is traced or one is no real number."""
    if not any(is_computed(value) or isinstance(value, SymbolicSize) for value in values):
        return None
    converted = [_float_of(value) for value in values]
    return None if any(value is NotImplemented for value in converted) else converted


def _twin(ufunc: np.ufunc) -> Callable[..., Any]:
    def record(*values: Any) -> Any:
        converted = _of_floats(values) if len(values) == ufunc.nin else None
        if converted is None:
            return NotImplemented
        result = ufunc(*converted)
        return number(result, "float") if is_finite(result) else NotImplemented

    return record


for _function, _ufunc in _UFUNCS.items():
    replaces(_function, FUNCTIONS)(_twin(_ufunc))


def _test_twin(op: str) -> Callable[[Any], Any]:
    def record(value: Any) -> Any:
        converted = _of_floats((value,))
        return NotImplemented if converted is None else number(apply(op, converted[0]), "bool")

    return record


for _function, _op in _TESTS.items():
    replaces(_function, FUNCTIONS)(_test_twin(_op))


def _truncates(value: Any) -> bool:
    """Whether math.trunc takes what NumPy has in the place of a traced value: of its scalars, float64."""
    return bool(value.is_immutable) and hasattr(value.value.dtype.numpy.type, "__trunc__")


def _rounding_twin(op: str) -> Callable[[Any], Any]:
    def record(value: Any) -> Any:
        if not is_computed(value) or value.value.dtype.is_complex:
            return NotImplemented
        if op == "trunc" and kind_of(value) is None and not _truncates(value):
            dtype = value.value.dtype
            message = f"math.trunc of {dtype}: NumPy's {dtype} has no __trunc__"
            raise DtypeError(message, hint="write int(x)", where=source.user_line())
        result = number_arithmetic.to_integer(value, op)
        return NotImplemented if result is None else result

    return record


for _function, _op in _ROUNDING.items():
    replaces(_function, FUNCTIONS)(_rounding_twin(_op))


@replaces(math.isqrt, FUNCTIONS)
def _isqrt(value: Any) -> Any:
    """The integer square root, of integers whose root the square root of a float determines."""
    if not isinstance(value, SymbolicSize) or not 0 <= value <= LARGEST_SQUARE:
        return NotImplemented
    root = number_arithmetic.to_integer(apply("sqrt", number_arithmetic.size_to_float(value)), "floor")
    return NotImplemented if root is None else root


MOST_CHOSEN = 4
"""Elements that `math.comb` of a size chooses in the trace: the products stay below 64 bits for the sizes of arrays."""
LARGEST_CHOSEN_FROM = 1 << 15
LARGEST_DIVIDED = 1 << 10
"""The constant of which `math.gcd` asks each divisor, at most."""


@replaces(math.comb, FUNCTIONS)
def _comb(count: Any, chosen: Any) -> Any:
    """The number of choices of a few from a size, as `n * (n - 1) // 2`."""
    if not isinstance(count, SymbolicSize) or type(chosen) is not int or not 0 <= chosen <= MOST_CHOSEN:
        return NotImplemented
    if not 0 <= count <= LARGEST_CHOSEN_FROM:
        return NotImplemented
    choices: Any = 1
    for k in range(chosen):
        choices = choices * (count - k) // (k + 1)
    return choices


@replaces(math.gcd, FUNCTIONS)
def _gcd(*integers: Any) -> Any:
    """The greatest common divisor of a size and constants: one trace for each divisor that sizes have in common."""
    sizes = [integer for integer in integers if isinstance(integer, SymbolicSize)]
    constants = [integer for integer in integers if type(integer) is int]
    constant = math.gcd(*constants)
    if len(sizes) != 1 or len(constants) < len(integers) - 1 or not 0 < constant <= LARGEST_DIVIDED:
        return NotImplemented
    divisors = (divisor for divisor in range(constant, 0, -1) if constant % divisor == 0)
    return next(divisor for divisor in divisors if divisor == 1 or sizes[0] % divisor == 0)


@replaces(math.log, FUNCTIONS)
def _log(value: Any, *base: Any) -> Any:
    converted = _of_floats((value, *base))
    if converted is None or len(base) > 1:
        return NotImplemented
    logarithms = [apply("log", operand) if isinstance(operand, Traced) else math.log(operand) for operand in converted]
    if not all(map(is_finite, logarithms)):
        return NotImplemented
    numbers = [number(operand, "float") for operand in logarithms]
    return numbers[0] / numbers[1] if base else numbers[0]


@replaces(math.pow, FUNCTIONS)
def _pow(base: Any, exponent: Any) -> Any:
    converted = _of_floats((base, exponent))
    result = None if converted is None else number_arithmetic.power(*converted)
    return NotImplemented if result is None else result


@replaces(math.fmod, FUNCTIONS)
def _fmod(dividend: Any, divisor: Any) -> Any:
    converted = _of_floats((dividend, divisor))
    if converted is None or not is_nonzero(converted[1]):
        return NotImplemented
    result = np.fmod(*converted)
    return number(result, "float") if is_finite(result) else NotImplemented


@replaces(math.degrees, FUNCTIONS)
def _degrees(angle: Any) -> Any:
    converted = _of_floats((angle,))
    return NotImplemented if converted is None else converted[0] * (180.0 / math.pi)


@replaces(math.radians, FUNCTIONS)
def _radians(angle: Any) -> Any:
    converted = _of_floats((angle,))
    return NotImplemented if converted is None else converted[0] * (math.pi / 180.0)


@replaces(math.isclose, FUNCTIONS)
def _isclose(a: Any, b: Any, *, rel_tol: float = 1e-09, abs_tol: float = 0.0) -> Any:
    converted = _of_floats((a, b))
    if converted is None or any(
        kind_of(operand) is None or isinstance(operand, Traced) for operand in (rel_tol, abs_tol)
    ):
        return NotImplemented
    if rel_tol < 0 or abs_tol < 0 or not all(map(_is_finite_float, converted)):
        return NotImplemented
    difference = abs(converted[0] - converted[1])
    sizes = [abs(operand) for operand in converted]
    near = apply("le", difference, apply("maximum", *(rel_tol * operand for operand in sizes)))
    return number(apply("logical_or", near, apply("le", difference, abs_tol)), "bool")


def _is_finite_float(value: Any) -> bool:
    if isinstance(value, SymbolicSize):
        return True
    return assume(apply("isfinite", value)) if isinstance(value, Traced) else math.isfinite(value)
