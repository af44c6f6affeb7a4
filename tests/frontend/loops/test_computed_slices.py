"""Slices of recorded loops whose bounds are data: sparse rows, ragged arrays, windows."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def sums_of_rows(x: Any, rows: Any, widths: Any) -> Any:
    result = np.empty(rows.size - 1)
    for i in range(rows.size - 1):
        result[i] = x[rows[i] : rows[i + 1]].sum()
    return result


def sparse_product(x: Any, rows: Any, widths: Any) -> Any:
    columns = np.arange(x.size) * 7 % x.size
    result = np.zeros(rows.size - 1)
    for i in range(rows.size - 1):
        low, high = rows[i], rows[i + 1]
        result[i] = np.dot(x[low:high], x[columns[low:high]])
    return result


def centred_rows(x: Any, rows: Any, widths: Any) -> Any:
    result = np.zeros_like(x)
    for i in range(rows.size - 1):
        part = x[rows[i] : rows[i + 1]]
        if part.size:
            result[rows[i] : rows[i + 1]] = part - part.mean()
    return result


def updated_in_place(x: Any, rows: Any, widths: Any) -> Any:
    for i in range(rows.size - 1):
        x[rows[i] : rows[i + 1]] *= 0.5
        x[: widths[i]] += x[rows[i] :].sum()
    return x


def moving_mean(x: Any, rows: Any, widths: Any) -> Any:
    result = np.empty_like(x)
    for i in range(x.size):
        low, high = max(0, i - widths[i]), min(x.size, i + widths[i] + 1)
        result[i] = x[low:high].mean()
    return result


def lengths_and_sums(x: Any, rows: Any, widths: Any) -> Any:
    count, total, parts = 0, 0.0, []
    for i in range(rows.size - 1):
        part = x[rows[i] - 3 : rows[i + 1]]
        count += len(part)
        total = total * 0.5 + part.size
        parts.append(part.sum())
    return count, total, np.array(parts)


def conditional(x: Any, rows: Any, widths: Any) -> Any:
    result = np.zeros(rows.size)
    for i in range(rows.size - 1):
        part = x[rows[i] : rows[i + 1]]
        result[i] += part.max() if part.size else -1.0
        if widths[i] > 2:
            result[i] += x[i : i + widths[i]].sum()
    return result


def rows_of_a_table(x: Any, rows: Any, widths: Any) -> Any:
    table = x[:, None] * np.arange(3.0)
    result = np.zeros((rows.size, 3))
    for i in range(rows.size - 1):
        result[i] = table[rows[i] : rows[i + 1]].sum(axis=0) + table[i, : widths[i]].sum()
    return result


def sizes_from_sizes(x: Any, rows: Any, widths: Any) -> Any:
    total = 0.0
    for i in range(rows.size - 1):
        part = widths[rows[i] : rows[i + 1]]
        total += x[: part.sum()].sum()
    return total


def slices_without_readers(x: Any, rows: Any, widths: Any) -> Any:
    result = np.zeros(rows.size)
    for i in range(rows.size - 1):
        _ = x[rows[i] : rows[i + 1]]
        part = x[widths[i] : widths[i] + 3]
        unread = x[: rows[i]]
        result[i] = part.sum() + unread.size
    return result


FUNCTIONS = [
    slices_without_readers,
    sums_of_rows, sparse_product, centred_rows, updated_in_place, moving_mean, lengths_and_sums, conditional,
    rows_of_a_table, sizes_from_sizes,
]  # fmt: skip


def arguments(size: int, seed: int, kind: Any = np.int64) -> tuple[Any, Any, Any]:
    """Returns numbers, first positions of rows, some of them empty, and widths of windows."""
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.integers(0, size + 1, size)).astype(kind)
    return rng.standard_normal(size), rows, rng.integers(0, 6, size).astype(kind)


def check(function: Callable[..., Any], fused: Callable[..., Any], given: tuple[Any, ...]) -> None:
    copies = [one.copy() for one in given]
    expected, result = function(*given), fused(*copies)
    pairs = zip(result, expected, strict=True) if isinstance(expected, tuple) else [(result, expected)]
    for one, other in [*pairs, *zip(copies, given, strict=True)]:
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_slices_at_computed_bounds_are_recorded_once_for_all_sizes(function: Callable[..., Any]) -> None:
    fused = fuse(function)
    for size in (20, 31, 200):
        check(function, fused, arguments(size, size))
    assert fused.cache_info().traces == 1


def test_bounds_of_narrow_types_are_recorded() -> None:
    for function in (sums_of_rows, lengths_and_sums):
        fused = fuse(function)
        check(function, fused, arguments(24, 1, np.int16))
        check(function, fused, arguments(50, 2, np.int16))
        assert fused.cache_info().traces == 1


@pytest.mark.parametrize("function", [sums_of_rows, updated_in_place, lengths_and_sums])
def test_bounds_outside_of_the_axis_are_clamped_as_numpy_does(function: Callable[..., Any]) -> None:
    fused, rng = fuse(function), np.random.default_rng(0)
    for size in (20, 33):
        rows, widths = rng.integers(-2 * size, 2 * size, size), rng.integers(-9, 50, size)
        check(function, fused, (rng.standard_normal(size), rows, widths))
    assert fused.cache_info().traces == 1


def test_a_short_loop_with_computed_slices_is_recorded() -> None:
    fused = fuse(sums_of_rows)
    for size in (5, 9, 3):
        check(sums_of_rows, fused, arguments(size, size))
    assert fused.cache_info().traces == 1


def windows(x: Any, starts: Any) -> Any:
    result, total = np.zeros((starts.size, 4)), np.zeros(4)
    for i in range(starts.size):
        result[i] = x[starts[i] : starts[i] + 4]
        total += x[starts[i] : starts[i] + 4]
    return result, total


def test_windows_of_a_known_size_have_that_size() -> None:
    fused, rng = fuse(windows), np.random.default_rng(0)
    for size in (20, 50):
        check(windows, fused, (rng.standard_normal(size), rng.integers(0, size - 3, 25)))
    assert fused.cache_info().traces == 1


def test_a_window_that_the_axis_clips_raises_what_numpy_raises() -> None:
    fused, x = fuse(windows), np.arange(20.0)
    fused(x, np.arange(17))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(ValueError, match="broadcast"):
            fused(x, np.arange(18))
    check(windows, fused, (x, np.arange(17)))


def largest(x: Any, rows: Any) -> Any:
    return np.array([x[low:high].max() + x[low:high][-1] for low, high in itertools.pairwise(rows)])


def test_the_largest_elements_of_rows_need_rows_with_elements() -> None:
    fused, x = fuse(largest), np.random.default_rng(0).standard_normal(60)
    check(largest, fused, (x, np.arange(0, 60, 3)))
    check(largest, fused, (x, np.arange(40)))
    assert fused.cache_info().traces == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(ValueError, match=r"empty|zero-size"):
            fused(x, np.zeros(20, np.int64))


def test_random_numbers_drawn_after_a_computed_size_unroll_the_loop() -> None:
    def drawn(x: Any, rows: Any, generator: Any) -> Any:
        total = 0.0
        for i in range(rows.size - 1):
            total += x[rows[i] : rows[i + 1]].sum() * generator.random()
        return total

    x, rows, _ = arguments(20, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = fuse(drawn)(x, rows, np.random.default_rng(1))
    np.testing.assert_allclose(result, drawn(x, rows, np.random.default_rng(1)), rtol=1e-12)


def counts_and_sums(x: Any, rows: Any, widths: Any) -> Any:
    count, total = 0, 0.0
    for i in range(rows.size - 1):
        count += len(x[rows[i - 1] : rows[i] - 3])
        if widths[i] > 2:
            total += (x[rows[i] : widths[i] + 4] ** 2).sum()
    return count, total


def test_a_driver_runs_inner_loops_that_need_the_extent_of_an_array_outside(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="tracefuse"):
        fused = fuse(counts_and_sums, debug=1)
        check(counts_and_sums, fused, arguments(40, 0))
    texts = [record.getMessage() for record in caplog.records]
    assert [text.partition(": ")[2] for text in texts if text.startswith("range_loop")] == [
        "one compiled function runs its steps"
    ]
