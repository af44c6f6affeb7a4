"""Reference implementations of the kernel IR's primitives and casts in NumPy, which both emitters must match.

`REFERENCE` maps each name of `ir.PRIMITIVES` to a function of NumPy arrays or scalars that returns its result in the
arguments' dtype; `convert` implements `Cast`. Every primitive is defined for all arguments: see `ir.PRIMITIVES`.

Functions of float32 other than + - * / are computed in float64 and rounded once, so the reference is the more accurate
side of every comparison. float16 and bfloat16 are computed in float32 and rounded. Callers silence NumPy's warnings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

import numpy as np

from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.rounding import round_to_half

Function = Callable[..., Any]


# ---------------------------------------------------------------------------------------------------------------------
# casts


def _to_integer(values: Any, to: DType) -> Any:
    """Round toward zero and saturate; NaN becomes 0."""
    wide = values.astype(np.float64)
    limits = np.iinfo(cast(Any, to.numpy))
    high, low = wide >= float(limits.max), wide <= float(limits.min)
    inside = np.where(high | low | np.isnan(wide), 0.0, wide).astype(to.numpy)
    result = np.where(high, limits.max, np.where(low, limits.min, inside))
    return result.astype(to.numpy)


def convert(values: Any, to: DType) -> Any:
    """Return `values`, a NumPy array or scalar, as dtype `to`.

    Floats round to nearest even, float to int saturates, and a conversion to bool compares with zero.
    """
    values = np.asarray(values)
    source = dtypes.dtype_of(values.dtype)
    if source is to:
        return values
    if to is dtypes.bool_:
        return np.asarray(values != 0)
    if source.kind == "complex" and to.kind != "complex":
        return convert(values.real, to)
    if source.is_half and to is not dtypes.float32:
        return convert(values.astype(np.float32), to)
    if source.is_floating and to.is_integer:
        return _to_integer(values, to)
    if to.is_half and source is not dtypes.float32:
        return round_to_half(values, to)
    return values.astype(to.numpy)


# ---------------------------------------------------------------------------------------------------------------------
# arithmetic


def _is_float(x: Any) -> bool:
    return np.asarray(x).dtype.kind not in "biu"


def _floor_divide(x: Any, y: Any) -> Any:
    if _is_float(x):
        return np.floor_divide(x, y)
    quotient = _truncated_divide(x, y)
    remainder = _truncated_remainder(x, y)
    return quotient - ((remainder != 0) & ((x < 0) != (y < 0))).astype(np.asarray(x).dtype)


def _remainder(x: Any, y: Any) -> Any:
    if _is_float(x):
        return np.remainder(x, y)
    remainder = _truncated_remainder(x, y)
    kind = np.asarray(x).dtype
    return np.asarray(remainder + np.where((remainder != 0) & ((x < 0) != (y < 0)), y, kind.type(0)), dtype=kind)


def _minus_one(y: Any) -> Any:
    return (y == -1) if np.asarray(y).dtype.kind == "i" else np.zeros(np.shape(y), bool)


def _truncated_divide(x: Any, y: Any) -> Any:
    if _is_float(x):
        return np.trunc(x / y)
    kind = np.asarray(x).dtype
    zero, negates = np.asarray(y == 0), _minus_one(y)
    safe = np.asarray(np.where(zero | negates, kind.type(1), y), dtype=kind)
    floor = x // safe
    up = ((x - floor * safe) != 0) & ((x < 0) != (safe < 0))
    quotient = np.where(negates, np.negative(x), floor + np.asarray(up, dtype=kind))
    return np.asarray(np.where(zero, kind.type(0), quotient), dtype=kind)


def _truncated_remainder(x: Any, y: Any) -> Any:
    if _is_float(x):
        return np.fmod(x, y)
    kind = np.asarray(x).dtype
    safe = np.where(np.asarray(y == 0) | _minus_one(y), kind.type(1), y).astype(kind)
    return np.fmod(x, safe)


def _shift(function: Function, past: Function) -> Function:
    def shift(x: Any, y: Any) -> Any:
        kind = np.asarray(x).dtype
        out = np.asarray((y < 0) | (y >= 8 * kind.itemsize))
        count = np.asarray(np.where(out, 0, y), dtype=kind)
        return np.asarray(np.where(out, past(x), function(x, count)), dtype=kind)

    return shift


def _sign(x: Any) -> Any:
    kind = np.asarray(x).dtype
    return np.zeros_like(x) if kind.kind == "u" else np.asarray(np.where(x < 0, -1, 0), dtype=kind)


def _shift_logical(x: Any, y: Any) -> Any:
    kind = np.asarray(x).dtype
    unsigned = np.dtype(f"u{kind.itemsize}")
    shifted = _shift(np.right_shift, np.zeros_like)(np.asarray(x).view(unsigned), np.asarray(y).view(unsigned))
    return np.asarray(shifted).view(kind)


def _select(condition: Any, x: Any, y: Any) -> Any:
    return np.where(condition, x, y).astype(np.asarray(x).dtype)


# ---------------------------------------------------------------------------------------------------------------------
# functions of floats


def _rounded_once(function: Function) -> Function:
    """Return `function` evaluated in float64 or wider and rounded to the arguments' dtype."""

    def rounded(*values: Any) -> Any:
        kind = np.asarray(values[0]).dtype
        if kind != np.float32:
            return function(*values)
        return np.asarray(function(*(v.astype(np.float64) for v in values))).astype(np.float32)

    return rounded


