"""Values that kernels would compute again for every row: which of them are stored, and at which sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def gathered(a: Any, x: Any, y: Any) -> Any:
    return np.exp(x)[(a * 10).astype(np.int64)]


REPEATED: list[Callable[..., Any]] = [
    lambda a, x, y: a * np.exp(x),
    lambda a, x, y: (a * np.exp(x)).sum(1),
    lambda a, x, y: (a * np.exp(x)).sum(0),
    lambda a, x, y: a * np.sin(np.arange(a.shape[1]) * 0.1),
    lambda a, x, y: np.where(a > 0.5, np.log1p(x), a),
    lambda a, x, y: a.reshape(-1, 10, a.shape[1]) * np.exp(a[:40, None, :]),
    lambda a, x, y: a - np.exp(x).mean(),
    lambda a, x, y: a * (x / x.sum()),
    lambda a, x, y: a[:, (x * 1000).astype(np.int64) % a.shape[1]],
    gathered,
]

NOT_REPEATED: list[Callable[..., Any]] = [
    lambda a, x, y: a * np.exp(y)[:, None],
    lambda a, x, y: a * (x + 1),
    lambda a, x, y: a[(y * 1000).astype(np.int64) % a.shape[0]],
    lambda a, x, y: a - np.exp(a).mean(1)[:, None],
    lambda a, x, y: (a - a.mean(0)) / a.std(0),
    lambda a, x, y: a * np.exp(a.max(0)),
    lambda a, x, y: a * np.exp(np.sqrt(2.0)),
    lambda a, x, y: np.pad(a * 2, 4, mode="reflect"),
    lambda a, x, y: np.concatenate([a[:, ::-1] - a, a[:, 5:] * 2], axis=1),
]


def inputs(rows: int) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(0)
    return random.random((rows, 60)), random.random(60), random.random(rows)


@pytest.mark.parametrize("function", REPEATED)
def test_what_every_row_would_compute_again_is_a_kernel_of_its_own_beside_many_rows(
    function: Callable[..., Any],
) -> None:
    fused, (a, x, y) = fuse(function, target="cpu"), inputs(400)
    np.testing.assert_allclose(fused(a, x, y), function(a, x, y), rtol=1e-12, atol=1e-13)
    assert len(fused.segments(a, x, y)) == 2


@pytest.mark.parametrize("function", REPEATED[:5])
def test_few_rows_compute_it_again(function: Callable[..., Any]) -> None:
    fused, (a, x, y) = fuse(function, target="cpu"), inputs(3)
    np.testing.assert_allclose(fused(a, x, y), function(a, x, y), rtol=1e-12, atol=1e-13)
    assert len(fused.segments(a, x, y)) == 1


@pytest.mark.parametrize("function", NOT_REPEATED)
def test_what_a_row_computes_once_stays_in_its_kernel(function: Callable[..., Any]) -> None:
    fused, (a, x, y) = fuse(function, target="cpu"), inputs(400)
    np.testing.assert_allclose(fused(a, x, y), function(a, x, y), rtol=1e-12, atol=1e-13)
    assert len(fused.segments(a, x, y)) == 1


def test_rows_and_columns_that_read_values_of_other_axes_are_kernels_of_their_own() -> None:
    def rows_of_columns(a: Any, x: Any, y: Any) -> Any:
        return (a * np.exp(a.mean(0)) + np.log(x + 2)[(a * 10).astype(np.int64)]).max(1)

    def columns_of_rows(a: Any, x: Any, y: Any) -> Any:
        return ((a - a.mean(1)[:, None]) * np.sin(np.log(x + 2)) * (x - x.mean())).mean(0)

    for function in (rows_of_columns, columns_of_rows):
        fused = fuse(function, target="cpu")
        for rows in (4, 300):
            arguments = inputs(rows)
            np.testing.assert_allclose(fused(*arguments), function(*arguments), rtol=1e-12, atol=1e-14)
