"""A finished trace frees its traced values without a garbage collection, which takes time in proportion to the heap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse, options
from tracefuse.frontend.tracer import survivors


def written_view(x: Any) -> Any:
    y = x.reshape(-1)
    y[1:] += 1
    return x.ravel()[::2], y


def asked(x: Any) -> Any:
    return x * 2 if x.sum() > 0 else x


FUNCTIONS: list[Callable[[Any], Any]] = [
    lambda x: np.tanh(x) * 2 + x.sum(axis=0),
    lambda x: x.ravel(),
    lambda x: x.reshape(-1)[::2].reshape(2, -1),
    lambda x: x.T.reshape(-1) + x.T.ravel(),
    lambda x: np.where(x > 0, x, 0).std(axis=1, keepdims=True),
    lambda x: np.linalg.inv(x @ x.T + np.eye(4)),
    lambda x: np.concatenate([x, x[::-1]], axis=1),
    lambda x: np.einsum("ij,kj->ik", x, x),
    lambda x: x[x > 0].sum(),
    lambda x: np.diagonal(x @ x.T),
    lambda x: np.unique(x),
    lambda x: np.sort(x, axis=None)[:3],
    lambda x: float(x.sum()) + 1,
    written_view,
    asked,
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_trace_collects_no_garbage(
    function: Callable[[Any], Any], order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("a reference cycle keeps a traced value alive")

    monkeypatch.setattr(survivors.gc, "collect", refuse)
    x = np.asarray(np.random.default_rng(0).normal(size=(4, 6)), order=order)
    with options(target="reference"):
        result = fuse(function)(x.copy(order="K"))
    expected = function(x.copy(order="K"))
    results, others = (r if isinstance(r, tuple) else (r,) for r in (result, expected))
    for one, other in zip(results, others, strict=True):
        np.testing.assert_allclose(one, other)


def test_a_cycle_of_the_user_is_collected() -> None:
    def function(x: Any) -> Any:
        held: list[Any] = [x * 2]
        held.append(held)
        return held[0] + 1

    np.testing.assert_array_equal(fuse(function)(np.ones(3)), np.full(3, 3.0))
