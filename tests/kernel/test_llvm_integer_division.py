"""Tests division by integers that are equal for all elements: products with inverses, of every width."""

from __future__ import annotations

import numpy as np
import pytest

from tracefuse import fuse

SIGNED = (np.int8, np.int16, np.int32, np.int64)
UNSIGNED = (np.uint8, np.uint16, np.uint32, np.uint64)


@fuse
def both(a: np.ndarray, b: np.integer) -> tuple[np.ndarray, np.ndarray]:
    return a // b, a % b


def integers_near(dtype: type[np.integer], multiples_of: int) -> np.ndarray:
    """The ends of the range, powers of two, and multiples of a divisor, each with its neighbours."""
    info = np.iinfo(dtype)
    powers = [s << k for k in range(info.bits) for s in (1, -1)]
    steps = [m * multiples_of for m in (*range(-9, 10), *(info.max // multiples_of - k for k in range(3)))]
    near = {v + d for v in (0, info.min, info.max, *powers, *steps) for d in (-1, 0, 1)}
    return np.array(sorted(v for v in near if info.min <= v <= info.max), dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8], ids=str)
def test_every_quotient_of_8_bits_is_numpys(dtype: type[np.integer]) -> None:
    info = np.iinfo(dtype)
    every = np.arange(info.min, info.max + 1).astype(dtype)
    for divisor in every:
        with np.errstate(all="ignore"):
            expected = every // divisor, every % divisor
        for result, numpys in zip(both(every, divisor), expected, strict=True):
            np.testing.assert_array_equal(result, numpys, err_msg=f"divisor {divisor}")


@pytest.mark.parametrize("dtype", [*SIGNED[1:], *UNSIGNED[1:]], ids=str)
def test_quotients_near_the_ends_and_near_multiples_are_numpys(dtype: type[np.integer]) -> None:
    info = np.iinfo(dtype)
    divisors = [0, 1, 2, 3, 5, 7, 10, 641, info.max, info.max - 1, info.max // 2 + 1, info.max // 3]
    if info.min:
        divisors += [-1, -2, -3, -7, -10, info.min, info.min + 1]
    for divisor in divisors:
        a, b = integers_near(dtype, divisor or 1), dtype(divisor)
        with np.errstate(all="ignore"):
            expected = a // b, a % b
        for result, numpys in zip(both(a, b), expected, strict=True):
            np.testing.assert_array_equal(result, numpys, err_msg=f"divisor {divisor}")


@pytest.mark.parametrize("divisor", [7, 100, -7, -1, 64])
def test_constant_divisors_are_numpys(divisor: int) -> None:
    for dtype in (*SIGNED, *(UNSIGNED if divisor > 0 else ())):
        a = integers_near(dtype, divisor)
        function = fuse(lambda x: (x // divisor, x % divisor))
        with np.errstate(all="ignore"):
            expected = a // dtype(divisor), a % dtype(divisor)
        for result, numpys in zip(function(a), expected, strict=True):
            np.testing.assert_array_equal(result, numpys)
