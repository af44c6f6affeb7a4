"""Loops that are entered several times, in which a variable begins as a number of another kind each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def begins_as_an_integer_later(x: Any, y: Any) -> Any:
    total, start = 0.0, 0
    for _ in range(3):
        total += y[0]
        for k in range(len(x)):
            total += y[0]
            x[k] = total
        total = start
    return x


def begins_as_a_large_integer_later(x: Any, y: Any) -> Any:
    total, starts = 0, (300, 0.5, 0)
    for start in starts:
        for k in range(len(x)):
            total = total + y[k]
            x[k] = total
        total = start
    return x


def keeps_the_fraction(x: Any, y: Any) -> Any:
    total = 0.5
    for _ in range(3):
        for k in range(len(x)):
            total += y[0]
            x[k] += total
        total = 0
    return x, total


def becomes_a_float(x: Any, y: Any) -> Any:
    total = 3
    for _ in range(len(x)):
        total = float(total)
    return total, y


def raises_or_returns(function: Any, *arguments: np.ndarray) -> tuple[type | None, Any]:
    copies = [one.copy() for one in arguments]
    try:
        result = function(*copies)
    except OverflowError:
        return OverflowError, None
    return None, (result, copies)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize(
    ("function", "dtype", "target"),
    [(begins_as_an_integer_later, np.int8, "reference"), (begins_as_an_integer_later, np.int8, "cpu"),
     (begins_as_a_large_integer_later, np.int8, "reference"), (begins_as_a_large_integer_later, np.int16, "reference"),
     (keeps_the_fraction, np.float64, "reference"), (becomes_a_float, np.float64, "reference")],
)  # fmt: skip
def test_the_number_before_a_loop_keeps_its_value_and_its_kind(function: Any, dtype: Any, target: str) -> None:
    fused = fuse(function, target=target)
    for size, step in ((20, 4), (40, 4)):
        arguments = np.zeros(size, dtype), np.full(size, step, np.int8)
        kind, result = raises_or_returns(fused, *arguments)
        expected_kind, expected = raises_or_returns(function, *arguments)
        assert kind is expected_kind
        np.testing.assert_equal(result, expected)


def test_a_float_that_a_loop_makes_of_an_integer_is_a_float() -> None:
    total, _ = fuse(becomes_a_float)(np.ones(20), np.ones(3))
    assert type(total) is float