def _by_element(function: Callable[[float], float]) -> Function:
    many = np.frompyfunc(function, 1, 1)

    def each(values: Any) -> Any:
        kind = np.asarray(values).dtype
        return np.asarray(many(np.asarray(values, np.float64)), dtype=np.float64).astype(kind)

    return each


def _log_gamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # at a pole and on overflow the result is infinite
        return math.inf


def _inverse_erf(x: float) -> float:
    """Refine an initial guess by Halley steps on erf (near 0) or erfc (near 1).

    The form of the initial guess follows M. Giles, "Approximating the erfinv function", GPU Computing Gems, 2011.
    """
    if math.isnan(x) or abs(x) > 1.0:
        return math.nan
    if abs(x) == 1.0:
        return math.copysign(math.inf, x)
    if x == 0.0:
        return x
    size = abs(x)
    logarithm = math.log1p(-size) + math.log1p(size)
    a = 0.147  # Winitzki's constant: the guess is accurate to 2e-3, and three Halley steps make it exact
    half = 2.0 / (math.pi * a) + logarithm / 2.0
    guess = math.sqrt(max(math.sqrt(max(half * half - logarithm / a, 0.0)) - half, 0.0))
    for _ in range(4):
        error = math.erf(guess) - size if size < 0.5 else (1.0 - size) - math.erfc(guess)
        slope = 2.0 / math.sqrt(math.pi) * math.exp(-guess * guess)
        if slope == 0.0 or error == 0.0:
            break
        step = error / slope
        guess -= step / (1.0 + guess * step)
    return math.copysign(guess, x)


def _inverse_erfc_of_tiny(x: float) -> float:
    """Compute erfcinv of the smallest numbers, where erfc is subnormal and has few digits, from its asymptotic series.

    log(erfc(y)) = -y**2 - log(y sqrt(pi)) + log(1 - 1/(2 y**2) + 3/(4 y**4) - ...); each iteration adds three digits.
    """
    y = math.sqrt(-math.log(x))
    for _ in range(7):
        z = 0.5 / (y * y)
        series = 1.0 - z * (1.0 - 3.0 * z * (1.0 - 5.0 * z * (1.0 - 7.0 * z * (1.0 - 9.0 * z))))
        y = math.sqrt(-math.log(x) - math.log(y * math.sqrt(math.pi) / series))
    return y


def _inverse_erfc(x: float) -> float:
    """Bisect for the y at which erfc(y) = x; results for large x come from erfinv by symmetry."""
    if math.isnan(x) or not 0.0 <= x <= 2.0:
        return math.nan
    if x in (0.0, 2.0):
        return math.inf if x == 0.0 else -math.inf
    if x > 0.5:
        return _inverse_erf(1.0 - x)
    if x < 1e-290:
        return _inverse_erfc_of_tiny(x)
    low, high = 0.0, 28.0
    for _ in range(70):
        middle = (low + high) / 2.0
        low, high = (middle, high) if math.erfc(middle) > x else (low, middle)
    return (low + high) / 2.0


def _power(x: Any, y: Any) -> Any:
    return _float_power(x, y) if _is_float(x) else _integer_power(x, y)


def _integer_power(x: Any, y: Any) -> Any:
    """Exponentiate by squaring with wraparound; a negative exponent gives the reciprocal truncated to an integer."""
    base, exponent = (np.asarray(v) for v in np.broadcast_arrays(x, y))
    kind = base.dtype
    negative = exponent < 0
    left = np.where(negative, exponent & kind.type(1), exponent).astype(kind)
    result, square = np.ones_like(base), base
    while np.any(left != 0):
        result = np.where(left & kind.type(1) != 0, result * square, result).astype(kind)
        square, left = square * square, left >> kind.type(1)
    unit = (base == 1) | (base == (-1 if kind.kind == "i" else 1))
    return np.where(negative & ~unit, kind.type(0), result).astype(kind)[()]


