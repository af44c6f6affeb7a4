"""Tests integer-array indexing mixed with integers, slices, None and `...` against NumPy; each is one kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tracefuse
from tests.session.samples import times
from tracefuse import fuse

SHAPES = ((3, 4, 5), (4, 3, 3))
"""Keys are for the first; each axis of the second has the positions -3 to 2, too."""
POSITIONS = st.integers(-3, 2)
ARRAYS = st.one_of(
    st.lists(POSITIONS, min_size=2, max_size=2).map(np.array),
    st.lists(POSITIONS, min_size=1, max_size=1).map(lambda v: np.array(v, np.int8)),
    st.lists(POSITIONS, min_size=3, max_size=3).map(lambda v: np.array(v)[:, None]),
    POSITIONS.map(np.array),
    st.lists(st.integers(0, 2), min_size=2, max_size=2).map(lambda v: np.array(v, np.uint16)),
)
PARTS = st.one_of(ARRAYS, ARRAYS, POSITIONS, st.slices(3), st.none(), st.just(Ellipsis))


@settings(max_examples=times(50))
@given(st.lists(PARTS, min_size=1, max_size=4))
@example([np.array([0, 1]), slice(None), np.array([2, -1])])
@example([0, slice(None), np.array([2, -1])])
@example([np.array([0, 1]), None, 0])
@example([np.array([0, 1])[:, None], ..., np.array([0, 1, 2])])
def test_a_key_with_arrays_selects_what_numpy_selects(parts: list[Any]) -> None:
    places = [k for k, part in enumerate(parts) if isinstance(part, np.ndarray)]

    def select(x: Any, *arrays: Any) -> Any:
        key = list(parts)
        for place, array in zip(places, arrays, strict=True):
            key[place] = array
        return x[tuple(key)] * 1

    fused = fuse(select, target="reference")
    for shape in SHAPES:
        x, arrays = np.arange(60.0)[: np.prod(shape)].reshape(shape), [parts[k] for k in places]
        try:
            expected = select(x, *arrays)
        except IndexError:
            with pytest.raises(IndexError):
                fused(x, *arrays)
            return
        np.testing.assert_array_equal(fused(x, *arrays), expected)


def test_elements_at_pairs_are_one_kernel_for_every_size() -> None:
    fused = fuse(lambda image, y, x: image[y, x] * 2 + image[0, x])
    random = np.random.default_rng(0)
    for n in (5, 9, 40):
        image = random.standard_normal((n, n + 1, 3))
        y, x = random.integers(-n, n, (7, 1)), random.integers(-n - 1, n + 1, 6)
        assert np.array_equal(fused(image, y, x), image[y, x] * 2 + image[0, x])
        assert len(fused.segments(image, y, x)) == 1
    assert fused.cache_info().traces == 1


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize(("y", "x"), [(0, 5), (-5, 0), (4, 0), (0, -6)])
def test_a_position_outside_one_of_the_axes_raises(target: str, y: int, x: int) -> None:
    fused = fuse(lambda a, i, j: a[i, j], target=target)
    with pytest.raises(tracefuse.OutOfRangeError, match="out of bounds"):
        fused(np.zeros((4, 5)), np.array([0, y]), np.array([0, x]))


def test_positions_are_integers() -> None:
    with pytest.raises(tracefuse.DtypeError, match="an index array has dtype float64"):
        fuse(lambda a, i: a[i, i])(np.zeros((4, 5)), np.array([0.0]))
