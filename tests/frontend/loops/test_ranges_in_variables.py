"""Ranges of sizes, and what `enumerate`, `zip` and `reversed` return, that a function keeps in variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def overlapping_sums(x: Any) -> Any:
    starts = range(0, len(x) - 3, 2)
    out = np.zeros(len(x))
    for start in starts:
        out[start : start + 3] += x[start : start + 3]
    return out, len(starts)


def pairs_of_one_range(x: Any) -> Any:
    places, total = range(len(x)), 0.0
    for i in places:
        for j in places:
            if i < j:
                total += x[i] * x[j]
    return total


def backwards(x: Any) -> Any:
    places, total = reversed(range(len(x))), 0.0
    for i in places:
        total = total * 0.5 + x[i]
    return total


def numbered(x: Any) -> Any:
    entries, total = enumerate(x, 1), 0.0
    for i, value in entries:
        total += i * value
    return total


def neighbours(x: Any) -> Any:
    both, total = zip(x[1:], x[:-1], strict=True), 0.0
    for one, other in both:
        total += one * other
    return total


def positions(x: Any) -> Any:
    places = range(1, len(x))
    return x[places], np.array(places) * x[1:], np.take(x, places), x.take(places)


def of_a_function(x: Any) -> Any:
    def total(places: Any) -> Any:
        result = 0.0
        for i in places:
            result += x[i] ** 2
        return result

    return total(range(1, len(x)))


def returned(x: Any) -> Any:
    return range(1, len(x), 2), x / int(x.size)


ONE_TRACE = (pairs_of_one_range, backwards, numbered, neighbours, positions, of_a_function, returned)


@pytest.mark.parametrize("function", [*ONE_TRACE, overlapping_sums])
def test_a_range_in_a_variable_serves_all_sizes(function: Callable[[Any], Any]) -> None:
    fused = fuse(function)
    for size in (40, 47, 61):
        x = np.random.default_rng(size).normal(size=size)
        got, expected = fused(x), function(x)
        for one, other in zip(*[r if isinstance(r, tuple) else (r,) for r in (got, expected)], strict=True):
            assert type(one) is range and one == other if type(other) is range else np.allclose(one, other)
    assert fused.cache_info().traces == 1


def test_a_long_range_in_a_variable_is_recorded_as_a_loop() -> None:
    def smoothed(x: Any) -> Any:
        steps = range(40)
        for step in steps:
            x = 0.5 * x + step
        return x

    fused = fuse(smoothed)
    assert np.allclose(fused(np.ones(5)), smoothed(np.ones(5)))
    assert not fused.explain(np.ones(5)).unrolled


def test_a_range_of_sizes_answers_as_a_range() -> None:
    def facts(x: Any) -> Any:
        places = range(2, len(x), 3)
        same = places == range(2, len(x), 3), places == [2], isinstance(places, range), type(places) is range
        return [*same, 5 in places, repr(places), list(places), places[1], max(places), {places: 1}, places.index(5)]

    for size in (9, 12):
        assert fuse(facts)(np.ones(size)) == facts(np.ones(size))


def test_an_iteration_that_takes_a_further_entry_runs_as_in_python() -> None:
    def every_other(x: Any) -> Any:
        entries, total = enumerate(x), 0.0
        for i, value in entries:
            total += i * value
            next(entries, None)
        return total

    x = np.arange(20.0)
    assert fuse(every_other)(x) == every_other(x)
