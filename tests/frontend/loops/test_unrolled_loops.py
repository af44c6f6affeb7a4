"""Loops that cannot be recorded, of which unrolled iterations would record too many ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def bind_twice(x: Any) -> Any:
    y, last = x * 2, x
    for i in range(x.size):
        for j in range(x.size):
            last = y if i % 2 else y[::-1]
            y = y * 0.5 + last * 0.25 - x[i] * j
    return y, last


def test_calls_run_the_function_itself_where_a_loop_would_record_too_many_ops() -> None:
    fused, x = fuse(bind_twice, target="cpu"), np.random.default_rng(0).standard_normal(60)
    with pytest.warns(UserWarning, match="this loop is unrolled, since .*: from there on, calls run the function"):
        results = fused(x)
    for result, expected in zip(results, bind_twice(x), strict=True):
        np.testing.assert_array_equal(result, expected)
    for result, expected in zip(fused(x * 3), bind_twice(x * 3), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_a_short_one_is_compiled() -> None:
    fused, x = fuse(bind_twice, target="cpu"), np.random.default_rng(0).standard_normal(5)
    for result, expected in zip(fused(x), bind_twice(x), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-12)
