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
