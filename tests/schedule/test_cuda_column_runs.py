"""The column_runs template for the GPU: sums over rows and over short runs of adjacent columns, by the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.schedule.cuda_lowering import case, numbers


def normalized(x: Any) -> Any:
    return x / np.sqrt((x * x).sum((0, 2), keepdims=True) + 1)


def batch_norm(x: Any, w: Any) -> Any:
    mean, variance = x.mean((0, 2), keepdims=True), x.var((0, 2), keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * w[:, None], mean[0, :, 0]


def two_passes(x: Any) -> Any:
    largest = x.max((0, 2), keepdims=True)
    e = np.exp(x - largest)
    total = e.sum((0, 2), keepdims=True)
    return e / total, total


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "normalized": (normalized, (numbers(400, 5, 43),)),
    "sums": (lambda x: x.sum((0, 2)), (numbers(2500, 3, 7),)),
    "doubles": (lambda x: x.sum((0, 2)), (numbers(900, 2, 19, dtype=np.float64),)),
    "a mean and a variance, with a weight": (batch_norm, (numbers(3400, 4, 5), numbers(4))),
    "halves": (normalized, (numbers(250, 3, 67, dtype=np.float16),)),
    "runs of 2": (normalized, (numbers(900, 40, 2),)),
    "runs of 3": (batch_norm, (numbers(450, 45, 3), numbers(45))),
    "runs of 4": (normalized, (numbers(500, 33, 4),)),
    "vectors": (normalized, (numbers(1100, 2, 16),)),
    "vectors of 2, with a weight": (batch_norm, (numbers(930, 3, 18), numbers(3))),
    "vectors of halves": (lambda x: x.max((0, 2)), (numbers(700, 2, 24, dtype=np.float16),)),
    "stored runs that are no whole lines": (normalized, (numbers(350, 2, 48),)),
    "two kept axes": (lambda x: x.min((1, 3)), (numbers(2, 700, 3, 25),)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_runs_of_columns_are_reduced_with_the_rows(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    lowered = case(function, *arguments).check()
    names = [kernel.name for kernel in lowered.kernels]
    assert names[:3] == ["k_column_0", "k_column_0_joined", "k_runs_0"], names


def test_results_of_one_pass_that_another_pass_needs() -> None:
    x = numbers(800, 3, 21)
    lowered = case(two_passes, x).check()
    assert any("_runs_0" in kernel.name for kernel in lowered.kernels)


def test_runs_of_whole_lines_and_long_runs_are_read_along_the_run() -> None:
    for shape in ((400, 5, 44), (270, 2, 64), (80, 3, 301)):
        kernels = case(lambda x: x.sum((0, 2)), numbers(*shape)).kernels
        assert not any("runs" in kernel.name for kernel in kernels)


def test_long_rows_that_do_not_fill_the_multiprocessors_evenly_are_split() -> None:
    names = [kernel.name for kernel in case(lambda x: x.var(1), np.empty((282, 17001), np.float32)).kernels]
    assert names == ["k_split_0", "k_split_1"]
    lowered = case(lambda x: x.var(1), numbers(34, 17001)).check()
    assert [kernel.name for kernel in lowered.kernels] == names
