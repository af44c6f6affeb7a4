"""Loops that return: they are recorded once, and the call asks once whether they have returned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def position(x: Any, limit: Any) -> Any:
    for i, entry in enumerate(x):
        if entry > limit:
            return i
    return -1


def pair_in_a_nest(x: Any, limit: Any) -> Any:
    for i in range(x.shape[0]):
        for j in range(i):
            if x[i] * x[j] > limit:
                return i, x[j] * 2
    else:
        x = x + 1
    return 0, x[0]


def steady(x: Any, limit: Any) -> Any:
    for k in range(40):
        following = 0.5 * (x + 2.0 / (x + 1))
        if np.abs(following - x).max() < limit:
            return following, k
        x = following
    return x, -1


def bisected(x: Any, limit: Any) -> Any:
    low, high = 0, x.shape[0] - 1
    while low <= high:
        middle = (low + high) // 2
        if x[middle] == limit:
            return middle
        if x[middle] < limit:
            low = middle + 1
        else:
            high = middle - 1
    return None


def is_prime(n: Any) -> bool:
    k = 2
    while k * k <= n:
        if n % k == 0:
            return False
        k += 1
    return True


def primes(x: Any, limit: Any) -> Any:
    count = 0
    for entry in x:
        if entry < limit and is_prime(entry + 2):
            count += 1
    return count


PROGRAMS = {
    position: (5.5, 100.0, 18.0), pair_in_a_nest: (33.0, 1e6, 300.0), steady: (1e-3, -1.0, 1e-6),
    bisected: (7.0, 7.5, 19.0),
}  # fmt: skip
"""Functions with limits, of which only for the second the loop ends without `return`."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_a_loop_that_returns_is_recorded(program: Any) -> None:
    x, fused = np.arange(20.0), fuse(program, target="reference")
    for limit in PROGRAMS[program]:
        result, expected = fused(x, limit), program(x, limit)
        assert type(result) is type(expected)
        np.testing.assert_equal(result, expected)
    assert fused.cache_info().traces == 2


def test_a_function_that_a_loop_calls_may_return_from_its_loop() -> None:
    x, fused = np.arange(20), fuse(primes, target="reference")
    assert fused(x, 15) == primes(x, 15)
    assert "range_loop" in str(fused.definition(x, 15))


def selected_at_rest(x: Any) -> Any:
    """Its only exit cannot be recorded in the body of a loop, since data decide the size of the result."""
    while True:
        spread = np.maximum(x, np.roll(x, 1))
        if (spread == x).all():
            return x[x > 2]
        x = spread


def doubled_until_it_raises(x: Any) -> Any:
    """Its only exit raises."""
    while True:
        x = x * 2
        if x.sum() > 1e6:
            raise OverflowError("too large")


def test_a_loop_whose_only_exit_is_assumed_not_to_be_taken_ends() -> None:
    fused = fuse(selected_at_rest)
    for values in ([1.0, 0, 5, 2], [3.0, 3, 3], [0.0, 1, 2]):
        np.testing.assert_array_equal(fused(np.array(values)), selected_at_rest(np.array(values)))
    fused = fuse(doubled_until_it_raises)
    for _ in range(2):
        with pytest.raises(OverflowError, match="too large"):
            fused(np.ones(4))
