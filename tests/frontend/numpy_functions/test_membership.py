"""`np.isin` of few known numbers and `np.resize` are kernels, with the values of NumPy for every type and size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

SETS: tuple[Any, ...] = ([1, 2], [1.5, 2, 3], 3, [np.nan, 1.0], np.array([1, 250], np.uint8), [], list(range(12)))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "uint64", "float16", "float64", "complex64"])
def test_membership_is_that_of_numpy(dtype: str) -> None:
    elements = np.array([[0, 1, 2, 3], [-1, 250, 1, 6]]).astype(dtype)
    for numbers in SETS:
        for invert in (False, True):
            result = fuse(lambda x, n=numbers, i=invert: np.isin(x, n, invert=i), target="reference")(elements)
            np.testing.assert_array_equal(result, np.isin(elements, numbers, invert=invert))


def test_few_numbers_are_compared_in_a_kernel_and_many_by_numpy() -> None:
    few, many = (fuse(lambda x, n=numbers: np.isin(x, n) & (x > 1)) for numbers in (list(range(8)), list(range(9))))
    x = np.arange(20)
    for function, segments in ((few, 1), (many, 2)):
        np.testing.assert_array_equal(function(x), (x > 1) & np.isin(x, np.arange(8 if function is few else 9)))
        assert len(function.segments(x)) == segments


@pytest.mark.parametrize("shape", [(2, 3), (5,), (9, 1), (3, 0), (25,)])
def test_elements_are_repeated_to_fill_a_shape(shape: tuple[int, ...]) -> None:
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(fuse(lambda x: np.resize(x, shape), target="reference")(x), np.resize(x, shape))
