"""Reference implementations of pointwise ops that are not one function of NumPy.

Must not know: ops, kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np


def each(function: Callable[[float], float]) -> Callable[[Any], Any]:
    """A function of Python's floats on every element."""
    many = np.vectorize(function, otypes=[np.float64])
    return lambda x: many(np.asarray(x, np.float64)).astype(np.asarray(x).dtype)


def lgamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except (ValueError, OverflowError):  # a pole, or beyond the range: both infinite
        return math.inf


def erfcinv(x: float) -> float:
    """The quantile of the normal distribution, improved by Newton's steps on erf or erfc."""
    if not 0.0 <= x <= 2.0:
        return math.nan
    if x in (0.0, 2.0):
        return math.inf if x == 0.0 else -math.inf
    return math.copysign(erfinv(abs(1.0 - x)), 1.0 - x) if 0.5 < x < 1.5 else _erfc_tail(x)


def _erfc_tail(x: float) -> float:
    if x > 1.0:
        return -_erfc_tail(2.0 - x)
    if x < 1e-290:
        return _erfcinv_of_tiny(x)
    guess = -NormalDist().inv_cdf(x / 2) / math.sqrt(2)
    for _ in range(2):
        slope = 2 / math.sqrt(math.pi) * math.exp(-guess * guess)
        guess += (math.erfc(guess) - x) / slope if slope else 0.0
    return guess


def _erfcinv_of_tiny(x: float) -> float:
    """erfcinv of the smallest numbers, where erfc itself has few digits: from its asymptotic series, log(erfc(y)) =
    -y**2 - log(y sqrt(pi)) + log(1 - 1/(2 y**2) + 3/(4 y**4) - ...); each round gains three digits."""
    y = math.sqrt(-math.log(x))
    for _ in range(7):
        z = 0.5 / (y * y)
        series = 1.0 - z * (1.0 - 3.0 * z * (1.0 - 5.0 * z * (1.0 - 7.0 * z * (1.0 - 9.0 * z))))
        y = math.sqrt(-math.log(x) - math.log(y * math.sqrt(math.pi) / series))
    return y


def erfinv(x: float) -> float:
    if not abs(x) < 0.5:
        return math.copysign(_erfcinv_of_complement(abs(x)), x)
    guess = x * math.sqrt(math.pi) / 2
    for _ in range(7):
        guess -= (math.erf(guess) - x) * math.sqrt(math.pi) / 2 * math.exp(guess * guess)
    return guess


def _erfcinv_of_complement(size: float) -> float:
    if not size < 1.0:
        return math.inf if size == 1.0 else math.nan
    return _erfc_tail(1.0 - size)


def from_parts(real: Any, imag: Any) -> Any:
    """Complex numbers from their parts, which a sum with a product by 1j would change where one is infinite."""
    real, imag = np.broadcast_arrays(real, imag)
    result = np.empty(real.shape, np.result_type(real, np.complex64))
    result.real, result.imag = real, imag
    return result


def sigmoid(x: Any) -> Any:
    # exp of the negative magnitude only: no overflow at either end.
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(np.asarray(x).dtype)


def floor_divide(x: Any, y: Any) -> Any:
    return np.where(y == 0, 0, np.floor_divide(x, np.where(y == 0, 1, y))) if is_integer(x) else np.floor_divide(x, y)


def trunc_divide(x: Any, y: Any) -> Any:
    if not is_integer(x):
        return np.trunc(x / y)
    quotient = floor_divide(x, y)
    up = (quotient * y != x) & (quotient < 0) & (y != 0)
    return quotient + up.astype(np.asarray(x).dtype)


def remainder(x: Any, y: Any) -> Any:
    return np.where(y == 0, 0, np.remainder(x, np.where(y == 0, 1, y))) if is_integer(x) else np.remainder(x, y)


def integer_power(x: Any, y: Any) -> Any:
    """Integers wrap. Raises ValueError for a negative exponent."""
    return np.power(x, y)


def checked_position(x: Any, extent: Any) -> Any:
    """Returns x. Raises ValueError for an element that is negative, or not below the extent."""
    if np.any((x < 0) | (x >= extent)):
        raise ValueError("invalid entry: a position is negative, or as large as the extent")
    return np.broadcast_to(x, np.broadcast_shapes(np.shape(x), np.shape(extent)))


def checked_range(x: Any, low: Any, high: Any) -> Any:
    """Returns x. Raises ValueError for an element that is below `low`, above `high` or NaN."""
    if not np.all((x >= low) & (x <= high)):
        raise ValueError("a number is out of range")
    return np.broadcast_to(x, np.broadcast_shapes(np.shape(x), np.shape(low), np.shape(high)))


def power(x: Any, y: Any) -> Any:
    """Integers wrap; a negative exponent gives the reciprocal cut off, of 0 too: 0."""
    if not is_integer(x):
        # NumPy takes the root if all exponents are one element 0.5: of -inf it is NaN, where the power is infinity.
        return np.power(x, np.array(np.broadcast_to(y, np.broadcast_shapes(np.shape(x), np.shape(y)))))
    kind = np.asarray(x).dtype
    power = np.power(x, np.where(y < 0, y & kind.type(1), y))
    unit = (x == 1) | (x == (-1 if kind.kind == "i" else 1))
    return np.where((y < 0) & ~unit, kind.type(0), power)


def logical_right_shift(x: Any, y: Any) -> Any:
    unsigned = np.dtype(f"u{np.asarray(x).itemsize}")
    return np.right_shift(np.asarray(x).view(unsigned), np.asarray(y).view(unsigned)).view(np.asarray(x).dtype)


def lerp(a: Any, b: Any, weight: Any) -> Any:
    return np.where(weight < 0.5, a + weight * (b - a), b - (b - a) * (1 - weight))


def is_integer(x: Any) -> bool:
    return bool(np.issubdtype(np.asarray(x).dtype, np.integer))
