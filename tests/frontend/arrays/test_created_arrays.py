"""Tests arrays that a fused function creates: assignments, symbolic sizes, elements known while tracing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy import arange as counted

from tracefuse import ShapeError, fuse

SCALE = 3.0


def accumulated(x: Any) -> Any:
    out = np.zeros(x.shape)
    out += x
    out[0] = x.sum()
    return out


def of_its_type(x: Any) -> Any:
    out, other, last = np.ndarray(x.shape, dtype=x.dtype), np.ndarray(3), np.ndarray((x.shape[0],))
    out[...], other[:], last[...] = x * 2, x.sum(), isinstance(x, np.ndarray)
    return out, other, last


def of_a_constant_size(x: Any) -> Any:
    out = np.zeros(3)
    other = out
    out += x[:3]
    out[0] = x.sum()
    return other


def triangle(x: Any) -> Any:
    n = x.shape[0]
    return np.tril(np.ones((n, n))) @ x + np.tri(n, n, -1) @ x + np.eye(n) @ x + np.identity(n)[0]


def coordinates(x: Any) -> Any:
    n = x.shape[0]
    i, j = np.indices((n, n + 1))
    return i * 2 + j + np.fromfunction(lambda a, b: a * b, (n, n + 1)) + counted(n + 1) * x[0]


def stacked(x: Any) -> Any:
    pair = np.array([x.min(), x.max()])
    pair[0] += 1
    return pair, np.array([[x[0], 1], [2, x[1]]]), np.asarray(x) is x, np.ascontiguousarray(x), np.array(x)


def changed_copy(x: Any) -> Any:
    y = np.array(x)
    y += 1
    return y


def listed(x: Any) -> Any:
    weights = np.array([1.0, 2.0, 3.0])
    weights[1] = x[0]
    return weights * x[:3]


def filled(x: Any) -> Any:
    a = np.full(x.shape, 2.0)
    b = np.full((2, 3), [1, 2, 3])
    c = np.empty(x.shape, np.int32)
    c.fill(4)
    return a + x, b, c, np.linspace(0, x[1], 5), np.meshgrid(np.arange(3), np.arange(2.0))[0]


FUNCTIONS = [accumulated, of_its_type, of_a_constant_size, triangle, coordinates, stacked, changed_copy, listed, filled]


@pytest.mark.parametrize("options", [{"target": "reference"}, {}], ids=["reference", "cpu"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_trace_of_created_arrays_is_right_for_all_sizes(function: Any, options: Any) -> None:
    fused = fuse(function, **options)
    for size in (4, 7, 5):
        x = np.arange(size) / 4 + 1
        own = x.copy()
        results, wanted = fused(x), function(own)
        for result, right in zip(
            results if isinstance(results, tuple) else (results,), wanted if isinstance(wanted, tuple) else (wanted,),
            strict=True,
        ):  # fmt: skip
            np.testing.assert_allclose(result, right, rtol=1e-13)
            assert getattr(result, "dtype", None) == getattr(right, "dtype", None)
        np.testing.assert_array_equal(x, own)
    assert fused.cache_info().traces == 1


def test_python_reads_the_elements_of_arrays_that_depend_on_no_argument() -> None:
    def function(x: Any) -> Any:
        for k in np.arange(3):
            x = x * int(k + 1)
        sizes = np.zeros(2, int)
        sizes[0], sizes[1] = 2, 3
        table = dict.fromkeys(np.arange(3), 1.0)
        if np.ones(3).all() and 2 in np.arange(3) and len(table) == 3:
            x = x + float(np.full(1, 5.0)[0])
        return x.reshape(sizes[0], sizes[1]), np.eye(2).tolist(), range(int(np.arange(4).sum()))

    x = np.arange(6.0)
    made, listed, counted = fuse(function)(x)
    np.testing.assert_array_equal(made, function(x)[0])
    assert (listed, counted) == ([[1.0, 0.0], [0.0, 1.0]], range(6))


def test_a_mask_that_depends_on_no_argument_selects_as_in_numpy() -> None:
    def function(x: Any) -> Any:
        mask = np.array([True, False, True, False])
        x[mask] = x[np.array([False, True, False, True])] * 10
        x[[True, False, False, False]] = [7]
        return x[mask], x[mask].sum(), np.unique(np.arange(4) // 2)

    own, expected = np.arange(4.0), np.arange(4.0)
    for made, right in zip(fuse(function)(own), function(expected), strict=True):
        np.testing.assert_array_equal(made, right)
    np.testing.assert_array_equal(own, expected)


def helper(x: Any) -> Any:
    out = np.zeros_like(x)
    other = np.zeros(x.shape)
    other[1:] = x[:-1] * SCALE
    return out + other


def test_functions_that_it_calls_record_too_and_nothing_outside_changes() -> None:
    def inner(x: Any) -> Any:
        out = np.ones(x.shape)
        out[0] = x[1]
        return helper(out)

    calls = 0

    def function(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return inner(x), np.zeros

    fused = fuse(function)
    before = np.zeros, np.__dict__.copy()
    result, _ = fused(np.arange(4.0))
    np.testing.assert_array_equal(result, [0, 3, 3, 3])
    assert calls == 1
    assert before[0] is np.zeros
    assert before[1] == np.__dict__
    assert isinstance(inner(np.ones(3)), np.ndarray)


def test_a_global_that_changes_is_noticed() -> None:
    global SCALE
    fused = fuse(lambda x: helper(x) + np.zeros(x.shape))
    np.testing.assert_array_equal(fused(np.ones(3)), [0, 3, 3])
    SCALE = 5.0
    try:
        np.testing.assert_array_equal(fused(np.ones(3)), [0, 5, 5])
    finally:
        SCALE = 3.0


def of_a_mask(x: Any) -> Any:
    return x[x > 0][1:]


def two_masks(x: Any) -> Any:
    x[x > 0] = x[x < 0]


def array_under_mask(x: Any) -> Any:
    x[x > 0] = x


def beside_an_array(x: Any) -> Any:
    x[x > 0] = x[x > 0] + x


def test_inspection_of_sizes_that_data_decide_runs_on_the_given_elements() -> None:
    x = np.array([1.0, -2.0, 3.0])
    assert "size of indexing with a boolean mask" in str(fuse(of_a_mask).explain(x))
    assert "size of indexing with a boolean mask" in str(fuse(two_masks).explain(x))
    np.testing.assert_array_equal(x, [1.0, -2.0, 3.0])


@pytest.mark.parametrize("function", [array_under_mask, beside_an_array])
def test_inspection_raises_what_a_call_does_and_writes_nothing(function: Any) -> None:
    x = np.array([1.0, -2.0, 3.0])
    with pytest.raises(ShapeError, match=r"\(test_created_arrays\.py:\d+\)\n  hint: ") as expected:
        fuse(function)(x)
    with pytest.raises(ShapeError, match=re.escape(str(expected.value))):
        fuse(function).segments(x)
    np.testing.assert_array_equal(x, [1.0, -2.0, 3.0])


@pytest.mark.parametrize("function", [array_under_mask, beside_an_array])
def test_elements_that_do_not_fit_a_mask_are_refused_and_nothing_is_written(function: Any) -> None:
    x = np.array([1.0, -2.0, 3.0])
    with pytest.raises(ValueError, match=r"2|3"):
        fuse(function)(x)
    np.testing.assert_array_equal(x, [1.0, -2.0, 3.0])


def test_frequencies_of_a_transform_have_numpys_values_for_all_sizes() -> None:
    def frequencies(x: Any) -> Any:
        n = x.shape[0]
        return np.fft.rfftfreq(n) * 1, np.fft.fftfreq(n, 0.1) + 0, np.fft.fftfreq(5, d=1 / n)

    fused = fuse(frequencies, target="reference")
    for n in (2, 3, 8, 9):
        for result, expected in zip(fused(np.ones(n)), frequencies(np.ones(n)), strict=True):
            assert result.dtype == expected.dtype
            np.testing.assert_array_equal(result, expected)
    assert fused.cache_info().traces == 1