def _exact_fma(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        product = math.copysign(0.0, a) * math.copysign(1.0, b)
        return product + c if a == 0 or b == 0 else 0.0
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _fma(a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, rounded once: by exact rationals for float64, by TwoSum and round-to-odd for float32."""
    kind = np.asarray(a).dtype
    if kind != np.float32:
        many = np.frompyfunc(_exact_fma, 3, 1)
        return np.asarray(many(a, b, c), dtype=np.float64).astype(kind)
    product, addend = np.multiply(a, b, dtype=np.float64), np.asarray(c, np.float64)
    total = np.asarray(product + addend)
    virtual = total - product
    error = (product - (total - virtual)) + (addend - virtual)
    inexact = np.isfinite(error) & (error != 0) & (total.view(np.uint64) & np.uint64(1) == 0)
    away = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(inexact, away, total).astype(np.float32)


_power_of_each = _rounded_once(np.power)


def _float_power(x: Any, y: Any) -> Any:
    """Exponentiate; NumPy takes the square root for a single exponent of 0.5, which differs at minus infinity."""
    base, exponent = (np.ascontiguousarray(v) for v in np.broadcast_arrays(x, y))  # of one axis at least
    return _power_of_each(base, exponent).reshape(np.broadcast_shapes(np.shape(x), np.shape(y)))


def _fast_divide(a: Any, inverse: Any) -> Any:
    low, factor = (np.asarray(v).astype(np.uint64) for v in (a, inverse))
    mask = np.uint64(2**32 - 1)
    low = low & mask
    high = low * (factor >> np.uint64(32)) + (low * (factor & mask) >> np.uint64(32))
    return (high >> np.uint64(30)).astype(np.asarray(a).dtype)[()]


REFERENCE: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "floordiv": _floor_divide,
    "mod": _remainder,
    "truncdiv": _truncated_divide,
    "truncmod": _truncated_remainder,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "shl": _shift(np.left_shift, np.zeros_like),
    "shr": _shift(np.right_shift, _sign),
    "shr_logical": _shift_logical,
    "not": np.invert,
    "select": _select,
    "sqrt": np.sqrt,
    "rsqrt": _rounded_once(lambda x: 1.0 / np.sqrt(x)),
    "exp": _rounded_once(np.exp),
    "exp_term": _rounded_once(np.exp),
    "exp2": _rounded_once(np.exp2),
    "exp2_term": _rounded_once(np.exp2),
    "expm1": _rounded_once(np.expm1),
    "log": _rounded_once(np.log),
    "log2": _rounded_once(np.log2),
    "log10": _rounded_once(np.log10),
    "log1p": _rounded_once(np.log1p),
    "cbrt": _rounded_once(np.cbrt),
    "sin": _rounded_once(np.sin),
    "cos": _rounded_once(np.cos),
    "tan": _rounded_once(np.tan),
    "asin": _rounded_once(np.arcsin),
    "acos": _rounded_once(np.arccos),
    "atan": _rounded_once(np.arctan),
    "sinh": _rounded_once(np.sinh),
    "cosh": _rounded_once(np.cosh),
    "tanh": _rounded_once(np.tanh),
    "asinh": _rounded_once(np.arcsinh),
    "acosh": _rounded_once(np.arccosh),
    "atanh": _rounded_once(np.arctanh),
    "erf": _by_element(math.erf),
    "erfc": _by_element(math.erfc),
    "erfinv": _by_element(_inverse_erf),
    "erfcinv": _by_element(_inverse_erfc),
    "lgamma": _by_element(_log_gamma),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "trunc": np.trunc,
    "pow": _power,
    "gcd": np.gcd,
    "fast_divide": _fast_divide,
    "atan2": _rounded_once(np.arctan2),
    "nextafter": np.nextafter,
    "copysign": np.copysign,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
    "fma": _fma,
    "rounded_product": np.multiply,
    # the call gives the result dtype: `apply` reinterprets the bits
    "bitcast": np.asarray,
}

_HALVES = frozenset((dtypes.float16.numpy, dtypes.bfloat16.numpy))

# Computed directly on half types; every other primitive is computed in float32 and rounded.
_HALF_AS_IS = frozenset({"select", "nextafter", "neg", "abs", "copysign"})


def apply(name: str, arguments: list[Any], result: DType) -> Any:
    """Apply primitive `name` to NumPy arrays or scalars; the result has dtype `result`."""
    if name == "bitcast":
        return np.ascontiguousarray(arguments[0]).reshape(np.shape(arguments[0])).view(result.numpy)
    halves = any(np.asarray(a).dtype in _HALVES for a in arguments)
    if halves and name not in _HALF_AS_IS:
        wide = [convert(a, dtypes.dtype_of(np.asarray(a).dtype).compute) for a in arguments]
        value = REFERENCE[name](*wide)
        return convert(value, result) if result.is_half else value
    return REFERENCE[name](*arguments)
