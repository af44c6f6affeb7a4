"""Tests random chains of views and writes against NumPy; `python -m tests.soaks.views` runs more of them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.random_programs.random_views import check_views
from tracefuse import UnsupportedError, fuse


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_chains_of_views_and_writes_are_what_numpy_computes(first: int) -> None:
    for seed in range(first, first + 10):
        check_views(seed, "reference")


def test_arguments_in_the_same_memory_are_refused_or_change_as_in_numpy() -> None:
    for seed in range(8):
        check_views(seed, "reference", shares=True)


@pytest.mark.parametrize("seed", range(200, 206))
def test_kernels_compute_chains_of_views_and_writes(seed: int) -> None:
    check_views(seed, "cpu")


STRIDED = (
    "y = view(x, (4, 3), (x.itemsize,) * 2).sum(1)",
    "y = view(x, (2, 2), (24, 8)); y[:] = y[::-1] + 1; y[1, 1] = 9",
    "y = view(x[1:], (2,), (16,)); y += x[0]",
    "y = view(x.reshape(2, 3).T, (3,), (8,)); y *= 2; y = y + 0",
    "y = view(x, (3,), (8,), writeable=False); y[0] = 3",
    "y = view(x, (x.size - 2, 3), x.strides * 2).max(-1)",
    "y = view(c, (3,), (16,)); y[1] = x[2]; y = c + 0",
    "y = windows(x, 2, writeable=True); x[0] = 9; y = y + 0",
)


@pytest.mark.parametrize("statements", STRIDED)
def test_views_of_strides_read_and_write_the_memory_of_the_array(statements: str) -> None:
    names, own = ({"view": np.lib.stride_tricks.as_strided, "windows": np.lib.stride_tricks.sliding_window_view,
                   "c": np.arange(6.0)} for _ in range(2))  # fmt: skip
    for one in (names, own):
        exec(f"def function(x):\n    {statements}\n    return y\n", one)
    x, right = np.arange(6.0), np.arange(6.0)
    fused = fuse(names["function"], target="reference")
    if "writeable=False" in statements:
        with pytest.raises(ValueError, match="as_strided, which is read-only"):
            fused(x)
        return
    np.testing.assert_array_equal(fused(x), own["function"](right))
    np.testing.assert_array_equal([x, names["c"]], [right, own["c"]])


@pytest.mark.parametrize(("strides", "message"), [
    (8, "several elements have one place in memory"), (4, "a stride of 4 bytes"), (80, "outside of the array"),
    (-8, "outside of the array"),
])  # fmt: skip
def test_views_of_strides_that_are_not_numpys_are_refused(strides: int, message: str) -> None:
    def function(x: Any) -> None:
        np.lib.stride_tricks.as_strided(x, (2, 3), (strides, 8))[0] = 1

    with pytest.raises((UnsupportedError, IndexError), match=message):
        fuse(function, target="reference")(np.arange(6.0))


def _with_mask(x: Any, mask: Any, values: Any) -> Any:
    y = x.copy()
    np.putmask(y, mask, values)
    return y


VALUES = (
    np.array([[10], [20], [30.0]]), np.array([[10, 20, 30.0]]), np.array([10, 20.0]), np.arange(12.0), np.zeros((0, 3)),
    np.array([[1.0, 2], [3, 4]]), 5.0, np.ones((3, 3)),
)  # fmt: skip


@pytest.mark.parametrize(("values", "mask"), list(product(VALUES, ("same", "flat", "column"))))
def test_putmask_repeats_values_in_row_major_order(values: Any, mask: str) -> None:
    x = np.arange(9.0).reshape(3, 3)
    chosen = {"same": x > 2, "flat": (x > 2).ravel(), "column": x[:, :1] > 2}[mask]
    fused = fuse(_with_mask, target="reference")
    if mask == "column":
        with pytest.raises(ValueError, match=r"."):
            fused(x, chosen, values)
    else:
        np.testing.assert_array_equal(fused(x, chosen, values), _with_mask(x, chosen, values))


@pytest.mark.parametrize("statement", [
    "y[m, p[m]] ^= 1", "y[m, p[m]] = 5", "y[p[m]] = 7", "y[m, p[m]] += y[m, 0]", "y[p[m], 1:] = 3",
    "y[:, p[m]] *= 2", "y = x[m, p[m]]", "y = x[p[m]][::-1]", "y[p[m][:1]] = 0",
])  # fmt: skip
def test_elements_under_a_mask_are_positions(statement: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def function(x, m, p):\n    y = x.copy()\n    {statement}\n    return y\n", names)
    fused = fuse(names["function"], target="reference")
    x, m, p = np.arange(20).reshape(5, 4), np.array([1, 0, 1, 1, 0], bool), np.array([0, 1, 2, 3, 1])
    for mask in (m, ~m, m & False, np.ones(5, bool)):
        np.testing.assert_array_equal(fused(x, mask, p), names["function"](x, mask, p))


@pytest.mark.parametrize("skipped", [(1, 1), (2, 3), (0, 2)])
def test_pooled_parts_of_images_are_flattened(skipped: tuple[int, int]) -> None:
    top, left = skipped

    def pooled(x: Any) -> Any:
        n, h, w = x[:, top:, left:].shape
        even = x[:, top:, left:][:, : h // 3 * 3, : w // 2 * 2]
        largest = even.reshape(n, h // 3, 3, w // 2, 2).max(axis=(2, 4))
        return largest, largest.reshape(n, -1) + 1, even.reshape(n, h // 3, 3, w // 2, 2).sum(axis=4).reshape(n, -1)

    fused = fuse(pooled)
    for size in ((3, 9, 10), (2, 12, 8)):
        x = np.random.default_rng(0).random(size)
        for found, expected in zip(fused(x), pooled(x), strict=True):
            np.testing.assert_allclose(found, expected)


def test_a_negative_extent_of_as_strided_raises_for_the_sizes_that_have_it() -> None:
    fused = fuse(lambda x: np.lib.stride_tricks.as_strided(x, (len(x) - 3, 4), (8, 8)).sum(1))
    np.testing.assert_array_equal(fused(np.arange(5.0)), [6.0, 10.0])
    with pytest.raises(ValueError, match="negative dimensions are not allowed"):
        fused(np.arange(2.0))
