"""Indices by the counter of a loop that are negative in some iterations, as `x[k - 1]` from 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def filtered(x: Any, table: Any) -> Any:
    result = np.zeros_like(x)
    for k in range(len(x)):
        result[k] = 0.5 * result[k - 1] + x[k]
    return result


def shoelace(x: Any, table: Any) -> Any:
    area = 0.0
    for k in range(len(x)):
        area += x[k - 1] * table[k, 0] - x[k] * table[k - 1, 0]
    return area / 2


def moved_rows(x: Any, table: Any) -> Any:
    result = np.zeros_like(table)
    for k in range(len(x)):
        result[k - 2] = 0.5 * result[k - 1] + table[k] * x[-k]
    return result


def chosen(x: Any, table: Any) -> Any:
    count = 0
    for k in range(len(x)):
        if x[k] > x[k - 1]:
            table[k - 1] -= table[k]
            count += 1
    return count, table


def squares(x: Any, table: Any) -> Any:
    total = 0.0
    for k in range(17):
        if x[k] > 0:
            total += x[(k * k - 1) % len(x)] + table[(k * k) // 2 % len(x), k % 3]
    return total


@pytest.mark.parametrize("function", [filtered, shoelace, moved_rows, chosen, squares])
def test_an_index_that_wraps_around_is_one_trace(function: Callable[..., Any]) -> None:
    fused, rng = fuse(function), np.random.default_rng(0)
    for size in (20, 31, 300):
        x, table = rng.standard_normal(size), rng.standard_normal((size, 3))
        expected = function(x, table.copy())
        result = fused(x, table.copy())
        pairs = zip(result, expected, strict=True) if isinstance(expected, tuple) else [(result, expected)]
        for one, other in pairs:
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    assert fused.cache_info().traces == 1


def test_an_index_below_the_start_of_the_axis_raises() -> None:
    def far(x: Any) -> Any:
        total = 0.0
        for k in range(len(x)):
            total += x[k - 30]
        return total

    fused = fuse(far)
    assert fused(np.ones(40)) == 40
    with pytest.raises(IndexError, match="out of bounds"):
        fused(np.ones(20))
