"""Pointwise functions of several arrays in column order: tiles along them are computed, row-major results transposed.

A fused function returns its results in the order of its operands instead, see tests/partition/test_result_orders.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.compiler.executable import compile_fusion
from tracefuse.runtime.segment_texts import texts_of

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


def as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, np.complex64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_column_order_gives_numpys_values_and_row_major_results_are_transposed_once(name: str, dtype: Any) -> None:
    program, results = PROGRAMS[name]
    for shape in ((40, 70), (67, 131), (200, 35)):
        arguments = [in_columns(shape, dtype) for _ in range(3)]
        row_major = compile_fusion(fuse(program).definition(*arguments).fusion)
        expected = program(*arguments)
        for outputs in (row_major(arguments), fuse(program, target="cpu")(*arguments)):
            for result, right in zip(as_list(outputs), as_list(expected), strict=True):
                np.testing.assert_equal(result, right)
    (segment,) = row_major.plan_for(arguments)[0].segments
    assert sum(text.count("= transposed ") for text in texts_of(segment)) == results


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
