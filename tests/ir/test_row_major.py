"""Row-major positions and coordinates: each is the inverse of the other, and what is shifted between them folds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.ir.row_major import delinearize, linearize


@pytest.mark.parametrize("shape", [(), (1,), (7,), (1, 4), (3, 1, 5), (2, 3, 4), (2, 3, 1, 4, 2), (3, 0)])
def test_coordinates_of_a_position_are_numpys(shape: tuple[int, ...]) -> None:
    for position in range(math.prod(shape)):
        coordinates = delinearize(position, shape)
        assert coordinates == tuple(map(int, np.unravel_index(position, shape)))
        assert linearize(coordinates, shape) == position


@pytest.mark.parametrize("shape", [(64, 30), (8, 50, 30), (4, 6, 5, 30)])
def test_elements_that_are_shifted_in_one_axis_are_copied_in_runs(shape: tuple[int, ...]) -> None:
    x = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    shifted = fuse(lambda x: np.roll(x, 7))
    (segment,) = shifted.segments(x)
    assert "truncmod" not in str(segment.kernel)
    assert "truncdiv" not in str(segment.kernel)
    for extent in (shape[0], 3):
        np.testing.assert_array_equal(shifted(x[:extent]), np.roll(x[:extent], 7))
