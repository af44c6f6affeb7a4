"""Tests reductions over the rows and over short runs of adjacent columns on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

Array = np.ndarray[Any, Any]


def results(x: Array) -> tuple[Array, ...]:
    """Reductions of two phases with results of every element and of every run, and positions."""
    centered = x - x.mean((0, 2), keepdims=True)
    return centered, (centered * centered).sum((0, 2)), x.max((0, 2)), np.moveaxis(x, 1, 0).reshape(7, -1).argmin(1)


FUSED = fuse(results)


@pytest.mark.parametrize(("rows", "run"), [(8, 3), (601, 16), (3000, 9), (4001, 31), (900, 200), (500, 257)])
def test_sums_over_the_first_and_the_last_axis_have_numpys_values(rows: int, run: int) -> None:
    x = np.random.default_rng(rows).integers(-6, 7, (rows, 7, run)).astype(np.float32)
    for result, expected in zip(FUSED(x), results(x.astype(np.float64)), strict=True):
        assert np.abs(result - expected).max() <= 1e-5 * max(np.abs(expected).max(), 1)


@pytest.mark.parametrize(
    ("shape", "template"),
    [((7001, 3, 31), "few_columns"), ((601, 300, 16), "column"), ((601, 300, 300), "row"), ((4, 300, 64), "row")],
)
def test_runs_of_many_rows_are_columns_until_they_fill_vectors_well(shape: tuple[int, ...], template: str) -> None:
    x = np.ones(shape, np.float32)
    assert fuse(lambda x: x / x.sum((0, 2), keepdims=True)).explain(x).templates == (template,)


def test_operands_that_are_the_same_along_a_run_are_not_divided_into_columns() -> None:
    x, weights = np.ones((601, 300, 16), np.float32), np.ones((300, 1), np.float32)
    assert fuse(lambda x, w: (x * w).sum((0, 2))).explain(x, weights).templates == ("row",)


def test_results_of_runs_without_columns_have_the_initial_value() -> None:
    def with_sum(a: Any, b: Any) -> Any:
        total = np.hypot.outer(b, a)
        return total, total.sum(axis=(0, 2, 4), initial=0.5)

    function = fuse(with_sum)
    arguments = np.ones((4, 7, 0)), np.ones((4, 1))
    for _ in range(3):  # in memory that earlier results had
        np.testing.assert_array_equal(function(*arguments)[1], with_sum(*arguments)[1])
