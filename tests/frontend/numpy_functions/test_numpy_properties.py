"""Tests NumPy's functions on traced arrays of random sizes and parameters against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import fuse

few = settings(max_examples=times(20), deadline=None)
vectors = st.lists(st.integers(-5, 5), min_size=1, max_size=9).map(lambda v: np.array(v, np.float64))


def same(function: Any, *arguments: Any, exact: bool = True) -> None:
    found, expected = fuse(function, target="reference")(*arguments), function(*arguments)
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if exact:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@few
@given(
    st.sampled_from(["constant", "edge", "wrap", "symmetric", "reflect"]),
    st.tuples(*[st.tuples(st.integers(0, 11), st.integers(0, 11))] * 2),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_pad(mode: str, widths: Any, shape: tuple[int, int]) -> None:
    same(lambda x: np.pad(x, widths, mode), np.arange(float(np.prod(shape))).reshape(shape))


@few
@given(vectors, vectors, st.sampled_from(["full", "same", "valid"]), st.booleans())
def test_convolve_and_correlate(a: Any, v: Any, mode: Any, convolve: bool) -> None:
    same(lambda a, v: np.convolve(a, v, mode) if convolve else np.correlate(a, v, mode), a, v)


@few
@given(vectors, vectors, st.sampled_from(["left", "right"]))
def test_searchsorted(a: Any, v: Any, side: Any) -> None:
    same(lambda a, v: np.searchsorted(a, v, side), np.sort(a), v)


@few
@given(
    vectors, st.floats(0, 1), st.sampled_from(["linear", "lower", "higher", "nearest", "midpoint", "hazen", "weibull"])
)
def test_quantile(a: Any, q: float, method: Any) -> None:
    same(lambda a: np.quantile(a, q, method=method), a, exact=False)


@few
@given(vectors, st.lists(st.integers(-3, 3), min_size=1, max_size=4))
def test_insert_and_delete(a: Any, places: list[int]) -> None:
    valid = [p for p in places if -len(a) <= p < len(a)] or [0]
    same(lambda a: np.insert(a, valid, 7.0), a)
    same(lambda a: np.delete(a, valid), a)


@few
@given(vectors, st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_median_and_diff_and_resize(a: Any, numbers: list[int]) -> None:
    same(lambda a: np.median(a), a)
    same(lambda a: np.diff(a, min(numbers[0], 3), prepend=1.0), a)
    same(lambda a: np.resize(a, tuple(numbers[:3])), a)


@few
@given(vectors, st.integers(1, 7), st.booleans())
def test_histogram(a: Any, bins: int, ranged: bool) -> None:
    same(lambda a: np.histogram(a, bins, (-3.0, 4.0) if ranged else None)[0], a)
    same(lambda a: np.histogram(a, bins, (-3.0, 4.0) if ranged else None)[1], a, exact=False)
