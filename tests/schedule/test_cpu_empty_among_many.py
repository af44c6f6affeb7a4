"""Arrays without elements whose other axes are long: what chooses schedules divides by extents and prices them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "sums over the first of several axes": (lambda x: x[..., 1:].sum(0), (17, 257, 60, 1)),
    "variances over many rows": (lambda x: np.diff(x, axis=-1).var(0), (20000, 1, 1)),
    "least of no columns": (lambda x: (np.roll(x, 2, -1)[:, :0] * 2).min(-1), (1, 16, 3750)),
    "means of no columns at positions": (lambda x: np.take(x, np.arange(3000)[::-1], 0)[:, :0].mean(0), (3000, 33)),
    "ranges of rows at positions": (lambda x: np.ptp(np.take(x[:0], np.arange(65)[::-1], -1), -1), (2, 20000, 65)),
    "no elements of a new axis": (lambda x: (x[..., None] + 1)[..., 5:5], (33, 128, 7, 300)),
    "repeated rows": (lambda x: np.tile(x[:, :0], (2, 1, 3)), (300, 4, 5)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dynamic", [True, False])
def test_functions_of_no_elements_give_what_numpy_gives(name: str, dynamic: bool) -> None:
    function, shape = FUNCTIONS[name]
    x = np.ones(shape, dtype=np.float32)
    np.testing.assert_array_equal(fuse(function, dynamic=dynamic)(x), function(x), strict=True)


@pytest.mark.parametrize("function", [lambda x: x.sum(0), lambda x: x.mean(0), lambda x: np.tile(x, (2, 2))])
def test_a_later_call_may_have_no_elements(function: Callable[[Any], Any]) -> None:
    fused = fuse(function)
    for shape in ((3000, 3), (3000, 0)):
        x = np.ones(shape)
        np.testing.assert_array_equal(fused(x), function(x), strict=True)
