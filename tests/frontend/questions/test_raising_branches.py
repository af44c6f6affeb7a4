"""`if ...: raise` is a check with the results, not a question; a call for which it fails raises as Python does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def checked(x: Any) -> Any:
    if np.isnan(x).any():
        raise ValueError(f"x has {np.isnan(x).sum()} NaN")
    if not (x > -10).all():
        raise AssertionError("too low")
    return np.sqrt(abs(x))


def caught(x: Any) -> Any:
    try:
        if (x < 0).any():
            raise ValueError
    except ValueError:
        return -x
    return x * 2


def before_a_loop(x: Any) -> Any:
    if (x < 0).any() or np.isnan(x).any():
        raise RuntimeError("bad")
    while x.sum() > 0.5:
        x = x / 2
    return x


def before_an_update(x: Any) -> Any:
    if (x < 0).any():
        raise ValueError("negative")
    x += 1
    return x.sum()


def before_a_draw(x: Any) -> Any:
    if (x < 0).any():
        raise ValueError("negative")
    return x + np.random.rand(2)


def in_a_helper(x: Any) -> Any:
    def small(y: Any) -> Any:
        if y.max() > 3:
            raise KeyError("large")
        return y

    try:
        return small(x)
    except KeyError:
        return x * 0


def excludes_an_index_error(x: Any) -> Any:
    positions = x.astype(np.int64)
    if (positions > 1).any():
        raise ValueError("no such position")
    return x[positions]


FUNCTIONS = [
    checked, caught, before_a_loop, before_an_update, before_a_draw, in_a_helper, excludes_an_index_error
]  # fmt: skip


def outcome(function: Callable[[Any], Any], x: Any) -> tuple[Any, ...]:
    np.random.seed(0)
    try:
        return "returned", function(x), None, x
    except Exception as error:
        return "raised", type(error), str(error), x


@pytest.mark.parametrize("function", FUNCTIONS)
def test_calls_return_and_raise_as_python_does_in_any_order(function: Callable[..., Any]) -> None:
    fused = fuse(function)
    good, bad = np.array([1.0, 0.0]), [np.array([-1.0, 5.0]), np.array([np.nan, 1.0]), np.array([4.0, -20.0])]
    with np.errstate(all="ignore"):
        for x in (good, bad[0], good, bad[1], bad[2], good, bad[0]):
            kind, result, text, after = outcome(fused, x.copy())
            expected = outcome(function, x.copy())
            if function is excludes_an_index_error and np.isnan(x).any():
                continue  # NumPy leaves the integer open that NaN becomes
            assert (kind, text) == (expected[0], expected[2])
            np.testing.assert_array_equal(after, expected[3])
            if kind == "returned":
                np.testing.assert_allclose(result, expected[1])
            else:
                assert result is expected[1]


def test_a_check_splits_nothing_and_good_calls_take_the_fast_path() -> None:
    fused = fuse(checked)
    for size in (2, 3, 5):
        fused(np.ones(size))
    assert fused.cache_info().traces == 1
    assert len(fused.segments(np.ones(3))) == 1
    with pytest.raises(ValueError, match="x has 1 NaN"):
        fused(np.array([1.0, np.nan]))
    fused(np.ones(4))
    assert fused.cache_info().hits >= 3


def test_nothing_is_written_by_a_call_that_raises() -> None:
    class Total:
        def __init__(self) -> None:
            self.calls, self.total = 0, np.zeros(2)

        def run(self, x: Any) -> Any:
            self.calls += 1
            self.total += x
            if self.total.sum() > 5:
                raise ValueError("too much")
            return self.total * 2

    total: Any = type("Fused", (Total,), {"run": fuse(Total.run)})()
    for _ in range(2):
        total.run(np.ones(2))
        with pytest.raises(ValueError, match="too much"):
            total.run(np.ones(2) * 9)
    assert total.calls == 2
    np.testing.assert_array_equal(total.total, [2.0, 2.0])
