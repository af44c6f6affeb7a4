"""Scalars, lists, exponents and orders inside a fused function are NumPy's."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tracefuse import ScalarError, fuse
from tracefuse.errors import DtypeError, UnsupportedError

INTEGERS = np.array([3, -4, 5])
FLOATS = np.array([1.5, -2.0, 0.5])


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, (tuple, list)):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(found, expected)


def rebound(s: Any, divisor: Any) -> Any:
    first = s
    s /= divisor
    return first, s


SCALARS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "a sum": (lambda a: rebound(a.sum(), 3), (FLOATS,)),
    "a NumPy scalar": (lambda a, s: (*rebound(s, 2), a + s), (FLOATS, np.float32(5))),
    "a copy of an array without axes": (lambda a: (y := a.copy(), operator.iadd(y, 1), y)[1:], (np.array(2.0),)),
    "a mean that an array is added to": (lambda a: operator.iadd(a.mean(), a), (FLOATS,)),
    "a list": (lambda a: (a == [3, 2, 5], [1, 2, 3] * a, a @ [1, 2, 3], operator.add(a, (1, 2, 3))), (INTEGERS,)),
    "a list of traced scalars": (lambda a: operator.add(a, [a[0], a.sum(), 1]), (INTEGERS,)),
    "a list argument": (lambda a, values: a * values, (INTEGERS, [1, 2, 3])),
    "functions of lists": (lambda a: (np.sum([a, a], axis=0), np.max([a[0], a[1]]), np.mean([a[0], 2])), (INTEGERS,)),
    "a scalar that repeats a list": (lambda a, n: a + n * [1], (INTEGERS, np.int64(3))),
    "an exponent with a type": (lambda a: a ** np.int64(3), (INTEGERS.astype(np.int8),)),
    "a square of truth values": (lambda a, n: (a**2, a**n, np.power(a, 2)), (FLOATS > 0, 2)),
    "rounded integers": (lambda a: (np.round(a, -1), np.round(a > 0), a.round(2)), (INTEGERS,)),
    "rounded scalars": (lambda a: round(a.sum(), 1), (FLOATS,)),
    "angles": (lambda a: (np.angle(a), np.angle(a, deg=True)), (INTEGERS.astype(np.int8),)),
    "unsigned and signed": (
        lambda u, i: (u < i, u <= i, u > i, u >= i, u == i, u != i, i < u),
        (np.array([2, 2**63, 2**63 - 1], np.uint64), np.array([-1, 2**63 - 1, 2**63 - 1])),
    ),
    "isclose of unsigned": (
        lambda u: np.isclose(u, u[::-1]), (np.array([1, 2**63 + 1, 2**64 - 1], np.uint64),)
    ),
    "complex order": (
        lambda z: (z.max(), z.min(0), z.argmax(), np.maximum(z, z[::-1]), z < z[::-1], np.clip(z, 0, 1), np.ptp(z)),
        (np.array([1 + 2j, 1 - 1j, 5j, 1 + 2j]),),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SCALARS)
def test_the_results_of_a_function_of_scalars_and_lists_are_numpys(case: str) -> None:
    function, arguments = SCALARS[case]
    copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    assert_same(fuse(function, target="reference", exact_half=True)(*copies), function(*arguments))


def test_kernels_order_complex_numbers_and_compare_mixed_signs() -> None:
    for case in ("complex order", "unsigned and signed"):
        function, arguments = SCALARS[case]
        assert_same(fuse(function)(*arguments), function(*arguments))


@pytest.mark.parametrize("target", ["auto", "reference"])
def test_negative_exponents_of_integers_raise_also_where_they_are_data(target: str) -> None:
    power = fuse(lambda a, n: a**n, target=target)
    np.testing.assert_array_equal(power(INTEGERS, np.array([0, 1, 2])), [1, -4, 25])
    for exponent in (np.array([1, -1, 2]), np.int64(-1), -2):
        with pytest.raises(ScalarError, match="Integers to negative integer powers are not allowed"):
            power(INTEGERS, exponent)


def test_a_float_does_not_repeat_a_list() -> None:
    with pytest.raises(DtypeError, match="a list cannot be repeated by a float64"):
        fuse(lambda a: a.sum() * [1, 2])(FLOATS)


def test_mantissas_and_exponents_are_exact() -> None:
    x = np.array([0.0, -0.0, np.inf, np.nan, 1.0, -0.75, 5e-324, 1.7e308, 2.0**-1022])
    exponents = np.array([3, 0, 1, 2, -1074, 1024, 2000, -2100, -40], np.int32)
    assert_same(fuse(np.frexp)(x), np.frexp(x))
    with np.errstate(all="ignore"):
        assert_same(fuse(np.ldexp)(x, exponents), np.ldexp(x, exponents))


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((65536,), None), ((2, 65536), 1), ((65536, 2), 0), ((100, 64, 40), (0, 2)), ((300, 5, 3, 50), (0, 2))],
)
def test_a_sum_of_equal_numbers_errs_by_a_millionth_at_most(shape: tuple[int, ...], axis: Any) -> None:
    x = np.full(shape, 0.1, np.float32)
    exact = x.astype(np.float64).sum(axis)
    assert (np.abs(fuse(lambda v: v.sum(axis))(x) - exact) / exact).max() <= 1e-6


def test_slices_of_equal_extents_that_a_requirement_relates_are_one_program() -> None:
    def padded(r: Any, w: Any) -> Any:
        t = np.tanh(r[1:])
        return np.pad(w[1:] * t, (1, 0)), t * w[1:]

    for found, expected in zip(fuse(padded)(FLOATS, FLOATS), padded(FLOATS, FLOATS), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-14)


LISTS = [
    "np.linalg.norm([x[0], x[1]])", "np.diag([1, 1, x.sum()])", "np.linalg.det([[x[0], x[1]], [1, 2]])",
    "np.linalg.solve([[x[0], x[1]], [1, 2]], [x[0], 1])", "np.interp(x, [0, x[0]], [1, x[1]])",
    "np.polyval([x[0], 1], x)", "np.cross([x[0], 1, 2], x)", "np.convolve([x[0], 1], x)",
    "np.histogram([x[0], x[1]], 3)[0]", "np.percentile([x[0], x[1]], 50)", "np.reshape([x[0], x[1]], (2, 1))",
    "np.fft.fft([x[0], x[1]])", "np.searchsorted([1, x[0]], x)", "np.linalg.norm([1, 2]) * x",
]  # fmt: skip


@pytest.mark.parametrize("expression", LISTS)
def test_lists_of_traced_values_are_arrays(expression: str) -> None:
    function = eval(f"lambda x: {expression}", {"np": np})
    x = np.array([3.0, 4.0, 1.0])
    np.testing.assert_allclose(fuse(function, target="reference")(x), function(x), rtol=1e-14)


@pytest.mark.parametrize("value", [Fraction(1), Decimal(1), deque([1.0, 2.0]), date(2020, 1, 1)])
def test_a_comparison_that_numpy_leaves_to_each_element_is_refused(value: Any) -> None:
    for function in (lambda x: x == value, lambda x: value != x, lambda x: value in x):
        with pytest.raises(UnsupportedError, match=r"compared with a .*test_scalars_and_lists.py:"):
            fuse(function, target="reference")(np.arange(2.0))
