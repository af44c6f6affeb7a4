"""Loops over ranges whose step is an argument, and loops that end with an error of their sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def smooth(x: Any, k: Any) -> Any:
    total = 0.0
    for i in range(k, x.shape[0] - k, k):
        total = total * 0.9 + x[i - k] - x[i + k]
    return total


def count_down(x: Any, k: Any) -> Any:
    x = x.copy()
    for i in range(x.shape[0] - 1, 0, -k):
        x[i] += x[i - 1]
    return x


def pairs(x: Any, k: Any) -> Any:
    return [x[i] + i for i in range(1, len(x), k)], max(x[i] for i in reversed(range(0, len(x), k)))


@pytest.mark.parametrize("function", [smooth, count_down, pairs])
def test_a_loop_has_one_trace_for_every_step_that_is_an_argument(function: Any) -> None:
    fused = fuse(function)
    for size, k in ((100, 2), (100, 3), (120, 5), (90, 4), (200, 6)):
        x = np.arange(size) * 0.5 % 7
        result, expected = fused(x, k), function(x, k)
        if function is pairs:
            assert np.allclose(result[0], expected[0])
            assert result[1] == expected[1]
        else:
            assert np.allclose(result, expected)
    assert fused.cache_info().traces == 1


def test_a_loop_of_a_negative_step_or_of_step_0_ends_as_in_python() -> None:
    fused, x = fuse(count_down, target="reference"), np.arange(30.0)
    assert np.array_equal(fused(x, 1), count_down(x, 1))
    assert np.array_equal(fused(x, -1), x)
    with pytest.raises(ValueError, match="must not be zero"):
        fused(x, 0)


def test_a_while_loop_that_leaves_the_array_ends_with_its_error() -> None:
    @fuse(target="reference")
    def total(x: Any, k: Any) -> Any:
        result, i = 0.0, 0
        while i < len(x):
            result, i = result + x[i], i + k
        return result

    assert total(np.arange(9.0), 2) == 20
    with pytest.raises(IndexError, match="-10 is out of bounds"):
        total(np.arange(9.0), -1)
