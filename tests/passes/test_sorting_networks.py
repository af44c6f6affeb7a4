"""Sorts of few elements by comparisons: every network sorts, and results are NumPy's, NaN included."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.test_overwritten_slices import recorded
from tests.session.samples import times
from tracefuse import fuse
from tracefuse.ir.reference import evaluate
from tracefuse.ops.ordering import MOST_OF_MEDIAN, MOST_SORTED
from tracefuse.passes.dead_code import drop_dead
from tracefuse.passes.sorting_networks import exchanges, sort_in_networks

ELEMENTS = st.sampled_from([0.0, 1.0, -2.5, 3.0, 7.0, np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("count", range(1, MOST_OF_MEDIAN + 1))
def test_exchanges_sort_zeros_and_ones_and_so_everything(count: int) -> None:
    pairs = list(exchanges(count))
    if count <= 10:
        rows = np.array(list(itertools.product([0, 1], repeat=count)))
    else:
        rows = np.random.default_rng(count).integers(0, 2, (2000, count))
    for low, high in pairs:
        assert 0 <= low < high < count
        rows[:, [low, high]] = np.sort(rows[:, [low, high]])
    assert (np.diff(rows) >= 0).all()


@settings(max_examples=times(25), deadline=None)
@given(st.data(), st.integers(2, MOST_SORTED), st.sampled_from([0, 1, -1]), st.booleans())
def test_sorts_and_medians_are_those_of_numpy(data: Any, count: int, axis: int, keepdims: bool) -> None:
    shape = [3, 3]
    shape[axis] = count
    elements = data.draw(st.lists(ELEMENTS, min_size=3 * count, max_size=3 * count))
    x = np.array(elements).reshape(shape)
    dtype = data.draw(st.sampled_from([np.float64, np.float32, np.int16, np.uint64]))
    x = np.nan_to_num(x, posinf=9, neginf=0).astype(dtype) if np.dtype(dtype).kind in "iu" else x.astype(dtype)

    def function(x: Any) -> Any:
        return np.sort(x, axis), np.median(x, axis, keepdims=keepdims)

    fusion = recorded(function, x)
    networks = drop_dead(sort_in_networks(fusion))
    assert not {"sort", "median"} & {node.op.name for node in networks.nodes}
    operands = [x if networks.values[number].is_tensor else 0 for number in networks.inputs]
    with np.errstate(all="ignore"):
        expected = function(x)
        for result, wanted in zip(evaluate(networks, operands), expected, strict=True):
            np.testing.assert_array_equal(result, wanted)
            assert result.dtype == wanted.dtype


def test_a_median_filter_is_one_kernel() -> None:
    def filtered(x: Any) -> Any:
        shifts = [x[i : x.shape[0] - 2 + i, j : x.shape[1] - 2 + j] for i in range(3) for j in range(3)]
        return np.median(np.stack(shifts), axis=0)

    x = np.random.default_rng(0).random((30, 40), np.float32)
    x[4, 5], x[9] = np.nan, np.inf
    fused = fuse(filtered)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(fused(x), filtered(x))
    assert len(fused.segments(x)) == 1


def test_rows_of_other_lengths_are_sorted_by_the_library() -> None:
    fused = fuse(lambda x: (np.sort(x, 1), np.median(x, 1)))
    for count in (3, MOST_SORTED, MOST_SORTED + 1, MOST_SORTED + 2, 1, 0, 3):
        x = np.random.default_rng(count).integers(0, 50, (7, count)).astype(np.float64)
        if count:
            for result, expected in zip(fused(x), (np.sort(x, 1), np.median(x, 1)), strict=True):
                np.testing.assert_array_equal(result, expected)
    assert fused.cache_info().traces <= 6
