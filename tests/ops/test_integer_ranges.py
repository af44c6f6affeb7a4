"""Tests Python integers that do not fit the type of an integer array: exact comparisons, and errors otherwise."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import ScalarError, fuse, xp

COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64")
EDGES = [0, *(sign * 2**k + d for k in (7, 8, 31, 32, 63, 64) for sign in (-1, 1) for d in (-1, 0, 1))]
numbers = st.one_of(st.sampled_from(EDGES), st.integers(-(2**70), 2**70))


def ends(dtype: str) -> Any:
    limits = np.iinfo(dtype)
    return np.array([limits.min, limits.min + 1, 0, 1, limits.max - 1, limits.max], dtype)


COMPARED = {
    (c, swapped): fuse((lambda a, n, c=c: c(n, a)) if swapped else (lambda a, n, c=c: c(a, n)))
    for c in COMPARISONS
    for swapped in (False, True)
}


@settings(max_examples=times(75))
@given(st.sampled_from(TYPES), st.sampled_from(COMPARISONS), numbers, st.booleans())
@example("uint8", operator.eq, -100, False)
@example("uint64", operator.lt, -1, False)
@example("int64", operator.eq, 2**63, True)
def test_comparisons_are_exact(dtype: str, compare: Callable[..., Any], number: int, swapped: bool) -> None:
    array = ends(dtype)
    expected = compare(number, array) if swapped else compare(array, number)
    inside = (lambda a: compare(number, a)) if swapped else (lambda a: compare(a, number))
    assert np.array_equal(fuse(inside, target="reference")(array), expected)
    if -(2**63) <= number < 2**63:
        assert np.array_equal(COMPARED[compare, swapped](array, number), expected)


REFUSED: dict[str, Callable[..., Any]] = {
    "add": lambda a, n: a + n,
    "maximum": np.maximum,
    "shift": lambda a, n: a << n,
    "full_like": np.full_like,
    "full": lambda a, n: a + xp.full(3, n, dtype="uint8"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("number", [-1, 256, 2**40])
def test_other_uses_are_refused_also_after_numbers_that_fit(name: str, number: int) -> None:
    function = REFUSED[name]
    array, message = np.arange(3, dtype=np.uint8), rf"^Python integer {number} out of bounds for uint8 \(test_integer"
    fused = fuse(function)
    if name != "full":
        assert np.array_equal(fused(array, 5), function(array, 5))
        assert np.array_equal(fused(array, 7), function(array, 7))
        assert fused.cache_info().traces == 1
        with pytest.raises(OverflowError):
            function(array, number)
    for refused in (fused, fuse(lambda a, _: function(a, number))):
        with pytest.raises(ScalarError, match=message):
            refused(array, number)


def test_a_size_is_a_python_integer() -> None:
    below = fuse(lambda a: a < a.shape[0])
    assert below(np.full(300, 255, np.uint8)).all()
    assert not below(np.full(200, 255, np.uint8)).any()
    with pytest.raises(ScalarError, match="Python integer 300 out of bounds for uint8"):
        fuse(lambda a: a + a.shape[0])(np.zeros(300, np.uint8))


@pytest.mark.parametrize("bounds", [(0, 300), (-5, 100), (-300, 300), (3, 100)])
def test_clip_leaves_out_bounds_that_the_type_does_not_hold(bounds: tuple[int, int]) -> None:
    for array in (np.arange(0, 256, 5).astype(np.uint8), np.arange(-128, 128, 5).astype(np.int8)):
        assert np.array_equal(fuse(np.clip)(array, *bounds), np.clip(array, *bounds))
        assert np.array_equal(fuse(lambda a: np.clip(a, *bounds))(array), np.clip(array, *bounds))
