"""Tests random chains of views and writes against NumPy; `python tests/soak_views.py` runs more of them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.random_views import check_views
from tracefuse import fuse


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_chains_of_views_and_writes_are_what_numpy_computes(first: int) -> None:
    for seed in range(first, first + 10):
        check_views(seed, "reference")


@pytest.mark.parametrize("seed", range(200, 206))
def test_kernels_compute_chains_of_views_and_writes(seed: int) -> None:
    check_views(seed, "cpu")


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
