"""Tests of the coordinates at which kernels read values that they compute: reductions of one element, and scans."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

FUNCTIONS = {
    "over no axes": lambda x: x.max(axis=()),
    "over an axis of extent 1": lambda x: x[None].sum(0),
    "with an index": lambda x: x[None].argmax(0) + x.min(axis=()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_reduction_of_one_element_is_read_at_several_coordinates(name: str) -> None:
    def function(x: Any) -> Any:
        reduced = FUNCTIONS[name](x)
        return reduced[..., ::-1] + reduced, np.cross(reduced, [1, 2, 3])

    x = np.array([[6, -2, -9], [1, 2, 3]])
    for target in ("reference", "cpu"):
        for result, expected in zip(fuse(function, target=target)(x), function(x), strict=True):
            np.testing.assert_array_equal(result, expected)


def test_a_scan_is_read_through_a_reshape_in_its_kernel() -> None:
    """The quotients of the flattened positions are those of the scan's own coordinates."""

    def function(x: Any) -> Any:
        products = np.cumprod(x, axis=0)
        np.place(x, products != 0, [1, 2])
        return products

    for shape in ((3, 4, 4), (3, 70, 80)):
        given, right = (np.random.default_rng(0).integers(-1, 2, shape) for _ in range(2))
        for result, expected in ((fuse(function, target="cpu")(given), function(right)), (given, right)):
            np.testing.assert_array_equal(result, expected)
