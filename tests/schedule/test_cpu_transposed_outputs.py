"""Pointwise functions of several arrays in column order: tiles are computed along them, and the results transposed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

RANDOM = np.random.default_rng(11)
PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {
    "a sum": (lambda a, b, c: a + b, 1),
    "a choice": (lambda a, b, c: np.where(a > b, a, c), 1),
    "two results": (lambda a, b, c: (a - b, (a > c) & (b > c)), 2),
    "with a row and a column": (lambda a, b, c: (a - b) * a[:1] + c[:, :1], 1),
    "shifted": (lambda a, b, c: a[1:] - b[:-1] + c[1:], 1),
}


def in_columns(shape: tuple[int, ...], dtype: Any) -> Any:
    return np.asfortranarray(RANDOM.integers(-50, 50, shape).astype(dtype))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, np.complex64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_arrays_in_column_order_give_numpys_values_and_each_result_is_transposed_once(name: str, dtype: Any) -> None:
    program, results = PROGRAMS[name]
    fused = fuse(program, target="cpu")
    for shape in ((40, 70), (67, 131), (200, 35)):
        arguments = [in_columns(shape, dtype) for _ in range(3)]
        np.testing.assert_equal(fused(*arguments), program(*arguments))
    (segment,) = fused.segments(*arguments)
    assert str(segment.kernel).count("= transposed ") == results


def test_arrays_of_three_axes_and_slices_in_column_order_give_numpys_values() -> None:
    fused = fuse(lambda a, b: a * 2 - b, target="cpu")
    for dtype in (np.float64, np.int8):
        a, b = (in_columns((39, 5, 44), dtype)[2:, :, 1:] for _ in range(2))
        np.testing.assert_equal(fused(a, b), a * np.array(2, dtype) - b)


def test_an_argument_in_column_order_is_updated_in_place() -> None:
    def update(a: Any, b: Any, c: Any) -> Any:
        a += b * c
        return a - b

    arguments = [in_columns((50, 90), np.float64) for _ in range(3)]
    copies = [one.copy(order="K") for one in arguments]
    np.testing.assert_equal(fuse(update, target="cpu")(*arguments), update(*copies))
    np.testing.assert_equal(arguments, copies)
