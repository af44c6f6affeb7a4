"""Numbers that a call computes, where NumPy converts a number of Python or a scalar to an integer type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.programs.comparison import difference
from tracefuse import fuse

Function = Callable[[Any, Any], Any]


def assign(x: Any, y: Any) -> Any:
    x[0] = y.sum()
    x[1:3] = y.sum()
    return x


def assign_number(x: Any, y: Any) -> Any:
    x[x > 3] = y.sum().item()
    x[[0, 1]] = y[0].item()
    return x


def assign_in_loop(x: Any, y: Any) -> Any:
    total = 0.0
    for i in range(len(x)):
        total += y[i]
        x[i] = total
    return x


def count_in_loop(x: Any, y: Any) -> Any:
    for i in range(len(x)):
        x[i] += i * int(y[0])
    return x


def create(x: Any, y: Any) -> Any:
    return np.full(3, int(y.sum()), x.dtype), np.array([int(y.sum()), 1], x.dtype), np.insert(x, 0, int(y.sum()))


def combine(x: Any, y: Any) -> Any:
    return x + int(y.sum()), np.maximum(x, int(y.max()))


def compare(x: Any, y: Any) -> Any:
    number = int(y.sum())
    return x < number, x == number, x >= -number, np.clip(x, 0, number if number > 0 else 0)


def handle(x: Any, y: Any) -> Any:
    try:
        x[0] = int(y.sum())
    except OverflowError:
        x[1] = 7
    return x


FUNCTIONS: tuple[Function, ...] = (
    assign, assign_number, assign_in_loop, count_in_loop, create, combine, compare, handle,
)  # fmt: skip


def outcome(function: Function, x: Any, y: Any) -> Any:
    try:
        return function(x.copy(), y.copy())
    except (OverflowError, ValueError) as error:
        return OverflowError if isinstance(error, OverflowError) else ValueError


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_computed_number_that_an_integer_type_does_not_hold_is_an_overflow_error(
    function: Function, target: str
) -> None:  # fmt: skip
    fused = fuse(function, target=target)
    for dtype in (np.int8, np.uint8) if target == "cpu" else (np.int8, np.uint8, np.int32, np.uint64):
        x = np.arange(20).astype(dtype)
        for y in (np.full(20, 1), np.full(20, 20), np.full(20, -20)):
            expected = outcome(function, x, y)
            result = outcome(fused, x, y)
            if isinstance(expected, type):
                assert result is expected, (dtype, y[0])
            elif function is not assign_in_loop or dtype is np.int8:  # NumPy leaves negative floats in uint8 open
                assert difference(result, expected, "result") is None, (dtype, y[0])


def test_a_computed_nan_is_no_integer() -> None:
    fused = fuse(assign_in_loop)
    with pytest.raises(ValueError, match="NaN"):
        fused(np.zeros(20, np.int32), np.full(20, np.nan))
