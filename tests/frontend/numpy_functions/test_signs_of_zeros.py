"""Signs of zeros in the larger and the smaller of two elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def extremes(x: Any, y: Any) -> Any:
    return (
        np.maximum(x, 0.0), np.maximum(0.0, x), np.minimum(x, 0.0), np.minimum(-0.0, x), np.maximum(-x, 0),
        np.maximum(x, y), np.minimum(x, y), np.maximum(x, -0.0), np.maximum(x * y, 0.0), np.clip(x, 0.0, 1.0),
        np.clip(x, -1, 0), np.clip(x, 0, None), np.clip(x, None, -0.0), np.clip(x, y, np.abs(y)),
        np.minimum(np.maximum(x, 0.0), 1.0),
    )  # fmt: skip


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_larger_and_the_smaller_of_zeros_of_both_signs_are_those_of_numpy(dtype: Any, target: str) -> None:
    x, y = np.meshgrid(*[np.array([-0.0, 0.0, 1, -1, np.nan, 2, 9], dtype)] * 2)
    for array, other in ((x.ravel(), y.ravel()), (x.ravel()[:3], y.ravel()[4:7])):
        for result, expected in zip(fuse(extremes, target=target)(array, other), extremes(array, other), strict=True):
            np.testing.assert_array_equal(result, expected)
            known = ~np.isnan(expected)
            np.testing.assert_array_equal(np.signbit(result)[known], np.signbit(expected)[known])


def test_the_reciprocal_of_a_rectified_negative_zero_is_infinite_and_positive() -> None:
    with np.errstate(divide="ignore"):
        expected = 1 / np.maximum(np.array([-0.0] * 9), 0.0)
    np.testing.assert_array_equal(fuse(lambda x: 1 / np.maximum(x, 0.0))(np.array([-0.0] * 9)), expected)


@pytest.mark.parametrize("number", [complex(np.inf, 0), complex(-0.0, -0.0), complex(1, -0.0), complex(0, -2)])
def test_a_product_of_one_complex_number_starts_at_one(number: complex) -> None:
    x = np.array([number])
    for function in (np.prod, lambda x: np.nanprod(x, axis=0), lambda x: np.multiply.reduce(x[:, None], axis=1)):
        with np.errstate(invalid="ignore"):
            result, expected = np.ravel(fuse(function, target="cpu")(x)), np.ravel(function(x))
        for mine, right in ((result.real, expected.real), (result.imag, expected.imag)):
            np.testing.assert_array_equal(mine, right)
            np.testing.assert_array_equal(np.signbit(mine)[mine == 0], np.signbit(right)[right == 0])
