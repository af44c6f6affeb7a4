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
