"""Comprehensions, generator expressions and appends of branches, recorded as loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

X = np.random.default_rng(0).normal(size=24)
A = np.random.default_rng(1).normal(size=(20, 3))


def nested_comprehensions(a: Any) -> Any:
    table = [[np.sum(p * q) for q in a] for p in a]
    return np.array(table), len(table), np.array([p[0] * k for p in a for k in range(5)])


def filtered(x: Any) -> Any:
    peaks = [i for i in range(1, len(x) - 1) if x[i - 1] < x[i] > x[i + 1]]
    return x[peaks], len(peaks), np.array([v for v in x if v > 100])


def sums_and_extremes(x: Any) -> Any:
    pairs = sum(x[i] * x[j] for i in range(len(x)) for j in range(i))
    several = np.array([i * j for i in range(20) for j in range(i)])
    return several, pairs, sum([v * v for v in x], 10.0), max(abs(v) for v in x), min(v for v in x if v > 0)


def questions(x: Any) -> Any:
    return any(v > 2 for v in x), all(v < 9 for v in x), 1 + (2 if any(v < -1 for v in x) else 3)


def joined_rows(a: Any) -> Any:
    together = np.concatenate([row * i for i, row in enumerate(a)])
    return together, np.vstack([row * 2 for row in a]), np.hstack([row * 2 for row in a]), np.mean([r.sum() for r in a])


def appends_of_branches(x: Any) -> Any:
    large, positions, others = [], [], [x[0]]
    for i, v in enumerate(x):
        if v > 0:
            positions.append(i)
            large.append(v)
            if v > 1:
                large.append(v * 0.5)
        else:
            others.append(v)
    return np.array(large), np.array(positions), np.array(others), len(large) + len(others)


def appends_before_break(x: Any) -> Any:
    kept = []
    for v in x:
        if v > 1.2:
            break
        kept.append(v)
    return np.array(kept), len(kept)


def inner_appends(x: Any) -> Any:
    rows, chosen = [], []
    for i in range(len(x)):
        row = []
        for j in range(18):
            row.append(x[i] * j)
            if x[i] > 0.1 * j:
                chosen.append(j)
        rows.append(row)
    return np.array(rows), len(chosen)


def updates_of_entries(x: Any) -> Any:
    out = np.ones(len(x))
    for i in range(len(x)):
        out[i] += sum(x[j] for j in range(i)) + (x[i] if i % 2 else -x[i])
    return out


def entries(x: Any) -> Any:
    return [(i, v) for i, v in enumerate(x)], tuple(v + 1 for v in x), np.array([(v, v * 2) for v in x])


def leaves(value: Any) -> Iterator[Any]:
    """Yields the shape of nested lists and tuples, and what they hold."""
    if isinstance(value, (list, tuple)):
        yield type(value), len(value)
        for one in value:
            yield from leaves(one)
    else:
        yield value


def check_equal(result: Any, expected: Any) -> None:
    for got, wanted in zip(leaves(result), leaves(expected), strict=True):
        if isinstance(wanted, tuple):
            assert got == wanted
        else:
            assert np.asarray(got).dtype == np.asarray(wanted).dtype
            np.testing.assert_allclose(got, wanted, rtol=1e-12, strict=np.ndim(wanted) > 0)


@pytest.mark.parametrize(
    ("function", "array"),
    [
        (nested_comprehensions, A), (filtered, X), (sums_and_extremes, X), (questions, X), (joined_rows, A),
        (appends_of_branches, X), (appends_before_break, X), (inner_appends, X), (updates_of_entries, X), (entries, X),
    ],
)  # fmt: skip
def test_loops_give_what_comprehensions_and_appends_do(function: Callable[..., Any], array: Any) -> None:
    fused = fuse(function, target="reference")
    for argument in (array, -array[:-3]):
        check_equal(fused(argument), function(argument))


def test_another_number_of_entries_needs_no_trace() -> None:
    @fuse
    def chosen(x: Any) -> Any:
        out = []
        for v in x:
            if v > 0:
                out.append(v)
        return np.array(out), np.array([v * v for v in x]), max(v for v in x)

    chosen(X)
    before = chosen.cache_info().traces
    for size in (18, 20, 40, 500):
        x = np.random.default_rng(size).normal(size=size)
        got = chosen(x)
        np.testing.assert_array_equal(got[0], x[x > 0])
        np.testing.assert_array_equal(got[1], x * x)
    assert chosen.cache_info().traces == before


def test_what_python_evaluates_before_a_comprehension_is_evaluated_before_its_loop() -> None:
    def ordered(x: Any) -> Any:
        log = np.zeros(3)

        def note(place: int, value: Any) -> Any:
            log[place] = log.max() + 1
            return value

        result = note(0, x[0]) + np.array([note(1, v) for v in x]).sum() * note(2, x[1])
        return result, log

    result, log = fuse(ordered)(X)
    expected, expected_log = ordered(X)
    np.testing.assert_allclose(result, expected)
    assert log.argmin() == expected_log.argmin() == 0
    assert log[2] == log.max()


def test_a_function_that_shadows_a_builtin_gets_the_generator() -> None:
    def shadowed(x: Any) -> Any:
        sum = lambda values: list(values)[:3]  # noqa: E731
        return np.array(sum(v * 2 for v in x))

    np.testing.assert_array_equal(fuse(shadowed)(X), X[:3] * 2)


def smoothed(x: Any) -> Any:
    means, sums, longest = [x[0]], [0.0, 1.0], [0]
    for v in x[1:]:
        means.append(0.9 * means[-1] + 0.1 * v)
        sums.append(0.5 * sums[-1] - sums[-2])
        if v > means[-1]:
            longest.append(longest[-1] + 1)
        else:
            longest.append(0)
    return np.array(means), np.array(sums), np.array(longest), means[-1]


def windows(a: Any) -> Any:
    chosen = [row for row in a if row[0] > 0]
    return np.stack([a[i : i + 3] for i in range(len(a) - 3)]), np.array(chosen), len(chosen)


@pytest.mark.parametrize(("function", "array"), [(smoothed, X), (windows, A)])
def test_lists_that_loops_read_at_their_end_and_lists_of_views_are_recorded(
    function: Callable[..., Any], array: Any
) -> None:
    fused = fuse(function, target="reference")
    for argument in (array, -array, array[:-2]):
        check_equal(fused(argument), function(argument))
    assert fused.cache_info().traces <= 2


def test_lists_of_several_lengths_are_entries_of_a_list() -> None:
    def ragged(x: Any) -> Any:
        lists = [[[v for v in x if v > k] for k in range(j)] for j in range(4)]
        for _ in range(18):
            x = x + 1
        return lists, x

    check_equal(fuse(ragged, target="reference")(X[:9]), ragged(X[:9]))


def test_views_in_a_list_see_later_writes() -> None:
    def written(a: Any) -> Any:
        rows, others = [row[1:] for row in a], [row[:2] for row in a]
        a[0] = 5
        others[3][0] = 7
        return np.array(rows), a, others[3]

    mine, theirs = A.copy(), A.copy()
    check_equal(fuse(written, target="reference")(mine), written(theirs))
    np.testing.assert_array_equal(mine, theirs)
