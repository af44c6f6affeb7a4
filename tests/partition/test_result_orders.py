"""Tests the order in memory of results: NumPy's for elementwise functions of arrays in one order, else row-major."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.session.samples import times
from tracefuse import fuse

AS_NUMPY: dict[str, Callable[..., Any]] = {
    "numbers": lambda x, y: 2 * x + 1, "two": lambda x, y: np.where(x > 0, x, y), "permuted": lambda x, y: x.T * 2,
    "slices": lambda x, y: x[1:, ::2] - y[:-1, ::2], "cast": lambda x, y: x.astype(np.float32),
    "normalized": lambda x, y: (x - x.mean(0)) / x.std(0), "rows": lambda x, y: np.exp(x - x.max(-1, keepdims=True)),
    "several": lambda x, y: (x + y, x.T - y.T, x.sum(0) * 2), "copied": lambda x, y: np.ascontiguousarray(x.T) * 3,
    "row": lambda x, y: x * y[0], "joined": lambda x, y: (np.concatenate([x, y], 1), np.block([[[x], [y]]])),
    "stacked": lambda x, y: (np.stack([x, y], 1), np.stack([x, y], -1)), "rolled": lambda x, y: np.roll(x, 3, 1),
    "reduced": lambda x, y: (x.sum(0), x.min(-1), y.mean(1)), "axes": lambda x, y: np.moveaxis(x, 0, -1) + 1,
    "copies": lambda x, y: (+x, np.copy(y), x[1:].astype(x.dtype), np.round(x.astype(int)), abs(x > 0), y.copy("K")),
    "extended": lambda x, y: (np.append(x, y, -1), np.flip(x, 1) + 1, np.pad(x, 2, mode="edge") * 2),
}  # fmt: skip

SHAPES = [(4, 5, 6), (3, 1, 40), (17, 18, 19)]


@settings(max_examples=times(8))
@given(
    st.permutations(range(3)), st.sampled_from(sorted(AS_NUMPY)), st.sampled_from([(4, 5, 6), (3, 1, 40), (17, 18, 19)])
)
def test_results_have_the_values_and_the_strides_of_numpys(order: list[int], name: str, shape: tuple[int, ...]) -> None:
    function, random = AS_NUMPY[name], np.random.default_rng(3)
    x, y = (random.normal(size=[shape[axis] for axis in order]).transpose(np.argsort(order)) for _ in range(2))
    fused = fuse(function, target="cpu")
    expected, kept = function(x, y), list[Any]()
    for _ in range(3):  # the third call is replayed
        results = fused(x, y)
        kept += [results] if order[0] else []  # whose memory later calls cannot take
        for result, right in zip(*([r] if isinstance(r, np.ndarray) else r for r in (results, expected)), strict=True):
            np.testing.assert_allclose(result, right, rtol=1e-6, atol=1e-12)
            assert result.strides == right.strides or 1 in right.shape
            assert result.flags.writeable
            assert not np.shares_memory(result, x)


ROW_MAJOR: dict[str, Callable[..., Any]] = {
    "a view": lambda x: x.T, "a copy": lambda x: (x * 2).T.copy(),
    "one that is asked for": lambda x: np.array(x.T * 2, order="C"),
    "two orders": lambda x: x + x.T, "a library's": lambda x: x @ x, "flattened": lambda x: (x.T * 2).ravel(),
}  # fmt: skip


@pytest.mark.parametrize("name", ROW_MAJOR)
def test_other_results_are_row_major(name: str) -> None:
    x = np.arange(64.0).reshape(8, 8)
    result = fuse(ROW_MAJOR[name], target="cpu")(x)
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, ROW_MAJOR[name](x))


def test_an_order_that_the_layout_leaves_open_is_guarded() -> None:
    wide, fused = np.arange(960.0).reshape(24, 40), fuse(lambda x: x * 2, target="cpu")
    for view in (wide[::2, ::2], wide[::2, ::2].T, wide[:, ::2], wide[::-1].T, wide.T, wide):
        result = fused(view)
        np.testing.assert_array_equal(result, view * 2)
        assert result.flags.f_contiguous == (view.strides[0] < view.strides[1] and min(view.strides) > 0)


def test_output_buffers_keep_their_own_order() -> None:
    x, fused = np.asfortranarray(np.arange(12.0).reshape(3, 4)), fuse(lambda x: x * 2, target="cpu")
    out = np.empty((3, 4))
    assert fused.into(out, x) is out
    np.testing.assert_array_equal(out, x * 2)
