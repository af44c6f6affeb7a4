"""`while` loops whose first condition depends on sizes alone: one trace serves all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def levels(adjacency: Any, source: Any) -> Any:
    level = np.full(len(adjacency), -1)
    frontier = np.zeros(len(adjacency), dtype=bool)
    frontier[source] = True
    depth = 0
    while frontier.any():
        level[frontier] = depth
        frontier = adjacency[frontier].any(axis=0) & (level < 0)
        depth += 1
    return level


def halvings(adjacency: Any, limit: Any) -> Any:
    t, steps = np.arange(len(adjacency)), 0
    while t.sum() > limit:
        t = t // 2
        steps += 1
    return steps


def visited(adjacency: Any, place: Any) -> Any:
    seen, steps = np.zeros(len(adjacency), bool), 0
    while not seen[place]:
        seen[place] = True
        place = (place * 3 + 1) % len(adjacency)
        steps += 1
    return seen, steps


def spread(adjacency: Any, place: Any) -> Any:
    amount, steps = np.eye(len(adjacency))[place], 0
    while (amount > 0).sum() < len(adjacency) // 2:
        amount[1:] += amount[:-1]
        steps += 1
    return amount, steps


@pytest.mark.parametrize("function", [levels, halvings, visited, spread])
def test_one_trace_serves_all_sizes(function: Callable[..., Any]) -> None:
    fused = fuse(function)
    for size in (20, 7, 33):
        adjacency = np.random.default_rng(size).random((size, size)) < 2 / size
        got, expected = fused(adjacency, 3), function(adjacency, 3)
        for one, other in zip(*[r if isinstance(r, tuple) else (r,) for r in (got, expected)], strict=True):
            np.testing.assert_array_equal(one, other)
    assert fused.cache_info().traces == 1
