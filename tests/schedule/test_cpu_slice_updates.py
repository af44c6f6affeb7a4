"""Arrays with another slice: the CPU writes the array first and then the slice, if the slice is thin or rows short."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.schedule.cuda_lowering import numbers
from tracefuse import fuse


def first_row(x: Any, v: Any) -> Any:
    y = x.copy()
    y[0] = 7
    return y


def last_row_of_computed(x: Any, v: Any) -> Any:
    y = x * 2
    y[-1] = y[-2] + v
    return y


def column(x: Any, v: Any) -> Any:
    y = x.copy()
    y[:, 1] = x[:, 2] * 3
    return y


def diagonal(x: Any, v: Any) -> Any:
    y = x.copy()
    np.fill_diagonal(y, 5)
    return y


def borders(x: Any, v: Any) -> Any:
    y = np.zeros_like(x)
    y[0] = v
    y[-1] = 1
    y[:, 0] = 2
    y[:, -1] = 3
    return y


def steps_in_fortran_order(x: Any, v: Any) -> Any:
    y = x.T + 1
    y[1::40, 2:-1:2] = v[1::40, None]
    return y


PROGRAMS = [first_row, last_row_of_computed, column, diagonal, borders, steps_in_fortran_order]


@pytest.mark.parametrize("program", PROGRAMS)
def test_two_launches_have_numpys_values(program: Any) -> None:
    dtype = (np.float64, np.uint8)[PROGRAMS.index(program) % 2]
    arguments = [numbers(47, 40).astype(dtype), numbers(40).astype(dtype)]
    fused = fuse(program)
    np.testing.assert_array_equal(fused(*arguments), program(*arguments))
    assert "slice_update" in str(fused.explain(*arguments))


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_slice_takes_elements_of_an_array_that_is_equal_to_the_one_it_replaces(rows: int) -> None:
    def f(x: Any) -> Any:
        y = np.ones_like(x)
        y[1:] = y[:-1]
        return np.sort(y)

    x = np.zeros((rows, 3))
    np.testing.assert_array_equal(fuse(f)(x), f(x))


def test_thin_slices_and_short_rows_of_narrow_elements_are_written_apart() -> None:
    def template(shape: tuple[int, ...], dtype: Any, rows: slice) -> str:
        def f(x: Any) -> Any:
            y = x.copy()
            y[rows] = 7
            return y

        (segment,) = fuse(f).segments(np.ones(shape, dtype))
        return str(segment.template)

    assert template((50, 10), np.float64, slice(0, 1)) == "slice_update"
    assert template((50, 10), np.uint8, slice(3, None)) == "slice_update"
    assert template((50, 1000), np.int16, slice(3, None)) == "pointwise"
    assert template((5000,), np.uint8, slice(0, 1)) == "pointwise", "one loop is cut at the slice"
    assert template((50, 10), np.float64, slice(5, 5)) == "pointwise"


def test_loops_are_split_at_the_ends_of_the_interior_of_long_rows() -> None:
    """Each element would test its position otherwise: bytes took seven times as long as in NumPy."""

    def function(x: np.ndarray) -> np.ndarray:
        y = x.copy()
        y[1:-1, 1:-1] = 0
        return y

    fused, x = fuse(function), np.arange(30 * 300, dtype=np.uint8).reshape(30, 300)
    (segment,) = fused.segments(x)
    vector_loops = str(segment.kernel).split(" vector:\n")[1:]
    assert len(vector_loops) == 9
    assert not any(" if " in loop.split("for ")[0].split("else:")[0] for loop in vector_loops)
    for shape in ((30, 300), (2, 300), (1, 300), (30, 65), (30, 64), (3, 2), (30, 1)):
        x = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
        assert np.array_equal(fused(x), function(x))
